"""Reading labelled feedback, for an audit."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from calibration.audit import Audit, audit
from models.errors import DataError


def audit_file(path: str | Path, *, level: float = 0.95) -> Audit:
    """Measure the hit rate on the requests that a person has labelled.

    Args:
        path: Lines of JSON, each with ``class_id``, the true class or null, and ``set``, the class
            ids that were answered; or a folder of such files, as the server's feedback store is.
        level: Confidence of the intervals, in (0, 1).

    Raises:
        DataError: It cannot be read, a line is damaged, or no request is labelled.
    """
    try:
        return audit(_rows(Path(path)), level=level)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DataError(f"{path}: {error}") from error


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    files = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    if not files:
        raise DataError(f"{path} holds no file of feedback (*.jsonl)")
    for file in files:
        lines = file.read_bytes().split(b"\n")
        for number, line in enumerate(lines, start=1):
            if line.strip():
                row = _row(line, torn=number == len(lines))
                if row is None:
                    continue
                if not isinstance(row, dict):
                    raise DataError(f"{file} line {number} is no JSON object: mend or remove it")
                yield row


def _row(line: bytes, *, torn: bool) -> Any:
    """The content of a line; None for a last line that a crash has torn."""
    try:
        return json.loads(line)
    except ValueError:
        return None if torn else ""
