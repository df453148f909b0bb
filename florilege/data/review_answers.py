"""What people say of the labels of photos: the CSV files that `florilege data review` saves."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from florilege.data.records import refuse
from florilege.errors import DataError, first
from florilege.models.classes import plain_id
from florilege.tables import Table, read_numbered_table

CONFIRMED: Final = "confirmed"
CORRECTED: Final = "corrected"
UNDECIDED: Final = "undecided"
ANSWERS: Final = (CONFIRMED, CORRECTED, UNDECIDED)
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
    if missing := [name for name in COLUMNS[:-1] if name not in table]:
        has = ", ".join(table) or "none"
        raise DataError(f"{path} has no column {first(missing)}; it has: {has}")
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
    if answer.answer not in ANSWERS:
        return f"answer must be {', '.join(ANSWERS[:2])} or {ANSWERS[2]}, got {answer.answer!r}"
    if answer.order not in (*_ORDERS, ""):
        return f"order must be {', '.join(_ORDERS[:2])} or {_ORDERS[2]}, got {answer.order!r}"
    if (answer.answer == CORRECTED) != bool(answer.corrected):
        what = "needs a class id" if answer.answer == CORRECTED else "must be empty"
        return f"the column corrected {what} where the answer is {answer.answer!r}"
    return ""


def refuse_lines(path: Path, fault: str, answers: Iterable[ReviewAnswer], remedy: str = "") -> None:
    """Raise a `DataError` that names the file and the first lines of ``answers``, if any."""
    refuse(str(path), fault, [f"line {answer.line}: {answer.photo}" for answer in answers], remedy)
