"""Convert feedback that earlier versions stored as JSON lines and photo files into a database."""

import json
import re
import tempfile
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

from florilege.errors import DataError
from florilege.feedback_store import FILE, JSON_LINES, NOT_AN_ORGANISM, FeedbackStore

_PHOTO = re.compile(r"photos/[0-9a-f]{32}-[0-9]+\.jpg")
_ANSWER_FIELDS = (
    *("bundle_sha256", "calibration_id", "rule", "k", "coverage", "guarantee"),
    *("images", "list", "restricted", "verdict"),
)


def convert_feedback(store: Path) -> int:
    """Move the rows and photos of a folder into a database, and delete the files.

    Clients chose the request ids: rows with one id belong to one answer only if all else agrees.

    Returns:
        The number of rows moved; incomplete lines are left out.

    Raises:
        DataError: There are no such files, or there is already a database.
    """
    files = sorted(store.glob(JSON_LINES))
    if not files or (store / FILE).exists():
        raise DataError(f"{store} must hold {JSON_LINES} and no {FILE}")
    rows = [row for file in files for row in map(_row, file.read_bytes().splitlines()) if row]
    photos = {path for row in rows for path in _photos(store, row)}
    with tempfile.TemporaryDirectory(dir=store) as temporary:
        with closing(FeedbackStore(Path(temporary), max_bytes=2**40)) as database:
            _add_rows(database, store, rows)
        (Path(temporary) / FILE).replace(store / FILE)
    for path in (*files, *photos):
        path.unlink()
    return len(rows)


def _add_rows(database: FeedbackStore, store: Path, rows: Iterable[dict[str, Any]]) -> None:
    ids = dict[str, str]()
    for row in rows:
        answer = {name: row.get(name) for name in _ANSWER_FIELDS}
        answer |= {"key": "", "members": json.dumps(row["set"])}
        key = json.dumps([row["request_id"], answer])
        answer_id = answer["id"] = ids.setdefault(key, uuid4().hex)
        paths = _photos(store, row)
        new = database.count_photos(answer_id) == 0
        contents = [path.read_bytes() for path in paths] if new else []
        feedback = {name: row.get(name) for name in ("time", "in_set", "note")} | {
            "answer_id": answer_id,
            "key": "",
            "class_id": row.get("said") or row.get("class_id") or NOT_AN_ORGANISM,
            "consent": bool(row.get("consent")),
            "photos": len(paths),
        }
        database.add(answer, feedback, contents)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and {"request_id", "set", "time"} <= row.keys() else None


def _photos(store: Path, row: dict[str, Any]) -> list[Path]:
    """The photos of a row that a server wrote: no other file, no link, none outside the folder."""
    paths = [store / name for name in map(str, row.get("photos", ())) if _PHOTO.fullmatch(name)]
    links = {path for path in paths if path.is_symlink() or path.parent.is_symlink()}
    return [path for path in paths if path.is_file() and path not in links]
