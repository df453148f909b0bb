"""Two bundles on the same photos, compared rule by rule, and a gate that stops the worse one."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from florilege.calibration.calibrate.evaluate import requested_points
from florilege.calibration.calibrate.photo_outputs import BundleOutputs, photos_for
from florilege.calibration.comparison import Change, Comparison, ThresholdOrigin, compare
from florilege.calibration.intervals import Z95
from florilege.calibration.measurement import Measurement
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.operating_point import NotCalibrated, OperatingPoint
from florilege.calibration.record.record_file import read_record
from florilege.calibration.rules import RULES
from florilege.calibration.sets import size_bounds
from florilege.errors import DataError, UsageError
from florilege.models.bundle import open_bundle
from florilege.models.session import Session
from florilege.settings import complaint

Proof = Literal["worse", "no_worse"]
Sets = tuple[NDArray[np.bool_], NDArray[np.int64]]
"""Whether each set holds the truth, and its size, each ``(rows,)``."""
WIDER = 2.241402727604947 / Z95
"""A 97.5 % interval is so many times as wide as a 95 % one."""
NEARBY = (0.8, 1.25)
"""Times a threshold: between these two, hits for each class more are counted."""


class Gate(BaseModel):
    """What a new bundle may lose; the content of ``gate.yaml``.

    With the proof ``worse`` it closes if the whole 97.5 % interval of a figure lies beyond what is
    allowed, so both figures together stop an equally good bundle in about 1 of 40 cases at most.
    With ``no_worse`` it closes unless both 95 % intervals lie within, so a bundle worse than
    allowed passes in about 1 of 40 cases at most; with few photos it stops good ones too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    hit_rate_loss: float = Field(default=0.0, ge=0)  # allowed loss, 0.01 for one point
    size_growth: float = Field(default=0.0, ge=0)  # allowed growth of the mean set size, in classes
    proof: Proof = "worse"
    min_rows: int = Field(default=1, ge=1)  # with fewer photos it is closed whatever they say

    def reasons(self, comparison: Comparison) -> list[str]:
        """Why the new bundle does not pass, one sentence each; empty where it does."""
        what = f"{comparison.rule}: " if comparison.rule else ""
        if comparison.rows < self.min_rows:
            return [f"{what}{comparison.rows:,} photos, the gate needs {self.min_rows:,}"]
        hits, size = comparison.hit_rate, comparison.size
        reasons = []
        if self._closed((-hits.ci95[1], -hits.ci95[0]), self.hit_rate_loss):
            change = f"{hits.old:.4f} -> {hits.new:.4f}, change {_shown(hits)}"
            reasons.append(f"{what}hit rate {change}, {self._words(self.hit_rate_loss, 'loss')}")
        if self._closed(size.ci95, self.size_growth):
            change = f"{size.old:.3f} -> {size.new:.3f}, change {_shown(size)}"
            growth = self._words(self.size_growth, "growth")
            reasons.append(f"{what}mean set size {change}, {growth}")
        return reasons

    def _closed(self, worsening: tuple[float, float], allowed: float) -> bool:
        low, high = worsening
        margin = (high - low) / 2 * (WIDER - 1)  # either figure may close it: half the risk each
        return low - margin > allowed if self.proof == "worse" else high > allowed

    def _words(self, allowed: float, what: str) -> str:
        proven = "is certain" if self.proof == "worse" else "cannot be ruled out"
        return f"a {what} of more than the {allowed:g} allowed {proven}"


def read_gate(path: str | Path) -> Gate:
    """The gate in a yaml file; what the file leaves out keeps its default.

    Raises:
        UsageError: The file cannot be read, is not yaml, or holds something other than a gate.
    """
    try:
        content = yaml.safe_load(Path(path).read_text())
        return Gate(**({} if content is None else content))
    except ValidationError as error:
        raise UsageError(f"gate file {path}: {complaint(error, Gate, {})}") from error
    except TypeError as error:
        allowed = ", ".join(Gate.model_fields)
        raise UsageError(f"gate file {path}: some of {allowed} are expected by name") from error
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"gate file {path} cannot be read: {error}") from error


