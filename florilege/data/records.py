"""Turn the listing of a source (class ids as strings) into a data set (labels as indices)."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from florilege.data.dataset import SPLITS, Dataset, Pictures, Split, missing_split, split_name
from florilege.errors import DataError, first
from florilege.models.classes import ClassInfo, ClassTable


@dataclass(frozen=True, kw_only=True)
class Records(Pictures):
    """One split as its source lists it: with class ids instead of labels."""

    class_ids: Sequence[str]  # one per picture
    noisy_ids: Sequence[str] | None = None  # one per picture; None without label noise

    @property
    def taught_ids(self) -> Sequence[str]:
        """The class ids that become labels."""
        return self.class_ids if self.noisy_ids is None else self.noisy_ids

    def select_rows(self, rows: Sequence[int]) -> "Records":
        """Some pictures of a split without noise, in the given order."""
        return self.select(rows, class_ids=[self.class_ids[row] for row in rows])


@dataclass(frozen=True, kw_only=True)
class Listing:
    """Everything a source lists, unchecked.

    A source may fix its classes and their ``order`` whatever the pictures. If ``order`` is None,
    the classes are those of the pictures, sorted.
    """

    source: str  # the ``--data`` argument
    splits: Mapping[str, Records]  # existing splits by normalised name
    class_infos: Mapping[str, ClassInfo] = field(default_factory=dict)  # of these or other classes
    ignored: Sequence[str] = ()  # stray files and folders
    order: Sequence[str] | None = None  # all class ids
    groups: Mapping[str, Sequence[str]] = field(default_factory=dict)  # groups by class id
    thumbnails: Mapping[str, Path] = field(default_factory=dict)  # picture files by class id
    missing: Sequence[str] = ()  # photos that its tables name and its folders lack
    unlisted: Sequence[str] = ()  # photos in its folders that its tables do not name
    published: str | None = None  # where to download a published data set
    corrected: Mapping[str, Sequence[str]] = field(default_factory=dict)  # by ``labels=FILE``

    @property
    def download_hint(self) -> str:
        """The end of a message about a missing part of a published data set."""
        return f"; {self.published}" if self.published else ""

    def class_table(self) -> ClassTable:
        """The classes of all splits, in the source's order or sorted, with training counts."""
        train = self.splits.get("train")
        counts = None if train is None else Counter(train.taught_ids)
        present = {name for records in self.splits.values() for name in records.class_ids}
        return ClassTable(
            tuple(
                replace(
                    self.class_infos.get(name) or ClassInfo(id=name),
                    training_count=None if counts is None else counts[name],
                )
                for name in (sort_ids(present) if self.order is None else self.order)
            )
        )

    def missing_in_train(self) -> dict[str, list[str]]:
        """Sorted class ids of val and test that train lacks, by split; empty without train."""
        train = self.splits.get("train")
        if train is None:
            return {}
        trained = set(train.class_ids)
        missing = {name: set(records.class_ids) - trained for name, records in self.splits.items()}
        return {name: sort_ids(ids) for name, ids in missing.items() if ids}


def assemble(
    listing: Listing, *, splits: Sequence[str] | None = None, classes: ClassTable | None = None
) -> Dataset:
    """Make the data set of ``splits`` (all existing ones by default).

    Without ``classes``, the table holds the classes of all listed splits, so labels do not depend
    on the requested splits.

    Raises:
        DataError: A split is missing or empty; there are fewer than two classes; train is requested
            but lacks a class of val or test (unless the source fixes its classes, as flora does);
            or ``classes`` lacks a class.
    """
    table = listing.class_table() if classes is None else classes
    if classes is None and len(table) < 2:
        classes_text = f"{count_of(len(table), 'class', 'classes')} ({first(table.ids) or 'none'})"
        raise DataError(f"{listing.source} has {classes_text}; a classifier needs at least 2")
    names = _split_names(listing, splits)
    if classes is None and "train" in names and listing.order is None:
        _demand_training_pictures(listing)
    where = "the class table" if classes is None else "the model's class table"
    parts = {name: _split(listing, name, table, where) for name in names}
    return Dataset(
        source=listing.source,
        classes=table,
        splits=parts,
        thumbnails=listing.thumbnails,
        corrected=listing.corrected,
    )


def _demand_training_pictures(listing: Listing) -> None:
    for name, ids in listing.missing_in_train().items():
        fault = f"{count_of(len(ids), 'class', 'classes')} of {name} without a picture in train"
        remedy = f"; add training pictures or remove them from {name}"
        refuse(listing.source, fault, ids, remedy)


def sort_ids(ids: Iterable[str]) -> list[str]:
    """Ids in alphabetical order, or by value if all are whole numbers.

    Example:
        >>> sort_ids(["10", "9", "100"]), sort_ids(["b10", "b9"])
        (['9', '10', '100'], ['b10', 'b9'])
    """
    names = sorted(ids)
    if all(name.isascii() and name.isdigit() for name in names):
        names.sort(key=int)
    return names


def demand_photos(listing: Listing, root: Path, splits: Sequence[str] | None) -> None:
    """Refuse a listing whose ``splits`` (all by default) name missing photos.

    The `DataError` counts them, names the first five, and says where to download them.
    """
    for name, records in listing.splits.items():
        if splits is not None and name not in splits:
            continue
        missing = [photo for photo in records.names if not (root / photo).is_file()]
        photos = count_of(len(records.names), "photo")
        fault = f"{len(missing):,} of {photos} of {name} are missing from {root}"
        refuse(listing.source, fault, missing, listing.download_hint)


def read_lines(path: Path) -> list[str]:
    """The lines of a text file; a `DataError` if it is not UTF-8."""
    try:
        return path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8: {error}") from error


def read_json(path: Path, published: str) -> Any:
    """The content of a JSON file; a `DataError` that says where to download it if damaged."""
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a JSON file: {error}; {published}") from error


def refuse(source: str, fault: str, items: Sequence[str], remedy: str = "") -> None:
    """Raise a `DataError` that names the first of ``items``, if there are any."""
    if items:
        raise DataError(f"{source}: {fault}: {first(items)}{remedy}")


def count_of(number: int, one: str, many: str | None = None) -> str:
    """A number with its noun, ``1 photo``, ``2 photos``; ``many`` if it is not ``one`` and an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def _split_names(listing: Listing, splits: Sequence[str] | None) -> list[str]:
    """The splits to make; each must exist and hold pictures."""
    present = [name for name in SPLITS if name in listing.splits]
    names = present if splits is None else [split_name(name) or name for name in splits]
    for name in names:
        if name not in present:
            draw = "; draw splits with `florilege data split`" if name in SPLITS else ""
            missing = missing_split(listing.source, name, present)
            raise DataError(f"{missing}{listing.download_hint or draw}")
        if not listing.splits[name].class_ids:
            raise DataError(
                f"{listing.source}: split {name!r} holds no pictures{listing.download_hint}"
            )
    return names


def _split(listing: Listing, name: str, table: ClassTable, where: str) -> Split:
    records = listing.splits[name]
    id_of = table.ids_of({*records.class_ids, *records.taught_ids})
    unknown = sort_ids(set(records.class_ids) - id_of.keys())
    fault = f"{count_of(len(unknown), 'class id')} of {name} missing from {where}"
    refuse(listing.source, f"{fault} ({len(table)} classes)", unknown)
    labels = [table.index_of[id_of[class_id]] for class_id in records.taught_ids]
    return Split(
        name=name,
        labels=np.array(labels, dtype=np.int64),
        names=records.names,
        observations=records.observations,
        read=records.read,
    )
