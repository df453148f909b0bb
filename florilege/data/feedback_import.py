"""Feedback photos that people agreed to share, as training data."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from florilege.data.records import refuse
from florilege.data.splits import pictures_of
from florilege.errors import DataError, count_of
from florilege.feedback_store import NOT_LISTED, Row, open_feedback
from florilege.files import write_atomic
from florilege.models.classes import plain_id
from florilege.tables import Table, write_table

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
        others = [] if data is None else _others(data, feedback.answer_ids(), out)
        classes = {row["class_id"] for row in others} if data else None
        feedback_rows = list(_usable_rows(feedback.latest_rows(), classes, left_out))
        if not feedback_rows:
            counts = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
            raise DataError(f"{store} holds no photo to train on; left out: {counts or 'nothing'}")
        rows = _write_photos(feedback.photos, feedback_rows, folder)
    table = _table([*others, *rows])
    write_table(out, table)
    for path in set(folder.iterdir()) - {out.parent / row["path"] for row in rows}:
        if _PHOTO_NAME.fullmatch(path.name):
            path.unlink()
    return _FeedbackImport(
        table=table, photos=len(rows), answers=len(feedback_rows), left_out=left_out
    )


def _usable_rows(
    feedback_rows: Iterable[Row], classes: set[str] | None, left_out: Counter[str]
) -> Iterator[Row]:
    """The last row of each usable answer; ``left_out`` counts the others by reason."""
    for row in feedback_rows:
        if row["class_id"] in (None, NOT_LISTED):
            left_out["without a class"] += 1
        elif not row["photos"]:
            left_out["without photos"] += 1
        elif classes is not None and plain_id(row["class_id"]) not in classes:
            left_out["of classes that the data set lacks"] += 1
        else:
            yield row


def _write_photos(
    photos_of: Callable[[str], list[bytes]], feedback_rows: Iterable[Row], folder: Path
) -> list[dict[str, str]]:
    """Write the photos of the answers, and return the rows of the manifest beside ``folder``."""
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for row in feedback_rows:
        for number, jpeg in enumerate(photos_of(row["answer_id"]), start=1):
            path = folder / f"{row['answer_id']}-{number}.jpg"
            write_atomic(path, jpeg)
            rows.append(
                {
                    "path": f"{folder.name}/{path.name}",
                    "class_id": row["class_id"],
                    "split": "train",
                    "observation_id": row["answer_id"],
                    "licence": row["licence"] or "",
                }
            )
    return rows


def _others(data: str, answer_ids: set[str], out: Path) -> list[dict[str, str]]:
    """The rows of ``data`` except those of an earlier import."""
    table, _ = pictures_of(data, out)
    rows = [dict(zip(table, cells, strict=True)) for cells in zip(*table.values(), strict=True)]
    unsplit = [row["path"] for row in rows if not row.get("split")]
    fault = f"{count_of(len(unsplit), 'picture')} without a split"
    refuse(data, fault, unsplit, "; run `florilege data split`")
    return [row for row in rows if row.get("observation_id") not in answer_ids]


def _table(rows: Sequence[Mapping[str, str]]) -> Table:
    """The rows as a table; cells of a column that a row lacks are empty."""
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: [row.get(name, "") for row in rows] for name in names}
