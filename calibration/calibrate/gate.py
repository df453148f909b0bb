"""Two bundles on the same photos, compared rule by rule, and a gate that stops the worse one."""

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import numpy as np
import yaml
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from florilege.calibration.calibrate.evaluate import requested_points
from florilege.calibration.calibrate.photo_outputs import BundleOutputs, photos_for
from florilege.calibration.comparison import Change, Comparison, compare
from florilege.calibration.measurement import Measurement
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.operating_point import NotCalibrated, OperatingPoint
from florilege.calibration.record.record_file import read_record
from florilege.errors import DataError, UsageError
from florilege.models.bundle import open_bundle
from florilege.models.session import Session
from florilege.settings import complaint

Proof = Literal["worse", "no_worse"]
Sets = tuple[NDArray[np.bool_], NDArray[np.int64]]
"""Whether each set holds the truth, and its size, each ``(rows,)``."""


class Gate(BaseModel):
    """What a new bundle may lose; the content of ``gate.yaml``.

    With the proof ``worse`` it closes if the whole interval lies beyond what is allowed, so each of
    the two figures stops an equally good bundle in about 1 of 40 cases. With ``no_worse`` it closes
    unless the whole interval lies within, so a bundle worse than allowed passes in about 1 of 40
    cases at most; with few photos it stops good ones too.
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
        return low > allowed if self.proof == "worse" else high > allowed

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
    new_points, old_points = [each for each, _ in common], [each for _, each in common]
    sets = zip(new_points, _sets(old, old_points), _sets(new, new_points), strict=True)
    return [compare(before, after, rule=_point_name(point)) for point, before, after in sets]


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


def _sets(measured: BundleOutputs, points: Sequence[OperatingPoint]) -> list[Sets]:
    """What each rule does on each photo, in one pass."""
    record = measured.record
    measurement = Measurement(points, record.classes, watched=range(len(points)))
    for (logits,), labels in measured.outputs.blocks(record.head):
        measurement.update(record.scores(logits), labels)
    sizes, hits = measurement.row_by_row()
    return list(zip(hits.T, sizes.T, strict=True))


def _shown(change: Change) -> str:
    low, high = change.ci95
    return f"{change.difference:+.4f} ({low:+.4f} to {high:+.4f})"
