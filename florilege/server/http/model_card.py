"""What ``GET /v1/model`` returns: the rules, lists and places of the model, and the limits."""

from collections.abc import Mapping
from functools import partial
from typing import Self, get_args

from pydantic import Field

from florilege.calibration.record import CalibrationRecord, OperatingPoint, Selection
from florilege.calibration.rules import RuleName
from florilege.calibration.sets import Guarantee
from florilege.calibration.view import Setting, View
from florilege.models.images import ACCEPTED
from florilege.models.regions import PlaceKind
from florilege.server.answers.pipeline import Pipeline
from florilege.server.schemas import Measured, Model, ResponseModel
from florilege.server.settings import Settings


class Point(ResponseModel):
    """One calibrated setting of a rule."""

    k: float | None
    coverage: float | None
    lambda_val: float | None = Field(serialization_alias="lambda")
    expected_size: Measured | None
    hit_rate: Measured | None
    least_coverage: float | None
    macro_weight: float | None = Field(
        description="For rules that favour rare species: 0 counts all photos alike, 1 all species."
    )


# A name of its own: within `ListedClasses` the word `list` is a field.
Points = list[Point]


class Promised(ResponseModel):
    """What a rule is calibrated for with another guarantee than its own."""

    guarantee: Guarantee
    delta: float | None = Field(
        description="For `probability`: how often a calibration may break the guarantee."
    )
    max_size: int | None = Field(description="Larger sets are cut to this many classes.")
    points: list[Point] = Field(description="For one photo, by increasing k or coverage.")


class SeveralPhotos(ResponseModel):
    """What a rule is calibrated for with several photos of one plant."""

    images: int = Field(description="Photos in a request.")
    fusion: str = Field(
        description="How they are combined: `mean_score`, or `product` of their likelihoods."
    )
    exponent: float | None = Field(description="Of the product; null for the mean.")
    points: list[Point] = Field(description="By increasing k or coverage.")


class ListedClasses(ResponseModel):
    """What a rule is calibrated for with only the classes of a list."""

    list: str = Field(description="Name of the list.")
    points: Points = Field(description="For one photo, by increasing k or coverage.")


class KnownPlace(ResponseModel):
    """What a rule is calibrated for where the place of the photo is known."""

    place: PlaceKind = Field(description="What is known of it.")
    points: list[Point] = Field(description="For one photo, by increasing k or coverage.")


class RuleInfo(ResponseModel):
    """A rule with everything it is calibrated for."""

    rule: RuleName
    min_size: int
    guarantee: Guarantee | None = Field(description="What `points` guarantee.")
    points: list[Point] = Field(description="For one photo, by increasing k or coverage.")
    promised: list[Promised] = Field(
        description="The other guarantees, for one photo; request them with `guarantee`."
    )
    several: list[SeveralPhotos] = Field(
        description="Other numbers of photos of one plant that it is calibrated for."
    )
    lists: list[ListedClasses] = Field(
        description="Lists it is calibrated for; request them with `list`."
    )
    places: list[KnownPlace] = Field(
        description="What of a place it is calibrated for; request it with `region` and `month`."
    )


class Limits(ResponseModel):
    """The limits of one request."""

    max_body_bytes: int
    max_pixels: int
    max_images: int
    upload_deadline_s: float
    media_types: list[str] = Field(description="Accepted image types.")


class OfferedList(ResponseModel):
    """A list that `list` may name."""

    name: str
    classes: int = Field(description="How many classes it holds.")
    calibrated: bool = Field(description="Whether it has thresholds of its own.")


class PlacesInfo(ResponseModel):
    """The table of occurrences behind `region`, `month`, `latitude`, `longitude` and `date`."""

    regions: list[str] | None = Field(
        description="What `region` may name; null for cells of a grid, which latitude and "
        "longitude name."
    )
    cell_degrees: float | None = Field(description="Side of a cell; null for named regions.")
    calibrated: list[PlaceKind] = Field(description="What has thresholds of its own.")
    strength: float = Field(description="How much a place counts: 0 not at all, 1 as recorded.")
    gain: float = Field(description="Hit rate that a place gains at the default k.")
    simulated: bool = Field(
        description="Whether the places of the calibration photos were drawn from the table: real "
        "photos then gain less."
    )


