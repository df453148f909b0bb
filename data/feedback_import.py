"""Feedback photos that people agreed to share, as training data."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from florilege.data.splits import pictures_of
from florilege.errors import DataError
from florilege.feedback_store import NOT_LISTED, FeedbackReader, open_feedback
from florilege.files import write_atomic
from florilege.tables import Table, write_table

COLUMNS = ("path", "class_id", "split", "observation_id", "licence")
_PHOTO_NAME = re.compile(r"[0-9a-f]{32}-[0-9]+\.jpg")


@dataclass(frozen=True, kw_only=True)
class _FeedbackImport:
    """A written manifest, and how many answers it holds and leaves out."""

    table: Table
    photos: int  # feedback photos in the manifest
    answers: int  # answers that these photos belong to
    left_out: Mapping[str, int]  # answers by reason


def import_feedback(store: Path, out: Path, data: str | None = None) -> _FeedbackImport:
    """Write the photos whose feedback names a class, and a manifest that puts them into train.

    The last feedback on an answer counts, and the photos of an answer are one observation. With
    ``data``, its pictures come first, and feedback on classes that it lacks is left out. Photos of
    an earlier import into ``out`` are deleted if people have withdrawn their consent.

    Raises:
        DataError: ``store`` has no feedback, or none with a usable photo; ``data`` cannot be
            listed, or has pictures without a split.
        OSError: A file cannot be written.
    """
    left_out, folder = Counter[str](), out.with_name(f"{out.stem}-feedback")
    with open_feedback(store) as feedback:
        base = {} if data is None else _base(data, feedback.answer_ids(), out)
        classes = set(base["class_id"]) if base else None
        feedback_rows = list(_usable_rows(feedback, classes, left_out))
        if not feedback_rows:
            counts = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
            raise DataError(f"{store} holds no photo to train on; left out: {counts or 'nothing'}")
        rows = _write_photos(feedback, feedback_rows, folder)
    cells = dict(zip(COLUMNS, map(list, zip(*rows, strict=True)), strict=True))
    table = _joined(base, cells)
    write_table(out, table)
    names = {Path(path).name for path in cells["path"]}
    for path in folder.iterdir():
        if _PHOTO_NAME.fullmatch(path.name) and path.name not in names:
            path.unlink()
    answers = len(set(cells["observation_id"]))
    return _FeedbackImport(table=table, photos=len(rows), answers=answers, left_out=left_out)


def _usable_rows(
    feedback: FeedbackReader, classes: set[str] | None, left_out: Counter[str]
) -> Iterator[dict[str, Any]]:
    """The last row of each usable answer; ``left_out`` counts the others by reason."""
    for row in feedback.latest_rows():
        if row["class_id"] in (None, NOT_LISTED):
            left_out["without a class"] += 1
        elif not row["photos"]:
            left_out["without photos"] += 1
        elif classes is not None and row["class_id"] not in classes:
            left_out["of classes that the data set lacks"] += 1
        else:
            yield row


def _write_photos(
    feedback: FeedbackReader, feedback_rows: list[dict[str, Any]], folder: Path
) -> list[tuple[str, ...]]:
    """Write the photos, and return the rows of the manifest beside ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = list[tuple[str, ...]]()
    for row in feedback_rows:
        answer_id, licence = row["answer_id"], row["licence"] or ""
        for number, jpeg in enumerate(feedback.photos(answer_id), start=1):
            path = folder / f"{answer_id}-{number}.jpg"
            write_atomic(path, jpeg)
            name = f"{folder.name}/{path.name}"
            rows.append((name, row["class_id"], "train", answer_id, licence))
    return rows


def _base(data: str, answer_ids: set[str], out: Path) -> Table:
    """The pictures of ``data`` except those of an earlier import."""
    table, _ = pictures_of(data, out)
    empty = [""] * len(table["path"])
    if unsplit := table.get("split", empty).count(""):
        raise DataError(f"{data}: {unsplit:,} pictures without a split; run `florilege data split`")
    observations = table.get("observation_id", empty)
    others = [row for row, name in enumerate(observations) if name not in answer_ids]
    return {name: [cells[row] for row in others] for name, cells in table.items()}


def _joined(first: Table, second: Table) -> Table:
    """The rows of both tables; cells of a column that one table lacks are empty."""
    return {
        name: [
            cell
            for table in (first, second)
            for cell in table.get(name, [""] * len(table.get("path", ())))
        ]
        for name in dict.fromkeys([*first, *second])
    }
