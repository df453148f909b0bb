"""What people say of labels, and the labels it corrects: ``DATA:labels=FILE``.

`florilege data review` saves its answers as a CSV, of which only corrections change a label. A file
of corrections may also have a row ``path,class_id`` for each photo.
"""

import os
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from florilege.data.records import SPLITS, Dataset, Listing, refuse
from florilege.errors import DataError, count_of, first
from florilege.models.classes import ClassTable, plain_id
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


def _read_answers(path: Path) -> list[ReviewAnswer]:
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
        if answer.answer == CORRECTED:
            return "the right class id is missing"
        return f"the column corrected must be empty where the answer is {answer.answer!r}"
    return ""


def refuse_lines(path: Path, fault: str, answers: Iterable[ReviewAnswer], remedy: str = "") -> None:
    """Raise a `DataError` that names the file and the first lines of ``answers``, if any."""
    refuse(str(path), fault, [f"line {answer.line}: {answer.photo}" for answer in answers], remedy)


def with_corrections(listing: Listing, path: Path) -> Listing:
    """The listing with the labels that the file at ``path`` gives, in all splits alike.

    Raises:
        DataError: The file cannot be read, has other columns or no rows; or names a photo or a
            class that the data lack, or a photo twice with different answers; or it would change a
            label other than the one that was reviewed.
    """
    labels = {
        photo: class_id
        for records in listing.splits.values()
        for photo, class_id in zip(records.names, records.class_ids, strict=True)
    }
    before = _read(path)
    answers = _about_labels(labels, listing.class_table(), listing.source, path, before)
    _refuse_clashes(path, answers)
    others = [
        answer
        for answer, reviewed in zip(answers, before, strict=True)
        if answer.answer == CORRECTED and reviewed.label not in ("", plain_id(answer.label))
    ]
    remedy = "; `florilege data review --merge` makes a file for the labels of now"
    fault = f"{count_of(len(others), 'photo')} with another label now than was reviewed"
    refuse_lines(path, fault, others, remedy)
    class_of = {answer.photo: answer.corrected for answer in answers if answer.corrected}
    splits, changed = {}, {}
    for name in filter(listing.splits.__contains__, SPLITS):
        records = listing.splits[name]
        pairs = [*zip(records.names, records.class_ids, strict=True)]
        class_ids = [class_of.get(photo, before) for photo, before in pairs]
        splits[name] = replace(records, class_ids=class_ids)
        changed[name] = sorted(set(class_of).intersection(records.names))
    return replace(listing, splits=splits, corrected=changed, decided=_decided(answers))


def _decided(answers: Iterable[ReviewAnswer]) -> dict[str, int]:
    """The photos whose label somebody has confirmed, 1, or corrected, -1."""
    return {
        answer.photo: -1 if answer.corrected else 1
        for answer in answers
        if answer.class_id is not None
    }


def answers_about(data: Dataset, path: Path) -> list[ReviewAnswer]:
    """What the answers of a review, a file, say of the labels that data have now.

    An answer confirms a label if it names its class, whatever label was shown, else it corrects it.

    Raises:
        DataError: The file cannot be read, lacks a column or has no rows; or the data lack a photo
            or a class.
    """
    ids = data.classes.ids
    labels = {
        photo: ids[label]
        for split in data.splits.values()
        for photo, label in zip(split.names, split.labels.tolist(), strict=True)
    }
    return _about_labels(labels, data.classes, data.source, path, _read_answers(path))


def _about_labels(
    labels: Mapping[str, str],
    classes: ClassTable,
    source: str,
    path: Path,
    answers: Sequence[ReviewAnswer],
) -> list[ReviewAnswer]:
    """The answers of a file about the label of each photo of the data, and their classes."""
    name_of = own_names(labels)
    unknown = [answer for answer in answers if name_of(answer.photo) is None]
    fault = f"{count_of(len(unknown), 'photo')} that {source} lacks"
    refuse_lines(path, fault, unknown, "; paths are relative to the data, as in a manifest")
    ids = _known_classes(path, source, classes, answers)
    photos = [name_of(answer.photo) or "" for answer in answers]
    return [
        _about(answer, photo, labels[photo], ids.get(answer.class_id or ""))
        for answer, photo in zip(answers, photos, strict=True)
    ]


def _known_classes(
    path: Path, source: str, classes: ClassTable, answers: Sequence[ReviewAnswer]
) -> dict[str, str]:
    """The class id that each name in the answers means; refused if there is none."""
    ids = classes.ids_of({answer.class_id or "" for answer in answers})
    listed = {None, *ids}
    unknown = [answer for answer in answers if answer.class_id not in listed]
    names = first(list(dict.fromkeys(answer.class_id or "" for answer in unknown)))
    fault = f"{count_of(len(unknown), 'row')} with class ids that {source} lacks ({names})"
    refuse_lines(path, fault, unknown, "; name a class of the data")
    return ids


def _about(answer: ReviewAnswer, photo: str, label: str, class_id: str | None) -> ReviewAnswer:
    """What an answer that names a class, or none, says of a label."""
    wrong = class_id not in (None, label)
    word = UNDECIDED if class_id is None else CORRECTED if wrong else CONFIRMED
    corrected = (class_id or "") if wrong else ""
    return replace(answer, photo=photo, label=label, answer=word, corrected=corrected)


def own_names(names: Collection[str]) -> Callable[[str], str | None]:
    """What the data call a photo of a file, ``a.jpg`` for ``./a.jpg``; None if they lack it.

    A Mac stores accents as characters of their own.
    """
    plain = {_plain(name): name for name in names}
    return lambda photo: photo if photo in names else plain.get(_plain(photo))


def _plain(photo: str) -> str:
    return unicodedata.normalize("NFC", os.path.normpath(photo))


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
    """Refuse a photo that several classes are named for."""
    classes_of = defaultdict[str, set[str]](set)
    for answer in answers:
        if answer.class_id is not None:
            classes_of[answer.photo].add(answer.class_id)
    clashes = [answer for answer in answers if len(classes_of[answer.photo]) > 1]
    photos = count_of(len({answer.photo for answer in clashes}), "photo")
    remedy = "; `florilege data review --merge` shows what is open"
    refuse_lines(path, f"{photos} with answers that contradict each other", clashes, remedy)