class ModelCard(ResponseModel):
    """The model that the server runs."""

    model: Model
    created: str | None
    classes: int = Field(description="How many classes the model knows.")
    image_size: int = Field(description="Side of the square the network sees, in pixels.")
    provider: str = Field(description="Execution provider that runs the network.")
    head: str
    score_kind: str
    default_rule: RuleName
    default_k: float
    selection: Selection = Field(
        description="How head and kind of score were selected, and their expected hit rate."
    )
    rules: list[RuleInfo]
    lists: list[OfferedList] = Field(description="What `list` may name.")
    places: PlacesInfo | None = Field(description="Null without a table of occurrences.")
    languages: list[str] = Field(description="Languages with at least one common name.")
    feedback: bool = Field(description="Whether `POST /v1/feedback` accepts feedback.")
    feedback_photos: bool = Field(description="Whether feedback with `consent` keeps the photos.")
    feedback_licence: str | None = Field(
        description="Licence that `consent` gives these photos; null if none are kept."
    )
    limits: Limits

    @classmethod
    def of_pipeline(cls, pipeline: Pipeline, settings: Settings) -> Self:
        """What `/v1/model` returns."""
        bundle, record = pipeline.bundle, pipeline.record
        lists = sorted(pipeline.planner.lists.by_name.items())
        names = {name: listed.calibrated_as for name, listed in lists if listed.calibrated_as}
        languages = {language for item in bundle.classes for language in item.common_names}
        return cls.of(
            record,
            model=pipeline.model,
            created=bundle.manifest.created,
            classes=len(bundle.classes),
            image_size=bundle.preprocess.image_size,
            provider=pipeline.session.provider,
            default_rule="average_k",
            rules=[
                _rule(record, rule, settings.max_images, names)
                for rule in get_args(RuleName)
                if rule in record.rules
            ],
            lists=[
                OfferedList(name=name, classes=len(listed.infos), calibrated=name in names)
                for name, listed in lists
            ],
            places=_places(pipeline),
            languages=sorted(languages),
            feedback=settings.feedback_store is not None,
            feedback_photos=settings.feedback_photos,
            feedback_licence=settings.feedback_licence if settings.feedback_photos else None,
            limits=Limits.of(settings, media_types=list(ACCEPTED)),
        )


def _places(pipeline: Pipeline) -> PlacesInfo | None:
    occurrences, prior = pipeline.planner.occurrences, pipeline.record.place_prior
    if occurrences is None or prior is None:
        return None
    degrees = occurrences.cell_degrees
    return PlacesInfo.of(
        prior,
        regions=list(occurrences.regions) if degrees is None else None,
        cell_degrees=degrees,
        calibrated=[
            kind
            for kind in get_args(PlaceKind)
            if pipeline.record.values("average_k", None, View(place=kind))
        ],
    )


def _rule(
    record: CalibrationRecord, rule: RuleName, max_images: int, lists: Mapping[str, str]
) -> RuleInfo:
    """A rule; ``lists`` maps the name of each calibrated list to its name in the record."""
    points_of = partial(_points, record, rule)
    points = points_of(View())
    promises = [points_of(View(), kind) for name, kind in record.promises if name == rule]
    return RuleInfo.of(
        points[0],
        points=_described(points),
        promised=[Promised.of(points[0], points=_described(points)) for points in promises],
        several=[
            SeveralPhotos(
                images=images,
                fusion="mean_score" if fused[0].table.scoring.fusion is None else "product",
                exponent=fused[0].table.scoring.fusion,
                points=_described(fused),
            )
            for images in range(2, max_images + 1)
            if (fused := points_of(View(photos=images)))
        ],
        lists=[
            ListedClasses(list=name, points=_described(listed))
            for name, calibrated_as in lists.items()
            if (listed := points_of(View(list=calibrated_as)))
        ],
        places=[
            KnownPlace(place=kind, points=_described(placed))
            for kind in get_args(PlaceKind)
            if (placed := points_of(View(place=kind)))
        ],
    )


def _points(
    record: CalibrationRecord, rule: RuleName, view: View, guarantee: Guarantee | None = None
) -> list[OperatingPoint]:
    """All calibrated points of a rule for a view."""
    values = record.values(rule, guarantee, view)
    return [record.point(view, Setting.of(rule, value, guarantee)) for value in values]


def _described(points: list[OperatingPoint]) -> list[Point]:
    return [Point.of(point, **point.estimates) for point in points]
