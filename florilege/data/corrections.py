"""What people say of labels, and the labels it corrects: ``DATA:labels=FILE``.

`florilege data review` saves its answers as a CSV, of which only corrections change a label. A file
of corrections may also have a row ``path,class_id`` for each photo.
"""

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from florilege.data.records import SPLITS, Dataset, Listing, refuse
from florilege.errors import DataError, count_of, first
from florilege.models.classes import plain_id
from florilege.tables import Table, demand_columns, read_numbered_table

CONFIRMED: Final = "confirmed"
CORRECTED: Final = "corrected"
UNDECIDED: Final = "undecided"
_ANSWERS: Final = (CONFIRMED, CORRECTED, UNDECIDED)
RANDOM: Final = "random"
_ORDERS: Final = (RANDOM, "doubt", "size")
COLUMNS: Final = ("photo", "label", "answer", "corrected", "by", "split", "order")


@dataclass(frozen=True, kw_only=True)
class ReviewAnswer:
    """What one person says of the label of one photo."""

    photo: str  # its path, relative to the data
    label: str  # the class id that was shown
    answer: str  # confirmed, corrected or undecided
    corrected: str = ""  # the right class id; empty unless corrected
    by: str = ""  # who says it
    split: str = ""
    order: str = ""  # of the review that drew the photo; empty where the file does not say
    line: int = 0  # of the file

    @property
    def class_id(self) -> str | None:
        """The class that the photo shows; None if undecided."""
        return {CONFIRMED: self.label, CORRECTED: self.corrected}.get(self.answer)


def is_review(table: Table) -> bool:
    """Whether a table has the columns of a review that say what was answered."""
    return {"photo", "answer", "corrected"} <= table.keys()


def read_answers(path: Path) -> list[ReviewAnswer]:
    """The answers of a file, in order; where nobody is named, ``by`` is the name of the file.

    Raises:
        DataError: The file cannot be read, lacks a column or has no rows; or a row has an unknown
            answer, a correction without a class, or a class without a correction.
    """
    table, lines = read_numbered_table(path)
    demand_columns(str(path), table, COLUMNS[:-1])
    return list(answers_of(path, table, lines))


def answers_of(path: Path, table: Table, lines: Sequence[int]) -> Iterator[ReviewAnswer]:
    """The answers in the table of a review, which must only have the columns of `is_review`."""
    if not lines:
        raise DataError(f"{path} holds no answers: only a header line")
    empty = [""] * len(lines)
    columns = [map(str.strip, table.get(name, empty)) for name in COLUMNS]
    for line, photo, label, word, corrected, by, split, order in zip(lines, *columns, strict=True):
        answer = ReviewAnswer(
            photo=photo,
            label=plain_id(label),
            answer=word.lower(),
            corrected=plain_id(corrected),
            by=by or path.stem,
            split=split,
            order=order.lower(),
            line=line,
        )
        if fault := _fault(answer):
            raise DataError(f"{path}, line {line}: {fault}")
        yield answer


def _fault(answer: ReviewAnswer) -> str:
    if not answer.photo:
        return "the photo is missing"
    if answer.answer not in _ANSWERS:
        return f"answer must be {', '.join(_ANSWERS[:2])} or {_ANSWERS[2]}, got {answer.answer!r}"
    if answer.order not in (*_ORDERS, ""):
        return f"order must be {', '.join(_ORDERS[:2])} or {_ORDERS[2]}, got {answer.order!r}"
    if (answer.answer == CORRECTED) != bool(answer.corrected):
        what = "needs a class id" if answer.answer == CORRECTED else "must be empty"
        return f"the column corrected {what} where the answer is {answer.answer!r}"
    return ""


def refuse_lines(path: Path, fault: str, answers: Iterable[ReviewAnswer], remedy: str = "") -> None:
    """Raise a `DataError` that names the file and the first lines of ``answers``, if any."""
    refuse(str(path), fault, [f"line {answer.line}: {answer.photo}" for answer in answers], remedy)


def with_corrections(listing: Listing, path: Path) -> Listing:
    """The listing with the labels that the file at ``path`` gives, in all splits alike.

    Raises:
        DataError: The file cannot be read, has other columns or no rows; or names a photo or a
            class that the data lack, or a photo twice with different answers.
    """
    answers = with_own_names(path, listing, _read(path))
    corrections = [answer for answer in answers if answer.answer == CORRECTED]
    ids = listing.class_table().ids_of({correction.corrected for correction in corrections})
    unknown = [correction for correction in corrections if correction.corrected not in ids]
    classes = first(list(dict.fromkeys(correction.corrected for correction in unknown)))
    fault = f"{count_of(len(unknown), 'row')} with class ids that {listing.source} lacks"
    refuse_lines(path, f"{fault} ({classes})", unknown, "; name a class of the data")
    _refuse_clashes(path, answers)
    class_of = {correction.photo: ids[correction.corrected] for correction in corrections}
    splits, changed = {}, {}
    for name in filter(listing.splits.__contains__, SPLITS):
        records = listing.splits[name]
        pairs = [*zip(records.names, records.class_ids, strict=True)]
        class_ids = [class_of.get(photo, before) for photo, before in pairs]
        splits[name] = replace(records, class_ids=class_ids)
        changed[name] = sorted(dict({*pairs} - {*zip(records.names, class_ids, strict=True)}))
    return replace(listing, splits=splits, corrected=changed)


def with_own_names(
    path: Path, data: Listing | Dataset, answers: Sequence[ReviewAnswer]
) -> list[ReviewAnswer]:
    """The answers of a file with the photos' names in the data, ``a.jpg`` for ``./a.jpg``.

    Raises `DataError` if the data lack a photo.
    """
    names = {name for split in data.splits.values() for name in split.names}
    plain = {answer.photo: os.path.normpath(answer.photo) for answer in answers}
    photos = {photo: photo if photo in names else other for photo, other in plain.items()}
    unknown = [answer for answer in answers if photos[answer.photo] not in names]
    fault = f"{count_of(len(unknown), 'photo')} that {data.source} lacks"
    refuse_lines(path, fault, unknown, "; paths are relative to the data, as in a manifest")
    return [replace(answer, photo=photos[answer.photo]) for answer in answers]


def _read(path: Path) -> list[ReviewAnswer]:
    table, lines = read_numbered_table(path)
    if is_review(table):
        return list(answers_of(path, table, lines))
    if not {"path", "class_id"} <= table.keys():
        raise DataError(
            f"{path} has the columns {', '.join(table)}; corrections have path and class_id, or "
            "are a file that a page of `florilege data review` saved"
        )
    empty = [""] * len(lines)
    columns = {"photo": table["path"], "corrected": table["class_id"], "label": empty}
    return list(answers_of(path, {**columns, "answer": [CORRECTED] * len(lines)}, lines))


def _refuse_clashes(path: Path, answers: Sequence[ReviewAnswer]) -> None:
    """Refuse a photo that is confirmed and corrected, or corrected to several classes."""
    classes_of = defaultdict[str, set[str]](set)
    for answer in answers:
        if answer.answer != UNDECIDED:
            classes_of[answer.photo].add(answer.corrected)
    clashes = [answer for answer in answers if len(classes_of[answer.photo]) > 1]
    photos = count_of(len({answer.photo for answer in clashes}), "photo")
    remedy = "; `florilege data review --merge` shows what is open"
    refuse_lines(path, f"{photos} with answers that contradict each other", clashes, remedy)
