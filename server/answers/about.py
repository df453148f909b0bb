"""What the server says about the model: the card, and the classes it knows."""

from collections.abc import Sequence
from typing import get_args

from calibration.guarantees import Guarantee
from calibration.record.record import CalibrationRecord, OperatingPoint
from calibration.rules import RULES
from models.classes import ClassInfo, ClassTable
from server.answers.names import taxon
from server.answers.pipeline import Pipeline
from server.schemas import (
    ClassEntry,
    ClassList,
    Limits,
    ModelCard,
    Point,
    Promised,
    Rule,
    RuleInfo,
    SeveralPhotos,
)


def model_card(pipeline: Pipeline, limits: Limits, *, feedback: bool = False) -> ModelCard:
    """Which model is served, what it is calibrated for, whether feedback is taken, and limits."""
    bundle, record = pipeline.bundle, pipeline.record
    return ModelCard(
        model=pipeline.model,
        created=bundle.created,
        classes=len(bundle.classes),
        image_size=bundle.preprocess.image_size,
        provider=pipeline.session.provider,
        head=record.head,
        score_kind=record.score_kind,
        default_rule="average_k",
        default_k=record.default_k,
        rules=[
            _rule(record, rule, limits.max_images)
            for rule in get_args(Rule)
            if rule in record.rules
        ],
        languages=sorted({language for item in bundle.classes for language in item.common_names}),
        feedback=feedback,
        limits=limits,
    )


def _rule(record: CalibrationRecord, rule: Rule, max_images: int) -> RuleInfo:
    points = _points(record, rule)
    promised = [_points(record, rule, guarantee=g) for name, g in record.promises if name == rule]
    several = [_points(record, rule, images=images) for images in range(2, max_images + 1)]
    return RuleInfo.of(
        points[0],
        small_classes=record.small_classes if RULES[rule].by_class else None,
        points=_shown(points),
        promised=[Promised.of(found[0], points=_shown(found)) for found in promised],
        several=[
            SeveralPhotos.of(found[0].table, points=_shown(found)) for found in several if found
        ],
    )


def _points(
    record: CalibrationRecord, rule: Rule, *, images: int = 1, guarantee: Guarantee | None = None
) -> list[OperatingPoint]:
    """All that a rule is calibrated for with this number of photos and this guarantee."""
    values = record.ks(rule, images=images, guarantee=guarantee)
    name = RULES[rule].asks
    return [
        record.point(rule, **{name: value}, images=images, guarantee=guarantee) for value in values
    ]


def _shown(points: list[OperatingPoint]) -> list[Point]:
    return [
        Point.of(
            point,
            **point.estimates,
            small_classes=point.small_classes if RULES[point.rule].by_class else None,
        )
        for point in points
    ]


def class_entry(item: ClassInfo, languages: Sequence[str]) -> ClassEntry:
    """One class, with the names of the first of ``languages`` that has any."""
    return ClassEntry(
        class_id=item.id, taxon=taxon(item, languages), training_count=item.training_count
    )


def find_classes(
    classes: ClassTable,
    languages: Sequence[str],
    *,
    q: str | None = None,
    limit: int | None = None,
) -> ClassList:
    """The classes whose id or any name, in any language, contains ``q``."""
    found = [item for item in classes if q is None or _matches(item, q.casefold())]
    return ClassList(
        total=len(found), classes=[class_entry(item, languages) for item in found[:limit]]
    )


def _matches(item: ClassInfo, wanted: str) -> bool:
    names = [item.id, item.scientific_name, item.genus or "", item.family or ""]
    names += [name for listed in item.common_names.values() for name in listed]
    return any(wanted in name.casefold() for name in names)
