"""The model card."""

from collections.abc import Iterator
from typing import get_args

from florilege.calibration.guarantees import Guarantee
from florilege.calibration.record.operating_point import OperatingPoint
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.rules import RULES
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.restriction import ClassLists
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


def describe_model(
    pipeline: Pipeline,
    limits: Limits,
    *,
    feedback: bool = False,
    feedback_photos: bool = False,
    feedback_licence: str | None = None,
) -> ModelCard:
    """The model, what it is calibrated for, whether feedback is accepted, and the limits."""
    bundle, record = pipeline.bundle, pipeline.record
    return ModelCard(
        model=pipeline.model,
        created=bundle.manifest.created,
        classes=len(bundle.classes),
        image_size=bundle.preprocess.image_size,
        provider=pipeline.session.provider,
        head=record.head,
        score_kind=record.score_kind,
        default_rule="average_k",
        default_k=record.default_k,
        selection=record.selection,
        rules=[
            _rule(record, rule, limits.max_images, pipeline.lists)
            for rule in get_args(Rule)
            if rule in record.rules
        ],
        lists=[
            OfferedList(
                name=name,
                classes=len(each.infos),
                calibrated=each.calibrated_as is not None,
            )
            for name, each in sorted(pipeline.lists.by_name.items())
        ],
        languages=sorted({language for item in bundle.classes for language in item.common_names}),
        feedback=feedback,
        feedback_photos=feedback_photos,
        feedback_licence=feedback_licence if feedback_photos else None,
        limits=limits,
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
