"""Photos of a server's feedback as training data: what people say of photos they let be kept.

A line of the store is a JSON object; ``photos`` are paths from its folder. It is read here as the
format it is (`docs/http.md`), since data do not know the server.
"""

import json
import os
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from florilege.data.splits import pictures_of
from florilege.errors import DataError
from florilege.tables import Table

FILES = "feedback-*.jsonl"
PHOTOS = "photos"
NOT_LISTED = "not_listed"
COLUMNS = ("path", "class_id", "split", "observation_id")


@dataclass(frozen=True, kw_only=True)
class Imported:
    """The manifest, and how many answers came into it or not."""

    table: Table
    photos: int  # of feedback, in the manifest
    answers: int  # that they belong to
    left_out: Mapping[str, int]  # answers, by why


def import_feedback(store: Path, out: Path, data: str | None = None) -> Imported:
    """The manifest to write at ``out``: every photo of feedback that names a class, for train.

    Of several words on one answer the last one counts, and its photos are one observation. With
    ``data`` its pictures come first, and only classes that it has follow.

    Raises:
        DataError: ``store`` has no feedback, or none with a photo to be used; or ``data`` cannot be
            listed, or has pictures without a split.
    """
    base = {} if data is None else _base(data, store, out)
    known = set(base["class_id"]) if base else None
    rows, left_out = list[tuple[str, ...]](), Counter[str]()
    answers = 0
    for row in _last_words(store, left_out):
        photos = [store / name for name in row.get("photos", ())]
        class_id = row["class_id"]
        if why := _why_not(class_id, photos, known):
            left_out[why] += 1
            continue
        answers += 1
        rows += [(_path(photo, out), class_id, "train", row["request_id"]) for photo in photos]
    if not rows:
        counts = ", ".join(f"{count:,} {why}" for why, count in left_out.items())
        raise DataError(f"{store} holds no photo to train on; left out: {counts or 'nothing'}")
    cells = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    return Imported(
        table=_joined(base, cells), photos=len(rows), answers=answers, left_out=left_out
    )


def _why_not(class_id: str | None, photos: list[Path], known: set[str] | None) -> str | None:
    """Why an answer says nothing that can be trained on; None where it does."""
    if class_id in (None, NOT_LISTED):
        return "without a class"
    if not photos:
        return "without photos"
    if not all(photo.is_file() for photo in photos):
        return "with missing photos"
    return None if known is None or class_id in known else "of classes that the data lack"


def _last_words(store: Path, left_out: Counter[str]) -> Iterator[dict[str, Any]]:
    """The last row of each answer; damaged lines are counted."""
    try:
        files = sorted(store.glob(FILES))
        if not files:
            raise DataError(f"{store} holds no {FILES}; name the folder of serve --feedback-store")
        lines = [line for file in files for line in file.read_bytes().split(b"\n") if line.strip()]
    except OSError as error:
        raise DataError(f"{store} cannot be read: {error}") from error
    latest: dict[str, dict[str, Any]] = {}
    for line in lines:
        if (row := _row(line)) is None:
            left_out["damaged"] += 1
        else:
            latest[row["request_id"]] = row
    yield from latest.values()


def _row(line: bytes) -> dict[str, Any] | None:
    """A line as far as it is one of feedback, else None: a crash may tear one."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    fits = (
        isinstance(row, dict)
        and isinstance(row.get("request_id"), str)
        and isinstance(row.get("class_id", 0), str | None)
        and isinstance(row.get("photos", []), list)
        and all(isinstance(name, str) for name in row.get("photos", ()))
    )
    return row if fits else None


def _base(data: str, store: Path, out: Path) -> Table:
    """The pictures of ``data``, but for those that an earlier import has put there."""
    table, _ = pictures_of(data, out)
    if "" in (splits := table.get("split", [""])):
        bare = splits.count("") if "split" in table else len(table["path"])
        raise DataError(f"{data}: {bare:,} pictures without a split; florilege data split cuts it")
    ours = _path(store / PHOTOS, out) + os.sep
    others = [row for row, path in enumerate(table["path"]) if not path.startswith(ours)]
    return {name: [cells[row] for row in others] for name, cells in table.items()}


def _path(path: Path, out: Path) -> str:
    return os.path.relpath(path.resolve(), out.resolve().parent)


def _joined(first: Table, second: Table) -> Table:
    """One table after the other; a column that one of them lacks is empty there."""
    columns = dict.fromkeys([*first, *second])
    rows = [len(table["path"]) if table else 0 for table in (first, second)]
    return {
        name: [
            cell
            for table, count in zip((first, second), rows, strict=True)
            for cell in table.get(name, [""] * count)
        ]
        for name in columns
    }
