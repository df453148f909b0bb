"""Compare two bundles on the same photos, rule by rule, with a gate that stops a worse one.

Two runtimes of one bundle are compared too: whether their sets are the same, photo by photo.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from florilege.calibration.calibrate.photo_outputs import BundleOutputs, photos_for
from florilege.calibration.calibrate.score_sources import LabelledPhotos, Source
from florilege.calibration.calibrate.threshold_tables import measure
from florilege.calibration.comparison import Comparison, ThresholdOrigin, compare
from florilege.calibration.intervals import Z95
from florilege.calibration.record import (
    CalibrationRecord,
    Measurement,
    NotCalibrated,
    OperatingPoint,
)
from florilege.calibration.record.record_file import read_record
from florilege.calibration.rules import RULES
from florilege.calibration.sets import Bools, Ints
from florilege.calibration.view import PLAIN
from florilege.errors import DataError, UsageError
from florilege.models.bundle import open_bundle
from florilege.models.session import Session
from florilege.settings import complaint

_WIDTH_RATIO = 2.241402727604947 / Z95  # of a 97.5 % interval and a 95 % interval
_FIXED_MEANS: Mapping[str, Literal["sizes", "hits"]] = {"k": "sizes", "coverage": "hits"}
NEARBY = (0.8, 1.25)  # factors of a threshold that show the hits per additional class
_MOST_HIT_RATE_LOST = 0.002  # by another runtime, as a share of the photos; any gain is allowed
_MOST_SIZE_CHANGE = 0.01  # in either direction, as a share of the original mean set size
_LEAST_NESTED = 0.99  # least share of the photos whose two sets are equal, or one within the other


class Gate(BaseModel):
    """The losses that a new bundle may have; the content of ``gate.yaml``.

    With the proof ``worse`` a bundle fails if the whole 97.5 % interval of a figure lies beyond the
    allowed loss, so an equally good bundle fails in about 1 of 40 cases at most. With ``no_worse``
    it fails unless both 95 % intervals lie within the allowed loss, so a bundle worse than allowed
    passes in about 1 of 40 cases at most; with few photos good bundles fail too.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    hit_rate_loss: float = Field(default=0.0, ge=0)  # allowed loss, 0.01 for one point
    size_growth: float = Field(default=0.0, ge=0)  # allowed growth of the mean set size, in classes
    proof: Literal["worse", "no_worse"] = "worse"
    min_rows: int = Field(default=1, ge=1)  # with fewer photos the bundle fails

    @classmethod
    def read(cls, path: str | Path) -> "Gate":
        """Read a gate from a YAML file; a missing field keeps its default.

        Raises:
            UsageError: The file cannot be read, is not YAML, or is not a gate.
        """
        try:
            content = yaml.safe_load(Path(path).read_text("utf-8"))
            return cls(**({} if content is None else content))
        except ValidationError as error:
            raise UsageError(f"gate file {path}: {complaint(error, cls)}") from error
        except TypeError as error:
            fields = ", ".join(cls.model_fields)
            raise UsageError(f"gate file {path}: must be a mapping with any of {fields}") from error
        except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
            raise UsageError(f"gate file {path} cannot be read: {error}") from error

    def reasons(self, comparison: Comparison) -> list[str]:
        """Why the new bundle fails, one sentence each; empty if it passes."""
        prefix = f"{comparison.rule}: " if comparison.rule else ""
        if comparison.rows < self.min_rows:
            return [f"{prefix}{comparison.rows:,} photos, the gate needs {self.min_rows:,}"]
        hits, size = comparison.hit_rate, comparison.size
        loss = (-hits.ci95[1], -hits.ci95[0])
        proven = "is certain" if self.proof == "worse" else "cannot be ruled out"
        return [
            f"{prefix}{name} {change.old:.{digits}f} -> {change.new:.{digits}f}, change "
            f"{change.difference:+.4f} ({change.ci95[0]:+.4f} to {change.ci95[1]:+.4f}), a {what} "
            f"of more than the allowed {allowed:g} {proven}"
            for name, digits, change, what, bounds, allowed in (
                ("hit rate", 4, hits, "loss", loss, self.hit_rate_loss),
                ("mean set size", 3, size, "growth", size.ci95, self.size_growth),
            )
            if self._fails(bounds, allowed)
        ]

    def _fails(self, loss: tuple[float, float], allowed: float) -> bool:
        low, high = loss
        # Half the risk for each of two figures: of each a 97.5 % interval counts.
        margin = (high - low) / 2 * (_WIDTH_RATIO - 1)
        return low - margin > allowed if self.proof == "worse" else high > allowed


