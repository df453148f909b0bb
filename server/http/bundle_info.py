"""Cached responses about the served bundle: model card, classes and reference pictures."""

from collections.abc import Iterator, Sequence
from functools import lru_cache, partial
from typing import Final, get_args

from florilege.calibration.guarantees import Guarantee
from florilege.calibration.record.operating_point import OperatingPoint
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.rules import RULES
from florilege.models.images import ACCEPTED
from florilege.server.answers.class_list import TaxonTable
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.restriction import ClassLists
from florilege.server.http.etag import CachedResponse
from florilege.server.schemas import (
    Limits,
    ListedClasses,
    ModelCard,
    OfferedList,
    Point,
    Promised,
    Rule,
    RuleInfo,
    SeveralPhotos,
)
from florilege.server.settings import Settings

LISTS_KEPT: Final = 4  # a list of 10,000 classes has 3 MB
MAX_AGE_S: Final = 3600  # of a picture; pages show the same few again and again


class BundleInfo:
    """All cached responses of one bundle.

    Attributes:
        card: The model card.
        classes: The entries of the classes.
        thumbnails: The reference picture of each class that has one, by class id.
    """

    def __init__(self, pipeline: Pipeline, settings: Settings) -> None:
        self.card = CachedResponse(_model_card(pipeline, settings))
        self.classes = pipeline.taxa
        self._list = lru_cache(maxsize=LISTS_KEPT)(partial(_list, self.classes))
        self.thumbnails = {
            name: CachedResponse(picture, "image/jpeg", max_age_s=MAX_AGE_S)
            for name, picture in pipeline.bundle.read_thumbnails().items()
        }

    def list_of_classes(
        self, languages: Sequence[str], q: str | None, limit: int | None
    ) -> CachedResponse:
        """As `TaxonTable.find`; the last few lists are cached."""
        return self._list(self.classes.available(languages), q, limit)


def _list(
    classes: TaxonTable, languages: tuple[str, ...], q: str | None, limit: int | None
) -> CachedResponse:
    return CachedResponse(classes.find(languages, q, limit))


def _model_card(pipeline: Pipeline, settings: Settings) -> ModelCard:
    bundle, record, lists = pipeline.bundle, pipeline.record, pipeline.lists
    return ModelCard.of(
        record,
        model=pipeline.model,
        created=bundle.manifest.created,
        classes=len(bundle.classes),
        image_size=bundle.preprocess.image_size,
        provider=pipeline.session.provider,
        default_rule="average_k",
        rules=[
            _rule(record, rule, settings.max_images, lists)
            for rule in get_args(Rule)
            if rule in record.rules
        ],
        lists=[
            OfferedList(
                name=name, classes=len(each.infos), calibrated=each.calibrated_as is not None
            )
            for name, each in sorted(lists.by_name.items())
        ],
        languages=sorted({language for item in bundle.classes for language in item.common_names}),
        feedback=settings.feedback_store is not None,
        feedback_photos=settings.feedback_photos,
        feedback_licence=settings.feedback_licence if settings.feedback_photos else None,
        limits=Limits.of(settings, media_types=list(ACCEPTED)),
    )


def _rule(record: CalibrationRecord, rule: Rule, max_images: int, lists: ClassLists) -> RuleInfo:
    points = _points(record, rule)
    promises = [_points(record, rule, guarantee=g) for name, g in record.promises if name == rule]
    several = [_points(record, rule, images=images) for images in range(2, max_images + 1)]
    return RuleInfo.of(
        points[0],
        points=_described(points),
        promised=[Promised.of(each[0], points=_described(each)) for each in promises],
        several=[
            SeveralPhotos.of(each[0].table, points=_described(each)) for each in several if each
        ],
        lists=list(_of_lists(record, rule, lists)),
    )


def _of_lists(record: CalibrationRecord, rule: Rule, lists: ClassLists) -> Iterator[ListedClasses]:
    for name, each in sorted(lists.by_name.items()):
        if each.calibrated_as is not None:
            points = _points(record, rule, list_name=each.calibrated_as)
            if points:
                yield ListedClasses(list=name, points=_described(points))


def _points(
    record: CalibrationRecord,
    rule: Rule,
    *,
    images: int = 1,
    guarantee: Guarantee | None = None,
    list_name: str | None = None,
) -> list[OperatingPoint]:
    """All calibrated points of a rule with these photos, this guarantee and this list."""
    asks = RULES[rule].asks
    values = record.ks(rule, images=images, guarantee=guarantee, list_name=list_name)
    return [
        record.point(rule, **{asks: value}, images=images, guarantee=guarantee, list_name=list_name)
        for value in values
    ]


def _described(points: list[OperatingPoint]) -> list[Point]:
    return [
        Point.of(
            point,
            **point.estimates,
            small_classes=point.small_classes if RULES[point.rule].by_class else None,
        )
        for point in points
    ]
