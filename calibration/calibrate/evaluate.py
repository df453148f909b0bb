"""Evaluate a bundle: measure its sets on photos that it was not calibrated on."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.list_thresholds import listed
from florilege.calibration.calibrate.photo_outputs import (
    BundleOutputs,
    SplitOutputs,
    bundle_outputs,
)
from florilege.calibration.calibrate.photo_overlap import (
    PhotoOverlap,
    overlap_warnings,
    photo_overlap,
)
from florilege.calibration.calibrate.threshold_tables import row_of
from florilege.calibration.guarantees import Guarantee
from florilege.calibration.measurement import Measurement
from florilege.calibration.metrics import shot_groups
from florilege.calibration.photo_groups import count_plants
from florilege.calibration.record.operating_point import OperatingPoint
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.record.schema import CalibratedList, Row
from florilege.calibration.rules import RULES
from florilege.progress import progress


class Evaluated(NamedTuple):
    """The figures of one calibrated threshold on other photos.

    ``shots`` are ``row.macro_hit_rate`` over classes with few, a medium number and many training
    images; None where there are none, empty where their counts are unknown.
    """

    point: OperatingPoint  # the threshold, with its figures on the calibration photos
    row: Row  # its figures on these photos
    shots: dict[str, float | None]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """The figures of a bundle on a split."""

    bundle: str  # name and version
    bundle_sha256: str
    calibration_id: str
    split: str
    data_sha256: str  # hash of the photos of the split and their class ids
    rows: int  # number of its photos
    observations: int | None  # plants that they show; None where the data name none
    overlap: PhotoOverlap  # how many of its photos trained or chose the network
    rules: tuple[Evaluated, ...]  # one result for each rule and value
    guaranteed: tuple[Evaluated, ...]  # the same for guarantees that a rule gives only on request
    lists: tuple["_ListMeasurement", ...]

    def to_plain(self) -> dict[str, Any]:
        """The evaluation as plain data for JSON."""
        rules = [_plain(result, self.rows) for result in self.rules]
        guaranteed = [_plain(result, self.rows) for result in self.guaranteed]
        lists = [
            {
                "list": each.region.name,
                "classes": len(each.region.classes),
                "rows": each.rows,
                "rules": [_plain(result, each.rows) for result in each.rules],
            }
            for each in self.lists
        ]
        omitted = ("rows", "overlap")
        fields = {name: value for name, value in vars(self).items() if name not in omitted}
        return {
            **fields,
            "train_photos": self.overlap.train_photos,
            "selection_photos": self.overlap.selection_photos,
            "warnings": overlap_warnings(self.overlap, self.rows),
            "rules": rules,
            "guaranteed": guaranteed,
            "lists": lists,
        }


def evaluate_bundle(
    path: str | Path, data: str, split: str = "test", *, device: str = "auto"
) -> Evaluation:
    """Measure every rule at the values last given to ``--k`` and ``--coverage``.

    Arguments and errors are those of
    :func:`florilege.calibration.calibrate.photo_outputs.bundle_outputs`.
    """
    with bundle_outputs(path, data, split, device=device) as measured:
        return evaluate_outputs(measured)


def evaluate_outputs(measured: BundleOutputs) -> Evaluation:
    """Measure every rule like :func:`evaluate_bundle`, on outputs that are already computed."""
    bundle, record, outputs, _ = measured
    requested, promised = requested_points(record), promised_points(record)
    points = [*requested, *promised]
    measurement = Measurement(points, record.classes, plants=outputs.plants)
    lists = [_ListMeasurement(record, each, outputs) for each in record.lists]
    with progress(len(outputs.labels), "measuring sets") as advance:
        for (logits,), labels in outputs.blocks(record.head):
            measurement.update(record.scores(logits), labels)
            for each in lists:
                each.update(logits, labels)
            advance(len(labels))
    trained_counts = record.class_counts_from == "train"
    groups = shot_groups(record.class_counts) if trained_counts else {}
    results = _results(measurement, points, groups)
    return Evaluation(
        bundle=f"{bundle.manifest.name} {bundle.manifest.version}",
        bundle_sha256=bundle.sha256,
        calibration_id=record.calibration_id,
        split=outputs.split,
        data_sha256=outputs.data_sha256,
        rows=len(outputs.labels),
        observations=count_plants(outputs.plants),
        overlap=photo_overlap(bundle, outputs.split, outputs.photos),
        rules=tuple(results[: len(requested)]),
        guaranteed=tuple(results[len(requested) :]),
        lists=tuple(lists),
    )


def requested_points(
    record: CalibrationRecord, *, list_name: str | None = None
) -> list[OperatingPoint]:
    """The threshold of every rule at the values last given to ``--k`` and ``--coverage``.

    With ``list_name`` these are the thresholds of a list.
    """
    return [point for rule in record.rules for point in _points(record, rule, None, list_name)]


def promised_points(record: CalibrationRecord) -> list[OperatingPoint]:
    """The same for guarantees that a rule gives only on request."""
    return [point for promise in record.promises for point in _points(record, *promise)]


def _points(
    record: CalibrationRecord, rule: str, guarantee: Guarantee | None, list_name: str | None = None
) -> list[OperatingPoint]:
    """The thresholds of a rule with a guarantee at the requested values, ascending."""
    asks = RULES[rule].asks
    calibrated = record.ks(rule, guarantee=guarantee, list_name=list_name)
    values = sorted(record.asked_coverage if asks == "coverage" else record.asked_k)
    conditions: dict[str, Any] = {"guarantee": guarantee, "list_name": list_name}
    return [
        record.point(rule, **conditions, **dict[str, Any]({asks: value}))
        for value in values
        if value in calibrated
    ]


class _ListMeasurement:
    """Measures the photos of a list's classes, scored like requests for the list.

    Attributes:
        region: The list.
        rows: Number of photos of its classes.
    """

    def __init__(
        self, record: CalibrationRecord, region: CalibratedList, outputs: SplitOutputs
    ) -> None:
        self._record, self.region = record, region
        self._classes = np.array(region.classes)
        among = np.isin(outputs.labels, self._classes)
        self.rows = int(among.sum())
        self._points = requested_points(record, list_name=region.name) if self.rows else []
        plants = None if outputs.plants is None else outputs.plants[among]
        self._measurement = Measurement(self._points, len(region.classes), plants=plants)

    def update(self, logits: NDArray[np.float32], labels: NDArray[np.int64]) -> None:
        list_logits, places = listed(self._classes, logits, labels)
        if self._points and len(list_logits):
            self._measurement.update(self._record.scores(list_logits), places)

    @property
    def rules(self) -> list[Evaluated]:
        """One result for each rule and value; empty without photos."""
        return _results(self._measurement, self._points, {})


def _results(
    measurement: Measurement,
    points: Sequence[OperatingPoint],
    groups: Mapping[str, NDArray[np.bool_]],
) -> list[Evaluated]:
    return [
        Evaluated(
            point,
            row_of(measurement, index, point.requested_value[1], point.table.score_kind),
            {name: measurement.macro_hit_rate(index, mask) for name, mask in groups.items()},
        )
        for index, point in enumerate(points)
    ]


def _plain(result: Evaluated, rows: int) -> dict[str, Any]:
    point, row, shots = result
    name, value = point.requested_value
    return {
        "rule": point.rule,
        name: value,
        "guarantee": point.guarantee,
        "lambda_val": row.lambda_val,
        **row.figures("evaluate"),
        "shots": shots,
        "rows": rows,
    }
