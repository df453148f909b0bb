"""Correct labels of a data set: ``DATA:labels=FILE``.

The file is a CSV with a row ``path,class_id`` for each photo to correct, or the answers of
`florilege data review`, of which only corrections change a label.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from florilege.data.dataset import SPLITS
from florilege.data.records import Listing, count_of
from florilege.data.review_answers import (
    CORRECTED,
    UNDECIDED,
    ReviewAnswer,
    answers_of,
    is_review,
    refuse_lines,
)
from florilege.errors import DataError, first
from florilege.tables import read_numbered_table


def with_corrections(listing: Listing, path: Path) -> Listing:
    """The listing with the labels that the file at ``path`` gives, in all splits alike.

    Raises:
        DataError: The file cannot be read, has other columns or no rows; or names a photo or a
            class that the data lack, or a photo twice with different answers.
    """
    answers = with_own_names(path, listing.source, _photo_names(listing), _read(path))
    corrections = [answer for answer in answers if answer.answer == CORRECTED]
    ids = listing.class_table().ids_of({correction.corrected for correction in corrections})
    unknown = [correction for correction in corrections if correction.corrected not in ids]
    classes = first(list(dict.fromkeys(correction.corrected for correction in unknown)))
    fault = f"{count_of(len(unknown), 'row', 'rows')} with class ids that {listing.source} lacks"
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


def _photo_names(listing: Listing) -> set[str]:
    """The names of all photos."""
    return {name for records in listing.splits.values() for name in records.names}


def with_own_names(
    path: Path, source: str, names: set[str], answers: Sequence[ReviewAnswer]
) -> list[ReviewAnswer]:
    """The answers of a file with the photos' ``names`` in the data, ``a.jpg`` for ``./a.jpg``.

    Raises `DataError` if the data ``source`` lack a photo.
    """
    plain = {answer.photo: os.path.normpath(answer.photo) for answer in answers}
    photos = {photo: photo if photo in names else other for photo, other in plain.items()}
    unknown = [answer for answer in answers if photos[answer.photo] not in names]
    fault = f"{count_of(len(unknown), 'photo', 'photos')} that {source} lacks"
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
    photos = count_of(len({answer.photo for answer in clashes}), "photo", "photos")
    remedy = "; `florilege data review --merge` shows what is open"
    refuse_lines(path, f"{photos} with answers that contradict each other", clashes, remedy)