def check_comparable(
    path: str | Path,
    against: str | Path,
    data: str,
    split: str,
    *,
    device: str = "auto",
    gated: bool = False,
) -> None:
    """Check that the bundle ``path`` can be compared with an older one, before any photo is scored.

    ``gated`` says whether a gate compares ``average_k`` at the new bundle's default K. The errors
    are a DataError, a BundleError, or a UsageError where the two share too little.
    """
    new, old = open_bundle(path), open_bundle(against)
    record, older = read_record(new), read_record(old)
    pairs = _common_points(record, older)
    if not pairs:
        raise UsageError(f"{against} shares no calibrated rule and value with {path}")
    gated_name = _point_name(record.default_point)
    if gated and gated_name not in pairs:
        raise UsageError(f"--gate compares {gated_name}, but {against} is not calibrated for it")
    photos_for(new, data, split)
    try:
        photos_for(old, data, split)
    except DataError as error:
        raise DataError(f"{against} cannot be compared on these photos: {error}") from error
    # Opened only to fail now, not after the new bundle has scored every photo.
    Session(old, device=device, runtime=older.measured.served_by)


def compare_outputs(new: BundleOutputs, old: BundleOutputs) -> list[Comparison]:
    """Compare the sets of two calibrated bundles on the same photos.

    There is one comparison for each rule and value that both are calibrated for. The first is
    ``average_k`` at the new bundle's default K, which a gate uses, if the old bundle has it. The
    others are at the values last requested of the new bundle.

    Raises:
        DataError: The outputs are of different photos.
    """
    if new.outputs.data_sha256 != old.outputs.data_sha256:
        raise DataError("the two bundles were measured on different photos: did the data change?")
    pairs = _common_points(new.record, old.record)
    new_results = _measure(new, [point for point, _ in pairs.values()])
    old_results = _measure(old, [point for _, point in pairs.values()])
    return [
        compare(
            before.sets,
            after.sets,
            rule=name,
            data_sha256=new.outputs.data_sha256,
            thresholds=(before.origin, after.origin),
            observations=new.outputs.observations,
            growth=(after.bounds[0] - before.bounds[1], after.bounds[1] - before.bounds[0]),
        )
        for name, before, after in zip(pairs, old_results, new_results, strict=True)
    ]


def _common_points(
    record: CalibrationRecord, older: CalibrationRecord
) -> dict[str, tuple[OperatingPoint, OperatingPoint]]:
    """Pairs of points, by name: those last requested of ``record``, and the same of ``older``."""
    pairs = dict[str, tuple[OperatingPoint, OperatingPoint]]()
    for point in (record.default_point, *record.requested_points()):
        with suppress(NotCalibrated):
            same = older.point(
                PLAIN,
                older.setting(point.rule, point.k if point.coverage is None else point.coverage),
            )
            pairs.setdefault(_point_name(point), (point, same))
    return pairs


def _point_name(point: OperatingPoint) -> str:
    return f"{point.rule} {RULES[point.rule].asks}={point.row.value:g}"


class _RuleResult(NamedTuple):
    sets: tuple[Bools, Ints]  # hits and sizes, both (rows,)
    origin: ThresholdOrigin
    bounds: tuple[int, int]  # smallest and largest size of a set


def _measure(bundle: BundleOutputs, points: Sequence[OperatingPoint]) -> list[_RuleResult]:
    """Measure the sets of each rule on each photo, in one pass."""
    record, count = bundle.record, len(points)
    nearby = [_scale_threshold(factor, point) for factor in NEARBY for point in points]
    source = _plain_source(bundle)
    measurement = measure(source, [*points, *nearby], watched=range(count))
    sizes, hits = measurement.row_by_row()
    return [
        _RuleResult(
            sets=(hits[:, place], sizes[:, place]),
            origin=ThresholdOrigin(
                data_sha256=record.measured.data_sha256,
                rows=point.rows,
                fixes=None if point.top_k is not None else _FIXED_MEANS[RULES[point.rule].asks],
                hits_per_class=_hits_per_class(measurement, place + count, place + 2 * count),
            ),
            bounds=point.size_bounds,
        )
        for place, point in enumerate(points)
    ]


