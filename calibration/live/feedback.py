"""Reading labelled feedback, for an audit of a bundle's sets."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from calibration.live.audit import Audit, audit
from calibration.rules import usual_guarantee
from models.errors import DataError

Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class AuditReport:
    """What labelled requests say about a bundle.

    Attributes:
        audits: By the rule and value that answered, such as ``average_k k=3``, rejected photos,
            whose set is empty, apart; ``sets`` where the rows do not say.
        other_calibrations: Rows left out, because another calibration answered them.
        damaged: Lines left out, because they are torn or no JSON object.
    """

    audits: dict[str, Audit]
    other_calibrations: int
    damaged: int

    def to_plain(self) -> dict[str, Any]:
        """For json."""
        return {
            "audits": [{"rule": name, **asdict(found)} for name, found in self.audits.items()],
            "other_calibrations": self.other_calibrations,
            "damaged": self.damaged,
        }


def audit_file(
    path: str | Path, *, calibration_id: str | None = None, level: float = 0.95
) -> AuditReport:
    """Measure hit rates on the requests that a person has labelled.

    Of several rows with one ``request_id`` the last counts.

    Args:
        path: Lines of JSON, each with ``class_id``, the true class or null, and ``set``, the class
            ids that were answered; or a folder of such files (``*.jsonl``), as the server's
            feedback store is.
        calibration_id: Leave out rows that name another one.
        level: Confidence of the intervals, in (0, 1).

    Raises:
        DataError: It cannot be read, a row lacks one of the two, or no request is labelled.
    """
    try:
        rows, damaged = _read(Path(path))
        ours = [row for row in rows if row.get("calibration_id", calibration_id) == calibration_id]
        chosen = rows if calibration_id is None else ours
        groups: dict[str, list[Row]] = {}
        for row in chosen:
            groups.setdefault(_rule(row), []).append(row)
        if not any(row.get("class_id") is not None for row in chosen):
            raise ValueError(f"no request of this calibration is labelled, of {len(rows)} rows")
        audits = {name: audit(found, level=level) for name, found in _labelled(groups)}
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error
    return AuditReport(audits=audits, other_calibrations=len(rows) - len(chosen), damaged=damaged)


def _read(path: Path) -> tuple[list[Row], int]:
    """Rows, of each request the last, and the number of damaged lines."""
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    latest: dict[object, Row] = {}
    damaged = 0
    for file in files:
        for line in filter(bytes.strip, file.read_bytes().splitlines()):
            row = _row(line)
            if row is None:
                damaged += 1
                continue
            named = "request_id" in row
            latest[str(row["request_id"]) if named else len(latest)] = row
    return list(latest.values()), damaged


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


def _labelled(groups: Mapping[str, list[Row]]) -> Iterator[tuple[str, list[Row]]]:
    """The groups in which somebody knows the class of a request, or a row is not sound."""
    for name, rows in groups.items():
        if any(row.get("class_id", name) is not None for row in rows):
            yield name, rows


def _rule(row: Row) -> str:
    if not isinstance(row.get("rule"), str):
        return "sets"
    by_size = row.get("coverage") is None
    value = row.get("k") if by_size else row["coverage"]
    if isinstance(value, int | float):
        value = f"{value:g}"
    name = f"{row['rule']} {'k' if by_size else 'coverage'}={value}"
    promise = row.get("guarantee")
    if promise not in (None, usual_guarantee(row["rule"])):
        name += f" guarantee={promise}"
    if row.get("images", 1) != 1:
        name += f", {row['images']} photos"
    return f"{name}, rejected" if row.get("verdict") == "rejected" else name
