"""A data set: as its source lists it, with class ids, and as other packages see it, with labels.

Pictures are read on demand.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median_high
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from florilege.errors import DataError, UsageError, count_of, first, reason_of, suggestion
from florilege.files import read_regular
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.images import MAX_BYTES, ImageError, Preprocess, load, read_header
from florilege.terminal import with_bar

SPLITS = ("train", "val", "test")
_OTHER_NAMES = {
    **dict.fromkeys(("training", "trn"), "train"),
    **dict.fromkeys(("valid", "validation", "validate", "cal", "calibration", "dev"), "val"),
    **dict.fromkeys(("testing", "tst"), "test"),
}
_LOOKED_AT = 9  # pictures of a split, for their size
_SET = re.compile(r"[\s_-]*(set|split)$")  # the end of `Test set`, `train_set`, `valset`


def split_name(text: str) -> str | None:
    """The split that a folder name or a manifest cell stands for, or None.

    Example:
        >>> split_name("Validation"), split_name("test_set"), split_name("extra")
        ('val', 'test', None)
    """
    name = text.strip().lower()
    name = _SET.sub("", name)
    return name if name in SPLITS else _OTHER_NAMES.get(name)


def usual_name(split: str) -> str:
    """`split_name`, or the text itself for one that is no split."""
    return split_name(split) or split


def _missing_split(source: str, name: str, present: Collection[str]) -> str:
    """The message for a split that a data set with those ``present`` lacks."""
    has = f"{', '.join(present) or 'none'}{suggestion(name, present)}"
    return f"{source} has no split {name!r}; it has: {has}"


@dataclass(frozen=True, kw_only=True)
class _Pictures:
    """Pictures read on demand.

    ``read(row)`` returns the bytes of an encoded picture. Worker processes can unpickle it. It
    raises ``OSError`` if a file cannot be read.
    """

    names: Sequence[str]  # the name of each picture in messages, such as its path
    observations: Sequence[str] | None = None  # one per picture; photos of one plant share it
    read: Callable[[int], bytes]

    def select(self, rows: Sequence[int], **columns: Any) -> Self:
        """Some pictures, in the given order; ``columns`` are those that a subclass adds."""
        observations = self.observations
        return replace(
            self,
            names=[self.names[row] for row in rows],
            observations=None if observations is None else [observations[row] for row in rows],
            read=partial(_read_selected, self.read, tuple(rows)),
            **columns,
        )


def _read_selected(read: Callable[[int], bytes], rows: Sequence[int], row: int) -> bytes:
    return read(rows[row])


@dataclass(frozen=True, kw_only=True)
class Split(_Pictures):
    """The pictures of one split, with labels."""

    name: str  # train, val or test
    labels: NDArray[np.int64]  # indices into the data set's class table, (rows,)

    def __post_init__(self) -> None:
        for column, values in (("names", self.names), ("observations", self.observations)):
            if values is not None and len(values) != len(self):
                raise ValueError(
                    f"{column} must have {len(self)} entries, one per label, got {len(values)}"
                )

    def __len__(self) -> int:
        return len(self.labels)

    def select_rows(self, rows: NDArray[np.intp], *, name: str) -> Self:
        """Some rows, in the given order, under another name."""
        return self.select(rows.tolist(), name=name, labels=self.labels[rows])

    def without(self, rows: Collection[int]) -> Self:
        """The pictures without some rows."""
        remaining = np.setdiff1d(np.arange(len(self)), [*rows])
        return self.select_rows(remaining, name=self.name)

    def damaged(self) -> dict[int, str]:
        """Read every picture once: the rows of those that cannot be read, with name and reason."""
        problems = with_bar(self._problem, range(len(self)), f"checking {self.name}")
        return {row: problem for row, problem in enumerate(problems) if problem is not None}

    def short_side(self) -> int | None:
        """The median short side, in pixels, of a few pictures; None if none can be read."""
        sides = []
        for row in range(0, len(self), -(-len(self) // _LOOKED_AT)):
            # Reported when all pictures are read.
            with suppress(ImageError, OSError):
                header = read_header(self.read(row))
                sides.append(min(header.width, header.height))
        return median_high(sides) if sides else None

    def readable(self, say: Callable[[str], None]) -> Self:
        """The pictures without the damaged ones, which ``say`` is told."""
        damaged = self.damaged()
        if not damaged:
            return self
        count = count_of(len(damaged), "photo")
        listed = "".join(f"\n  {problem}" for problem in damaged.values())
        say(f"skipped because they cannot be read: {count} of {self.name}{listed}")
        return self.without(damaged)

    def _problem(self, row: int) -> str | None:
        try:
            # Small, since it only has to decode.
            load(self.read(row), Preprocess(image_size=32))
        except (OSError, ImageError) as error:
            return f"{self.names[row]}: {reason_of(error)}"
        return None


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Everything that one ``--data`` argument names."""

    source: str  # the argument itself
    classes: ClassTable  # with training counts if there is a train split
    splits: Mapping[str, Split]  # by name, in the order train, val, test
    thumbnails: Mapping[str, Path] = field(default_factory=dict)  # picture files by class id
    corrected: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of every split
    decided: Mapping[str, int] = field(default_factory=dict)  # 1: confirmed, -1: corrected

    def split(self, name: str) -> Split:
        """The split called ``name``; a `DataError` that lists the splits if there is none."""
        key = usual_name(name)
        if key not in self.splits:
            raise DataError(_missing_split(self.source, name, self.splits))
        return self.splits[key]

    def answers(self, names: Iterable[str]) -> NDArray[np.int64]:
        """Whether people confirmed each photo's label, 1, or corrected it, -1; 0 where neither."""
        return np.array([self.decided.get(name, 0) for name in names], dtype=np.int64)


