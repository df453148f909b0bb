"""Two bundles on the same photos: compared rule by rule, and stopped by a gate."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from calibration.comparison import Comparison, Gate, compare
from calibration.measurement import sizes_and_hits
from calibration.offline.evaluate import asked_points
from calibration.offline.logits import Scoring
from calibration.offline.scored import ScoredBundle, photos_for, scored_bundle
from calibration.record import CalibrationRecord
from calibration.record.point import NotCalibrated, OperatingPoint
from calibration.record.reading import read_record
from models.bundle import open_bundle
from models.errors import DataError, UsageError
from models.session import Session

Outcome = tuple[NDArray[np.bool_], NDArray[np.int64]]
"""Whether each set holds the truth, and its size, each ``(rows,)``."""
Asked = tuple[str, float | None, float | None]
"""Rule, K and coverage."""


def compare_bundles(
    path: str | Path,
    against: str | Path,
    data: str,
    split: str = "test",
    *,
    device: str = "auto",
) -> list[Comparison]:
    """Compare the sets of two calibrated bundles on the same photos.

    Args:
        path: The new bundle's folder.
        against: The old one's.
        data: What ``--data`` takes; both bundles must know its classes.
        split: Name of the split, or a part of it.
        device: ``auto``, ``cpu`` or ``cuda``.

    Returns:
        One comparison for each rule and value that both can answer: first ``average_k`` at the new
        bundle's default K, which a gate looks at, where the old one has it; then everything last
        asked for of the new one.

    Raises:
        DataError: The data cannot be opened, or photos cannot be read.
        BundleError: A bundle is damaged or not calibrated.
        UsageError: The two have no rule and value in common.
    """
    check_comparable(path, against, data, split, device=device)
    with (
        scored_bundle(path, data, split, device=device) as new,
        scored_bundle(against, data, split, device=device) as old,
    ):
        return compare_scored(new, old)


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

    Args:
        path: The new bundle's folder.
        against: The old one's.
        data: What ``--data`` takes.
        split: Name of the split, or a part of it.
        device: ``auto``, ``cpu`` or ``cuda``.
        gated: Whether a gate looks at ``average_k`` at the new bundle's default K.

    Raises:
        DataError: The data cannot be opened, or hold a class that one of the two lacks.
        BundleError: A bundle is damaged or not calibrated.
        UsageError: The two have no rule and value in common, or not that of the gate.
    """
    new, old = open_bundle(path), open_bundle(against)
    record, older = read_record(new), read_record(old)
    common, looked_at = _common(record, older), _asked(record)[0]
    if not common:
        raise UsageError(f"{against} is calibrated for none of the rules and values of {path}")
    if gated and common[0] != looked_at:
        raise UsageError(
            f"--gate judges {_named(looked_at)}, and {against} is not calibrated for it"
        )
    photos_for(new, data, split)
    try:
        photos_for(old, data, split)
    except DataError as error:
        raise DataError(f"{against} cannot be compared on these photos: {error}") from error
    Session(old, device=device)


def compare_scored(new: ScoredBundle, old: ScoredBundle) -> list[Comparison]:
    """What :func:`compare_bundles` gives, for photos that were scored before.

    Raises:
        DataError: The two were shown other photos.
    """
    asked = _common(new.record, old.record)
    if new.scoring.data_sha256 != old.scoring.data_sha256:
        raise DataError("the two bundles were shown other photos: did the data change meanwhile?")
    return [
        compare(old_sets, new_sets, rule=_named(which))
        for which, old_sets, new_sets in zip(
            asked, _outcomes(old, asked), _outcomes(new, asked), strict=True
        )
    ]


def read_gate(path: str | Path) -> Gate:
    """The gate in a yaml file.

    Raises:
        UsageError: The file cannot be read, is no yaml, or holds something else than a gate.
    """
    try:
        plain = yaml.safe_load(Path(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"gate file {path} cannot be read: {error}") from error
    return Gate.from_plain(plain)


def _asked(record: CalibrationRecord) -> list[Asked]:
    points = [record.point("average_k"), *asked_points(record)]
    return list(dict.fromkeys((point.rule, point.k, point.coverage) for point in points))


def _common(record: CalibrationRecord, older: CalibrationRecord) -> list[Asked]:
    """What is compared: all that was last asked for of ``record`` and that ``older`` has too."""
    return [asked for asked in _asked(record) if _has(older, asked)]


def _has(record: CalibrationRecord, asked: Asked) -> bool:
    try:
        _point(record, asked)
    except NotCalibrated:
        return False
    return True


def _point(record: CalibrationRecord, asked: Asked) -> OperatingPoint:
    rule, k, coverage = asked
    return record.point(rule, k=k, coverage=coverage)


def _named(asked: Asked) -> str:
    rule, k, coverage = asked
    return f"{rule} k={k:g}" if coverage is None else f"{rule} coverage={coverage:g}"


def _outcomes(scored: ScoredBundle, asked: Sequence[Asked]) -> list[Outcome]:
    """What each rule does on each photo."""
    points = [_point(scored.record, which) for which in asked]
    return outcomes(points, scored.scoring, scored.record)


def outcomes(
    points: Sequence[OperatingPoint], scoring: Scoring, record: CalibrationRecord
) -> list[Outcome]:
    """What each rule of a record does on each photo of a split, in one pass."""
    gathered: list[list[Outcome]] = [[] for _ in points]
    for (values,), labels in scoring.outputs.blocks(record.head):
        served = record.scores(values)
        for found, point in zip(gathered, points, strict=True):
            sizes, hits = sizes_and_hits([point], served, labels)
            found.append((hits[:, 0], sizes[:, 0]))
    return [
        (np.concatenate([hits for hits, _ in found]), np.concatenate([sizes for _, sizes in found]))
        for found in gathered
    ]
