"""Cached responses about the served bundle: model card, classes and reference pictures."""

from collections.abc import Mapping, Sequence
from functools import lru_cache, partial
from typing import Any, Final, get_args

from florilege.calibration.record.operating_point import OperatingPoint
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.rules import RULES, RuleName
from florilege.models.images import ACCEPTED
from florilege.models.occurrences import PlaceKind
from florilege.server import model_schemas as schemas
from florilege.server.answers.pipeline import Pipeline
from florilege.server.http.cached_response import CachedResponse
from florilege.server.settings import Settings

LISTS_KEPT: Final = 4  # a list of 10,000 classes has 3 MB
MAX_AGE: Final = "max-age=3600"  # of a picture; pages show the same few again and again


class BundleInfo:
    """All cached responses of one bundle; ``thumbnails`` are pictures by class id."""

    def __init__(self, pipeline: Pipeline, settings: Settings) -> None:
        card = model_card(pipeline, settings).model_dump_json(by_alias=True)
        self.card = CachedResponse(card.encode())
        self.classes = classes = pipeline.taxa
        self._list = lru_cache(LISTS_KEPT)(lambda *query: CachedResponse(classes.find(*query)))
        self.thumbnails = {
            name: CachedResponse(picture, "image/jpeg", MAX_AGE)
            for name, picture in pipeline.bundle.read_thumbnails().items()
        }

    def list_of_classes(
        self, languages: Sequence[str], q: str | None, limit: int | None
    ) -> CachedResponse:
        """As `TaxonTable.find`; the last few lists are cached."""
        available = tuple(each for each in languages if each in self.classes.languages)
        return self._list(available, q, limit)


def model_card(pipeline: Pipeline, settings: Settings) -> schemas.ModelCard:
    """What `/v1/model` returns."""
    bundle, record, lists = pipeline.bundle, pipeline.record, sorted(pipeline.lists.by_name.items())
    calibrated_lists = {name: each.calibrated_as for name, each in lists if each.calibrated_as}
    return schemas.ModelCard.of(
        record,
        model=pipeline.model,
        created=bundle.manifest.created,
        classes=len(bundle.classes),
        image_size=bundle.preprocess.image_size,
        provider=pipeline.session.provider,
        default_rule="average_k",
        rules=[
            _rule(record, rule, settings.max_images, calibrated_lists)
            for rule in get_args(RuleName)
            if rule in record.rules
        ],
        lists=[
            schemas.OfferedList(
                name=name, classes=len(each.infos), calibrated=bool(each.calibrated_as)
            )
            for name, each in lists
        ],
        places=_places(pipeline),
        languages=sorted({language for item in bundle.classes for language in item.common_names}),
        feedback=settings.feedback_store is not None,
        feedback_photos=settings.feedback_photos,
        feedback_licence=settings.feedback_licence if settings.feedback_photos else None,
        limits=schemas.Limits.of(settings, media_types=list(ACCEPTED)),
    )


def _places(pipeline: Pipeline) -> schemas.PlacesInfo | None:
    occurrences, prior = pipeline.places.occurrences, pipeline.record.place_prior
    if occurrences is None or prior is None:
        return None
    degrees = occurrences.cell_degrees
    return schemas.PlacesInfo.of(
        prior,
        regions=list(occurrences.regions) if degrees is None else None,
        cell_degrees=degrees,
        calibrated=[
            kind for kind in get_args(PlaceKind) if pipeline.record.ks("average_k", place=kind)
        ],
    )


def _rule(
    record: CalibrationRecord, rule: RuleName, max_images: int, lists: Mapping[str, str]
) -> schemas.RuleInfo:
    """A rule; ``lists`` holds what the record names each calibrated list, by its name here."""
    points_of = partial(_points, record, rule)
    points = points_of()
    promises = [points_of(guarantee=each) for name, each in record.promises if name == rule]
    return schemas.RuleInfo.of(
        points[0],
        points=_described(points),
        promised=[schemas.Promised.of(each[0], points=_described(each)) for each in promises],
        several=[
            schemas.SeveralPhotos.of(fused[0].table, points=_described(fused))
            for images in range(2, max_images + 1)
            if (fused := points_of(images=images))
        ],
        lists=[
            schemas.ListedClasses(list=name, points=_described(listed))
            for name, calibrated_as in lists.items()
            if (listed := points_of(list_name=calibrated_as))
        ],
        places=[
            schemas.KnownPlace(place=kind, points=_described(placed))
            for kind in get_args(PlaceKind)
            if (placed := points_of(place=kind))
        ],
    )


def _points(record: CalibrationRecord, rule: RuleName, **conditions: Any) -> list[OperatingPoint]:
    """All calibrated points of a rule under the conditions that `CalibrationRecord.ks` takes."""
    asks = RULES[rule].asks
    values = record.ks(rule, **conditions)
    return [record.point(rule, **conditions, **dict[str, Any]({asks: value})) for value in values]


def _described(points: list[OperatingPoint]) -> list[schemas.Point]:
    return [schemas.Point.of(point, **point.estimates) for point in points]
