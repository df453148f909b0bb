"""Evaluating a bundle: what its calibrated sets hold on photos it was not calibrated on."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration.intervals import mean_interval, wilson
from calibration.logits import ScoredSplit
from calibration.measure import Measurement
from calibration.metrics import shot_groups
from calibration.point import OperatingPoint
from calibration.record import BALANCED_RULES, COVERAGE_RULES, CalibrationRecord
from calibration.scored import ScoredBundle, scored_bundle
from models.progress import progress


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """What the sets of one rule at one value hold.

    Attributes:
        rule: Name of the rule.
        k: Mean set size asked for, or None for a coverage rule.
        level: Coverage asked for, or None.
        lambda_val: The threshold; None for ``top_k``.
        mean_set_size: Classes in a set, on average.
        mean_set_size_ci95: Its 95 % interval.
        hit_rate: Share of sets that hold the true class.
        hit_rate_ci95: Its 95 % interval.
        macro_hit_rate: The same class by class, then the mean over the classes there are.
        shots: The same over classes with few, a medium number and many training images; None
            where there are none or their counts are unknown.
        empty_rate: Share of sets without any class.
        rows: Photos.
    """

    rule: str
    k: float | None
    level: float | None
    lambda_val: float | None
    mean_set_size: float
    mean_set_size_ci95: tuple[float, float]
    hit_rate: float
    hit_rate_ci95: tuple[float, float]
    macro_hit_rate: float | None
    shots: dict[str, float | None]
    empty_rate: float
    rows: int

    def to_plain(self) -> dict[str, Any]:
        """For json: ``k`` or ``level``, whichever the rule takes."""
        absent = "level" if self.level is None else "k"
        return {name: value for name, value in vars(self).items() if name != absent}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a bundle does on a split.

    Attributes:
        bundle: Name and version.
        bundle_sha256: Which bundle exactly.
        calibration_id: Which calibration.
        split: Name of the split.
        data_sha256: Over its photos and class ids.
        rules: One result for each rule and value.
    """

    bundle: str
    bundle_sha256: str
    calibration_id: str
    split: str
    data_sha256: str
    rules: tuple[RuleResult, ...]

    def to_plain(self) -> dict[str, Any]:
        """For json."""
        return {**vars(self), "rules": [result.to_plain() for result in self.rules]}


def evaluate_bundle(
    path: str | Path, data: str, split: str = "test", *, device: str = "auto", workers: int = 1
) -> Evaluation:
    """Measure every rule at every value last given to ``--k`` and ``--coverage``.

    Args:
        path: The bundle's folder.
        data: What ``--data`` takes.
        split: Name of the split, or a part of it such as ``test:0.3-1``.
        device: ``auto``, ``cpu`` or ``cuda``.
        workers: Processes that score photos.

    Raises:
        DataError: The data cannot be opened, or photos cannot be read.
        BundleError: The bundle is damaged or not calibrated.
    """
    with scored_bundle(path, data, split, device=device, workers=workers) as scored:
        return evaluation_of(scored)


def evaluation_of(scored: ScoredBundle) -> Evaluation:
    """What :func:`evaluate_bundle` gives, for photos that were scored before."""
    bundle, record, scoring = scored.bundle, scored.record, scored.scoring
    results = measure_points(asked_points(record), scoring.logits, record)
    return Evaluation(
        bundle=f"{bundle.name} {bundle.version}",
        bundle_sha256=bundle.sha256,
        calibration_id=record.calibration_id,
        split=scoring.split,
        data_sha256=scoring.data_sha256,
        rules=tuple(results),
    )


def asked_points(record: CalibrationRecord) -> list[OperatingPoint]:
    """Every rule at every value last given to ``--k`` and ``--coverage`` that it has."""
    points = []
    for rule in record.rules:
        calibrated = record.ks(rule)
        if rule in COVERAGE_RULES:
            asked = [level for level in sorted(record.asked_coverage) if level in calibrated]
            points += [record.point(rule, coverage=level) for level in asked]
        else:
            asked = [k for k in sorted(record.asked_k) if k in calibrated]
            points += [record.point(rule, k=k) for k in asked]
    return points


def measure_points(
    points: Sequence[OperatingPoint], logits: ScoredSplit, record: CalibrationRecord
) -> list[RuleResult]:
    """Apply calibrated rules to the logits of a split, in one pass.

    Args:
        points: The rules; all of one head and kind of score.
        logits: Of the split.
        record: Says how many training images each class has.
    """
    groups = [list(group) for group in _alike(points)]
    measurements = [Measurement(group, record.classes) for group in groups]
    with progress(len(logits.labels), "measuring sets") as advance:
        for values, labels in logits.blocks(record.head):
            served = record.scores(values)
            for measurement in measurements:
                measurement.update(served, labels)
            advance(len(labels))
    results = {
        id(point): _result(point, measurement, index, record)
        for group, measurement in zip(groups, measurements, strict=True)
        for index, point in enumerate(group)
    }
    return [results[id(point)] for point in points]


def _alike(points: Iterable[OperatingPoint]) -> Iterable[list[OperatingPoint]]:
    """Points that one pass can measure together."""
    groups: dict[tuple[bool, bool], list[OperatingPoint]] = {}
    for point in points:
        kind = (point.rule in BALANCED_RULES, point.top_k is None)
        groups.setdefault(kind, []).append(point)
    return groups.values()


def _result(
    point: OperatingPoint, measurement: Measurement, index: int, record: CalibrationRecord
) -> RuleResult:
    rows, hits = measurement.rows, int(measurement.hits[index])
    size, deviation = measurement.mean_size(index), measurement.size_deviation(index)
    known = record.class_counts_from == "train"
    groups = shot_groups(record.class_counts) if known else {}
    return RuleResult(
        rule=point.rule,
        k=point.k,
        level=point.coverage,
        lambda_val=point.lambda_val,
        mean_set_size=size,
        mean_set_size_ci95=mean_interval(size, deviation, rows),
        hit_rate=hits / rows,
        hit_rate_ci95=wilson(hits, rows),
        macro_hit_rate=measurement.macro_hit_rate(index),
        shots={name: measurement.macro_hit_rate(index, mask) for name, mask in groups.items()},
        empty_rate=int(measurement.empty[index]) / rows,
        rows=rows,
    )
