"""Evaluating a bundle: what its calibrated sets hold on photos it was not calibrated on."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from calibration.guarantees import Guarantee
from calibration.intervals import mean_interval, wilson
from calibration.measurement import Measurement, together
from calibration.metrics import shot_groups
from calibration.offline.logits import Scoring
from calibration.offline.scored import ScoredBundle, scored_bundle
from calibration.record.point import OperatingPoint
from calibration.record.record import CalibrationRecord
from calibration.rules import RULES
from models.progress import progress


@dataclass(frozen=True, kw_only=True)
class RuleResult:
    """What the sets of one rule at one value hold.

    Attributes:
        rule: Name of the rule.
        k: Mean set size asked for, or None for a coverage rule.
        level: Coverage asked for, or None.
        guarantee: What was promised about photos like these; None for nothing.
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
    guarantee: Guarantee | None
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
        guaranteed: The same with the guarantees that a rule has only where it is asked for them.
    """

    bundle: str
    bundle_sha256: str
    calibration_id: str
    split: str
    data_sha256: str
    rules: tuple[RuleResult, ...]
    guaranteed: tuple[RuleResult, ...]

    def to_plain(self) -> dict[str, Any]:
        """For json."""
        rules = [result.to_plain() for result in self.rules]
        guaranteed = [result.to_plain() for result in self.guaranteed]
        return {**vars(self), "rules": rules, "guaranteed": guaranteed}


def evaluate_bundle(
    path: str | Path, data: str, split: str = "test", *, device: str = "auto"
) -> Evaluation:
    """Measure every rule at every value last given to ``--k`` and ``--coverage``.

    Args:
        path: The bundle's folder.
        data: What ``--data`` takes.
        split: Name of the split, or a part of it such as ``test:0.3-1``.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        DataError: The data cannot be opened, or photos cannot be read.
        BundleError: The bundle is damaged or not calibrated.
    """
    with scored_bundle(path, data, split, device=device) as scored:
        return evaluation_of(scored)


def evaluation_of(scored: ScoredBundle) -> Evaluation:
    """What :func:`evaluate_bundle` gives, for photos that were scored before."""
    bundle, record, scoring = scored.bundle, scored.record, scored.scoring
    asked, promised = asked_points(record), promised_points(record)
    results = measure_points([*asked, *promised], scoring, record)
    return Evaluation(
        bundle=f"{bundle.name} {bundle.version}",
        bundle_sha256=bundle.sha256,
        calibration_id=record.calibration_id,
        split=scoring.split,
        data_sha256=scoring.data_sha256,
        rules=tuple(results[: len(asked)]),
        guaranteed=tuple(results[len(asked) :]),
    )


def asked_points(record: CalibrationRecord) -> list[OperatingPoint]:
    """Every rule at every value last given to ``--k`` and ``--coverage`` that it has."""
    return [point for rule in record.rules for point in _points(record, rule, None)]


def promised_points(record: CalibrationRecord) -> list[OperatingPoint]:
    """The same for the guarantees that a rule has only where it is asked for them."""
    return [point for promise in record.promises for point in _points(record, *promise)]


def _points(
    record: CalibrationRecord, rule: str, guarantee: Guarantee | None
) -> list[OperatingPoint]:
    calibrated = record.ks(rule, guarantee=guarantee)
    if RULES[rule].asks == "coverage":
        levels = [level for level in sorted(record.asked_coverage) if level in calibrated]
        return [record.point(rule, coverage=level, guarantee=guarantee) for level in levels]
    ks = [k for k in sorted(record.asked_k) if k in calibrated]
    return [record.point(rule, k=k, guarantee=guarantee) for k in ks]


def measure_points(
    points: Sequence[OperatingPoint], scoring: Scoring, record: CalibrationRecord
) -> list[RuleResult]:
    """Apply calibrated rules to the logits of a split, in one pass.

    Args:
        points: The rules; all of one head and kind of score.
        scoring: What the network says about the split.
        record: Says how many training images each class has.
    """
    measurements = together(points, record.classes)
    with progress(len(scoring.labels), "measuring sets") as advance:
        for (values,), labels in scoring.outputs.blocks(record.head):
            served = record.scores(values)
            for measurement in measurements:
                measurement.update(served, labels)
            advance(len(labels))
    found = {
        id(rule): (measurement, index)
        for measurement in measurements
        for index, rule in enumerate(measurement.rules)
    }
    return [_result(point, *found[id(point)], record) for point in points]


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
        guarantee=point.guarantee,
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