def check_comparable(
    path: str | Path,
    against: str | Path,
    data: str,
    split: str,
    *,
    device: str = "auto",
    gated: bool = False,
) -> None:
    """Refuse two bundles that cannot be compared, before any photo is scored.

    Arguments are those of :func:`florilege.calibration.calibrate.photo_outputs.bundle_outputs`, for
    the new bundle and the folder of the old one; ``gated`` says whether a gate looks at
    ``average_k`` at the new bundle's default K.

    Raises:
        DataError: The data cannot be opened, or hold a class that one of the two lacks.
        BundleError: A bundle is damaged or not calibrated.
        UsageError: The two have no rule and value in common, or not that of the gate.
    """
    new, old = open_bundle(path), open_bundle(against)
    record, older = read_record(new), read_record(old)
    pairs = _common_points(record, older)
    if not pairs:
        raise UsageError(f"{against} is calibrated for none of the rules and values of {path}")
    gated_name = _point_name(record.point("average_k"))
    if gated and _point_name(pairs[0][0]) != gated_name:
        raise UsageError(f"--gate judges {gated_name}, and {against} is not calibrated for it")
    photos_for(new, data, split)
    try:
        photos_for(old, data, split)
    except DataError as error:
        raise DataError(f"{against} cannot be compared on these photos: {error}") from error
    Session(old, device=device, runtime=older.measured.served_by)


def compare_outputs(new: BundleOutputs, old: BundleOutputs) -> list[Comparison]:
    """Compare the sets of two calibrated bundles on the same photos.

    Returns:
        One comparison for each rule and value that both can answer: first ``average_k`` at the new
        bundle's default K, which a gate looks at, if the old one has it; then everything last
        asked of the new one.

    Raises:
        DataError: The two were shown different photos.
    """
    if new.outputs.data_sha256 != old.outputs.data_sha256:
        raise DataError("the two bundles were shown different photos: did the data change?")
    common = _common_points(new.record, old.record)
    points = [each for each, _ in common]
    before, after = _measured(old, [each for _, each in common]), _measured(new, points)
    return [
        compare(
            last.sets,
            now.sets,
            rule=_point_name(point),
            data_sha256=new.outputs.data_sha256,
            thresholds=(last.origin, now.origin),
            plants=new.outputs.plants,
            growth=(now.bounds[0] - last.bounds[1], now.bounds[1] - last.bounds[0]),
        )
        for point, last, now in zip(points, before, after, strict=True)
    ]


def _common_points(
    record: CalibrationRecord, older: CalibrationRecord
) -> list[tuple[OperatingPoint, OperatingPoint]]:
    """Every point last asked of ``record``, with the same point of ``older`` where it has one."""
    points = [record.point("average_k"), *requested_points(record)]
    pairs = dict[str, tuple[OperatingPoint, OperatingPoint]]()
    for point in points:
        with suppress(NotCalibrated):
            same = older.point(point.rule, k=point.k, coverage=point.coverage)
            pairs.setdefault(_point_name(point), (point, same))
    return list(pairs.values())


def _point_name(point: OperatingPoint) -> str:
    name, value = point.requested_value
    return f"{point.rule} {'k' if name == 'k' else 'coverage'}={value:g}"


class _Measured(NamedTuple):
    """What a bundle does by one rule."""

    sets: Sets
    origin: ThresholdOrigin
    bounds: tuple[int, int]  # of a set's size


def _measured(bundle: BundleOutputs, points: Sequence[OperatingPoint]) -> list[_Measured]:
    """What each rule does on each photo, in one pass."""
    record, count = bundle.record, len(points)
    nearby = [_with_threshold_times(factor, point) for factor in NEARBY for point in points]
    measurement = Measurement([*points, *nearby], record.classes, watched=range(count))
    for (logits,), labels in bundle.outputs.blocks(record.head):
        measurement.update(record.scores(logits), labels)
    sizes, hits = measurement.row_by_row()
    return [
        _Measured(
            sets=(hits[:, place], sizes[:, place]),
            origin=ThresholdOrigin(
                data_sha256=record.measured.data_sha256,
                rows=point.rows,
                fixes=_fixes(point),
                hits_per_class=_hits_per_class(measurement, place + count, place + 2 * count),
            ),
            bounds=size_bounds(point, record.classes, record.score_kind),
        )
        for place, point in enumerate(points)
    ]


def _with_threshold_times(factor: float, point: OperatingPoint) -> OperatingPoint:
    if point.class_thresholds is not None:
        return replace(point, class_thresholds=factor * point.class_thresholds)
    if point.lambda_val is None:
        return point
    return replace(point, lambda_val=factor * point.lambda_val)


def _fixes(point: OperatingPoint) -> Literal["sizes", "hits"] | None:
    """What was as asked for, on average, on the photos that chose the threshold."""
    if point.top_k is not None:
        return None
    return "hits" if RULES[point.rule].asks == "coverage" else "sizes"


def _hits_per_class(measurement: Measurement, lower: int, higher: int) -> float:
    """Hits for each class more between two thresholds, given by their places."""
    classes = measurement.mean_size(lower) - measurement.mean_size(higher)
    hits = int(measurement.hits[lower] - measurement.hits[higher]) / measurement.rows
    return hits / classes if classes else 0.0


def _shown(change: Change) -> str:
    low, high = change.ci95
    return f"{change.difference:+.4f} ({low:+.4f} to {high:+.4f})"