@dataclass(frozen=True)
class FileReader:
    """``read`` for pictures that are files: one path per row, relative to the folder ``root``."""

    root: Path
    paths: Sequence[str]

    def __call__(self, row: int) -> bytes:
        try:
            return read_regular(self.root / self.paths[row], most=MAX_BYTES)
        # For a null character in the path.
        except ValueError as error:
            raise OSError(str(error)) from error


_PART = re.compile(r"(?P<name>[^:]+)(:(?P<start>[0-9.]+)-(?P<stop>[0-9.]+))?")
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Part:
    """What ``--split`` names: a split, and the fractions of it where the part starts and stops."""

    name: str
    start: float = 0.0
    stop: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "Part":
        """Read ``NAME`` or ``NAME:FROM-TO``; a `UsageError` for anything else.

        Example:
            >>> Part.parse("test:0-0.3")
            Part(name='test', start=0.0, stop=0.3)
        """
        if match := _PART.fullmatch(text):
            with suppress(ValueError):
                start, stop = float(match["start"] or 0), float(match["stop"] or 1)
                if 0 <= start < stop <= 1:
                    return cls(name=match["name"], start=start, stop=stop)
        raise UsageError(
            "--split takes NAME, or NAME:FROM-TO with 0 <= FROM < TO <= 1 such as test:0-0.3, "
            f"got {text!r}"
        )

    def of(self, split: Split) -> Split:
        """The rows of this part, in their order; a `DataError` if it holds no photo."""
        if (self.start, self.stop) == (0.0, 1.0):
            return split
        rows = self._rows(split)
        if not rows.size:
            raise DataError(f"{self} holds no photo of {split.name!r}: choose a larger part")
        return split.select_rows(rows, name=str(self).replace(self.name, split.name, 1))

    def rest(self, split: Split) -> NDArray[np.intp]:
        """Indices of the rows outside this part; their plants are outside it too."""
        return np.setdiff1d(np.arange(len(split)), self._rows(split))

    def __str__(self) -> str:
        return f"{self.name}:{self.start:g}-{self.stop:g}"

    def _rows(self, split: Split) -> NDArray[np.intp]:
        """Rows whose plant is in the part; without observations each photo is its own plant."""
        observations: Sequence[str] | range = split.observations or range(len(split))
        numbers = {name: number for number, name in enumerate(dict.fromkeys(observations))}
        positions = np.argsort(np.random.default_rng(_SEED).permutation(len(numbers)))
        row_positions = positions[[numbers[name] for name in observations]]  # (rows,)
        # The end of one part and the start of the next are the same product, so no plant is lost or
        # in both.
        start, stop = self.start * len(numbers), self.stop * len(numbers)
        return np.flatnonzero((row_positions >= start) & (row_positions < stop))


@dataclass(frozen=True, kw_only=True)
class Records(_Pictures):
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
    decided: Mapping[str, int] = field(default_factory=dict)  # photos; 1: confirmed, -1: corrected
    root: Path | None = None  # the folder of the photos, if tables name them: some may be missing

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
        decided=listing.decided,
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


def _split_names(listing: Listing, splits: Sequence[str] | None) -> list[str]:
    """The splits to make; each must exist and hold pictures."""
    present = [name for name in SPLITS if name in listing.splits]
    names = present if splits is None else list(map(usual_name, splits))
    for name in names:
        if name not in present:
            draw = "; draw splits with `florilege data split`" if name in SPLITS else ""
            missing = _missing_split(listing.source, name, present)
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