def _scale_threshold(factor: float, point: OperatingPoint) -> OperatingPoint:
    thresholds = point.class_thresholds
    return replace(
        point,
        lambda_val=None if point.lambda_val is None else factor * point.lambda_val,
        class_thresholds=None if thresholds is None else factor * thresholds,
    )


def _hits_per_class(measurement: Measurement, lower: int, higher: int) -> float:
    """Hits per additional class between two thresholds, given by their indices."""
    classes = measurement.mean_size(lower) - measurement.mean_size(higher)
    hits = int(measurement.hits[lower] - measurement.hits[higher]) / measurement.rows
    return hits / classes if classes else 0.0


def compare_runtimes(new: BundleOutputs, old: BundleOutputs) -> tuple[str, list[str]]:
    """How the sets of two runtimes compare on the same photos, in one sentence.

    The second value lists the differences that are too large for ``new`` to replace ``old``.
    """
    change, (equal, nested) = compare_outputs(new, old)[0], agreement(new, old)
    reasons = differences(change, nested)
    heads = [f"{measured.record.head} {measured.record.score_kind}" for measured in (new, old)]
    if reasons and heads[0] != heads[1]:
        reasons.append(f"{heads[0]} serves in place of {heads[1]}")
    ours, theirs = (" ".join(measured.record.measured.served_by) for measured in (new, old))
    hits, size = change.hit_rate, change.size
    sentence = (
        f"on the {change.rows:,} photos of {new.outputs.split}, {change.rule}, "
        f"{ours} gives the sets of {theirs} for {100 * equal:.1f} %, "
        f"equal or one within the other for {100 * nested:.1f} %; hit rate "
        f"{hits.old:.4f} -> {hits.new:.4f}, mean size {size.old:.3f} -> {size.new:.3f}"
    )
    return sentence, reasons


def agreement(new: BundleOutputs, old: BundleOutputs) -> tuple[float, float]:
    """Shares of photos whose sets at the default K of ``old`` are equal; equal or nested."""
    equal = nested = 0
    ours, theirs = (
        measured.record.point(PLAIN, measured.record.setting("average_k", old.record.default_k))
        for measured in (new, old)
    )
    blocks = (_plain_source(measured).blocks() for measured in (new, old))
    for (our_scores, _), (their_scores, _) in zip(*blocks, strict=True):
        our_sets, their_sets = ours.sets(our_scores), theirs.sets(their_scores)
        added, removed = (our_sets & ~their_sets).any(axis=1), (their_sets & ~our_sets).any(axis=1)
        equal += int((~added & ~removed).sum())
        nested += int((~added | ~removed).sum())
    rows = len(new.outputs.labels)
    return equal / rows, nested / rows


def differences(change: Comparison, nested: float) -> list[str]:
    """Differences that are too large, one sentence each; empty if one may replace the other.

    ``nested`` is the share of the photos whose two sets are equal, or one within the other.
    """
    hits, size, sentences = change.hit_rate, change.size, list[str]()
    if (change.lost - change.gained) / change.rows > _MOST_HIT_RATE_LOST:
        sentences.append(
            f"hit rate {hits.old:.4f} -> {hits.new:.4f}, which may lose {_MOST_HIT_RATE_LOST:g} at "
            "most"
        )
    if abs(size.difference) > _MOST_SIZE_CHANGE * size.old:
        sentences.append(
            f"mean set size {size.old:.3f} -> {size.new:.3f}, which may change by "
            f"{_MOST_SIZE_CHANGE * 100:g} % at most"
        )
    if nested < _LEAST_NESTED:
        sentences.append(
            f"{nested * 100:.1f} % of the sets are equal or one within the other, "
            f"{_LEAST_NESTED * 100:g} % must be"
        )
    return sentences


def _plain_source(measured: BundleOutputs) -> Source:
    """The served scores of single photos."""
    photos = LabelledPhotos.of(measured.record, measured.outputs)
    return photos.source(PLAIN, measured.record.scoring)
