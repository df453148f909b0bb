"""A data set as other packages see it: class table, labels, and pictures read on demand."""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from florilege.errors import DataError, UsageError, suggestion
from florilege.files import read_regular
from florilege.models.classes import ClassTable
from florilege.models.images import MAX_BYTES

SPLITS = ("train", "val", "test")
_OTHER_NAMES = {
    **dict.fromkeys(("training", "trn"), "train"),
    **dict.fromkeys(("valid", "validation", "validate", "cal", "calibration", "dev"), "val"),
    **dict.fromkeys(("testing", "tst"), "test"),
}
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


def missing_split(source: str, name: str, present: Collection[str]) -> str:
    """The message for a split that a data set with those ``present`` lacks."""
    has = f"{', '.join(present) or 'none'}{suggestion(name, present)}"
    return f"{source} has no split {name!r}; it has: {has}"


@dataclass(frozen=True, kw_only=True)
class Pictures:
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
class Split(Pictures):
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


@dataclass(frozen=True, kw_only=True)
class Dataset:
    """Everything that one ``--data`` argument names."""

    source: str  # the argument itself
    classes: ClassTable  # with training counts if there is a train split
    splits: Mapping[str, Split]  # by name, in the order train, val, test
    thumbnails: Mapping[str, Path] = field(default_factory=dict)  # picture files by class id
    corrected: Mapping[str, Sequence[str]] = field(default_factory=dict)  # of every split

    def split(self, name: str) -> Split:
        """The split called ``name``; a `DataError` that lists the splits if there is none."""
        key = split_name(name) or name
        if key not in self.splits:
            raise DataError(missing_split(self.source, name, self.splits))
        return self.splits[key]


@dataclass(frozen=True)
class FileReader:
    """``read`` for pictures that are files: one path per row, relative to the folder ``root``."""

    root: Path
    paths: Sequence[str]

    def __call__(self, row: int) -> bytes:
        try:
            return read_regular(self.root / self.paths[row], most=MAX_BYTES)
        except ValueError as error:  # a null character in the path
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
        start, stop = self.start * len(numbers), self.stop * len(numbers)
        return np.flatnonzero((row_positions >= start) & (row_positions < stop))
