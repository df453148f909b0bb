"""Evaluating a bundle: what its sets hold on photos it was not calibrated on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from calibration.guarantees import Guarantee
from calibration.measurement import Measurement
from calibration.metrics import shot_groups
from calibration.offline.outputs import BundleOutputs, bundle_outputs
from calibration.offline.tabulate import row_of
from calibration.record.point import OperatingPoint
from calibration.record.record import CalibrationRecord
from calibration.record.tables import Row
from calibration.rules import RULES
from models.progress import progress


class Evaluated(NamedTuple):
    """What the sets of one calibrated threshold hold on other photos.

    Attributes:
        point: The threshold, and what was measured at its calibration.
        row: What was measured here.
        shots: ``row.macro_hit_rate`` over classes with few, a medium number and many training
            images; None where there are none, empty where their counts are unknown.
    """

    point: OperatingPoint
    row: Row
    shots: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a bundle does on a split.

    Attributes:
        bundle: Name and version.
        data_sha256: Over the photos of the split and their class ids.
        rows: Its photos.
        rules: One result for each rule and value.
        guaranteed: The same for guarantees that a rule gives only when asked for them.
    """

    bundle: str
    bundle_sha256: str
    calibration_id: str
    split: str
    data_sha256: str
    rows: int
    rules: tuple[Evaluated, ...]
    guaranteed: tuple[Evaluated, ...]

    def to_plain(self) -> dict[str, Any]:
        """For json."""
        rules = [_plain(result, self.rows) for result in self.rules]
        guaranteed = [_plain(result, self.rows) for result in self.guaranteed]
        facts = {name: value for name, value in vars(self).items() if name != "rows"}
        return {**facts, "rules": rules, "guaranteed": guaranteed}


def evaluate_bundle(
    path: str | Path, data: str, split: str = "test", *, device: str = "auto"
) -> Evaluation:
    """Measure every rule at every value last given to ``--k`` and ``--coverage``.

    Arguments and errors are those of :func:`calibration.offline.outputs.bundle_outputs`.
    """
    with bundle_outputs(path, data, split, device=device) as found:
        return evaluation_of(found)


def evaluation_of(found: BundleOutputs) -> Evaluation:
    """What :func:`evaluate_bundle` returns, from outputs that are there already."""
    bundle, record, outputs, _ = found
    asked_for, promised = asked_points(record), promised_points(record)
    points = [*asked_for, *promised]
    measurement = Measurement(points, record.classes)
    with progress(len(outputs.labels), "measuring sets") as advance:
        for (logits,), labels in outputs.blocks(record.head):
            measurement.update(record.scores(logits), labels)
            advance(len(labels))
    known = record.class_counts_from == "train"
    groups = shot_groups(record.class_counts) if known else {}
    results = [
        Evaluated(
            point,
            row_of(measurement, index, asked(point)[1]),
            {name: measurement.macro_hit_rate(index, mask) for name, mask in groups.items()},
        )
        for index, point in enumerate(points)
    ]
    return Evaluation(
        bundle=f"{bundle.name} {bundle.version}",
        bundle_sha256=bundle.sha256,
        calibration_id=record.calibration_id,
        split=outputs.split,
        data_sha256=outputs.data_sha256,
        rows=len(outputs.labels),
        rules=tuple(results[: len(asked_for)]),
        guaranteed=tuple(results[len(asked_for) :]),
    )


def asked_points(record: CalibrationRecord) -> list[OperatingPoint]:
    """Every rule, at the values last given to ``--k`` and ``--coverage`` that it has."""
    return [point for rule in record.rules for point in _points(record, rule, None)]


def promised_points(record: CalibrationRecord) -> list[OperatingPoint]:
    """The same for guarantees that a rule gives only when asked for them."""
    return [point for promise in record.promises for point in _points(record, *promise)]


def asked(point: OperatingPoint) -> tuple[str, float]:
    """What a threshold was asked for: its name in JSON, ``k`` or ``level``, and the value."""
    if point.k is not None:
        return "k", point.k
    assert point.coverage is not None  # it is one of the two
    return "level", point.coverage


def _points(
    record: CalibrationRecord, rule: str, guarantee: Guarantee | None
) -> list[OperatingPoint]:
    """A rule with a guarantee at the values asked for, ascending."""
    calibrated = record.ks(rule, guarantee=guarantee)
    if RULES[rule].asks == "coverage":
        levels = [level for level in sorted(record.asked_coverage) if level in calibrated]
        return [record.point(rule, coverage=level, guarantee=guarantee) for level in levels]
    ks = [k for k in sorted(record.asked_k) if k in calibrated]
    return [record.point(rule, k=k, guarantee=guarantee) for k in ks]


def _plain(result: Evaluated, rows: int) -> dict[str, Any]:
    point, row, shots = result
    name, value = asked(point)
    return {
        "rule": point.rule,
        name: value,
        "guarantee": point.guarantee,
        "lambda_val": row.lambda_val,
        **row.figures("evaluate"),
        "shots": shots,
        "rows": rows,
    }
