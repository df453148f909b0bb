"""What is known of a region: a list of its classes, or where and when each class was recorded.

An answer can be restricted to the classes of a list. A list file holds one class id per line in
UTF-8. A ``#`` at the start of a line or after a space starts a comment.

Records are a prior for photos whose place and month are known, as the scores of a network ignore
the place. :meth:`Occurrences.log_lift` says how much more common each class is in a region and
month than overall. Added to the logits, times a strength, it gives the logits of a photo from
there. No class is excluded: one never recorded there is less likely.
"""

import hashlib
import io
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
from numpy.lib.format import read_array
from numpy.typing import ArrayLike, NDArray

from florilege.errors import (
    DataError,
    UsageError,
    did_you_mean,
    nearest,
    nearest_paths,
    os_error_as,
    repeated,
)
from florilege.files import read_written

if TYPE_CHECKING:  # the class table needs pydantic, the records of calibrations do not
    from florilege.models.classes import ClassTable

Floats = NDArray[np.float64]

MONTHS = 12
ALL_MONTHS = 0  # the month of records without a month
COLUMNS = ("region", "month", "class_id", "weight")  # of a table of occurrences as a file
PSEUDO_RECORDS = 20.0  # weight of the overall shares in a region, and of its shares in a month
NEIGHBOUR = 0.5  # weight of the months before and after: seasons do not end with a month
PlaceKind = Literal["region", "region_and_month"]  # what is known of the place of a photo
_ARRAYS = ("region", "month", "class_index", "weight")  # of the file, in order
_TYPES = ["<i8", "<i4", "|i1", "<i4", "<f8"]  # of the number of classes and of these
_MONTH = re.compile(r"\d{4}-(\d\d?)(?:-.*)?|(\d\d?)(?:\.0)?")
_CELL = re.compile(r"cell(\d+(?:\.\d+)?)_(-?[\d.]+)_(-?[\d.]+)", re.ASCII)


class Place(NamedTuple):
    """Where and when a photo was taken."""

    region: str
    month: int = ALL_MONTHS

    @property
    def kind(self) -> PlaceKind:
        return "region" if self.month == ALL_MONTHS else "region_and_month"


def month_of(text: str) -> int:
    """The month that a number or an ISO date names; pandas writes ``6.0`` beside an empty cell.

    Example:
        >>> month_of("6"), month_of("2026-06-30")
        (6, 6)
    """
    # Not another date: 2024-009 is the ninth day of a year, 06-12-2024 is in June or in December.
    month = _MONTH.fullmatch(text)
    number = int(month[1] or month[2]) if month else 0
    if not 1 <= number <= MONTHS:
        raise ValueError(f"a month must be 1 to 12 or a date YYYY-MM-DD, got {text!r}")
    return number


def cell_name(latitude: float, longitude: float, degrees: float) -> str:
    """The region of a place on a grid: its cell, named by size and south-west corner.

    Example:
        >>> cell_name(43.61, 3.88, 1), cell_name(-0.2, -0.2, 0.5)
        ('cell1_43_3', 'cell0.5_-0.5_-0.5')
    """
    if not (-90 <= latitude <= 90 and -180 <= longitude <= 180):
        raise ValueError(
            f"latitude must be in [-90, 90] and longitude in [-180, 180], got {latitude} and "
            f"{longitude}"
        )
    # Plus 0: -0.0, as -0.0004 rounds to three digits, is in the cell named 0.
    corner = (np.floor(value / degrees) * degrees + 0.0 for value in (latitude, longitude))
    return f"cell{degrees:g}_" + "_".join(f"{value:g}" for value in corner)


def is_null_island(latitude: float, longitude: float) -> bool:
    """Whether a place is 0, 0: what devices without a fix write, in the sea far from any record."""
    return latitude == 0 == longitude


@dataclass(frozen=True, kw_only=True, eq=False)
class Occurrences:
    """How often each class was recorded, by region and month; arrays have shape ``(entries,)``.

    Raises:
        ValueError: The arrays do not match, or hold a value out of range.
    """

    regions: tuple[str, ...]  # names, each once
    classes: int  # number of classes
    region: NDArray[np.int32]  # index of the region, ascending
    month: NDArray[np.int8]  # 1 to 12, or ``ALL_MONTHS``
    class_index: NDArray[np.int32]  # output index of the class
    weight: Floats  # number of records, above 0

    def __post_init__(self) -> None:
        shapes = {column.shape for column in (self.region, self.month, self.class_index)}
        if shapes != {self.weight.shape} or not self.weight.size:
            raise ValueError(f"columns must be of one length of at least 1, got {sorted(shapes)}")
        limits = {"region": len(self.regions), "month": MONTHS + 1, "class_index": self.classes}
        for name, limit in limits.items():
            values = getattr(self, name)
            if values.min() < 0 or values.max() >= limit:
                raise ValueError(f"{name} must be in [0, {limit}), got {values.max()}")
        if (np.diff(self.region) < 0).any():
            raise ValueError("entries must be in the order of their regions")
        if not (np.isfinite(self.weight).all() and self.weight.min() > 0):
            raise ValueError("weight must be finite and above 0")

    @classmethod
    def of(
        cls,
        regions: Sequence[str],
        months: ArrayLike,
        class_indices: ArrayLike,
        weights: ArrayLike,
        *,
        classes: int,
    ) -> "Occurrences":
        """A table from one region name, month, class and weight for each row."""
        # An array of strings would give each row the bytes of the longest name, four a letter.
        index_of = {name: index for index, name in enumerate(sorted({*regions}))}
        region = np.fromiter(map(index_of.__getitem__, regions), np.int32, len(regions))
        month, class_index = np.asarray(months), np.asarray(class_indices)
        # The last key counts most.
        order = np.lexsort((class_index, month, region))
        return cls(
            regions=tuple(index_of),
            classes=classes,
            region=region[order],
            month=month[order].astype(np.int8),
            class_index=class_index[order].astype(np.int32),
            weight=np.asarray(weights, dtype=np.float64)[order],
        )

    @cached_property
    def cell_degrees(self) -> float | None:
        """Side of the grid's cells; None if the regions are not cells of one grid."""
        sizes = {m.group(1) if (m := _CELL.fullmatch(name)) else None for name in self.regions}
        (size, *others) = sizes
        return None if others or size is None else float(size) or None

    def knows(self, region: str) -> bool:
        return region in self._place_of

    def counts(self, region: str, month: int = ALL_MONTHS) -> Floats:
        """Weight of each class in a region, ``(classes,)``; 0 where nothing was recorded.

        With a month, records of the months before and after it count half, and records without a
        month count as if they were spread evenly over the year.
        """
        place = self._place_of.get(region)
        rows = slice(0, 0)
        if place is not None:
            # Of the column's own type: NumPy would convert all of it for another, 1.3 ms of 3
            # million records.
            rows = slice(*np.searchsorted(self.region, np.array([place, place + 1], np.int32)))
        months, weights = self.month[rows], self.weight[rows]
        if month != ALL_MONTHS:
            apart = np.abs(months - month)
            apart = np.minimum(apart, MONTHS - apart)
            factor = np.select([apart == 0, apart == 1], [1.0, NEIGHBOUR], 0.0)
            spread = (1 + 2 * NEIGHBOUR) / MONTHS
            weights = weights * np.where(months == ALL_MONTHS, spread, factor)
        return np.bincount(self.class_index[rows], weights, self.classes).astype(np.float64)

    def log_lift(self, place: Place) -> Floats:
        """Logarithm of how much more common each class is there than overall, ``(classes,)``.

        The shares of a month are pulled towards those of the region, and these towards the overall
        shares, so a few records change little. A class without any record, and every class in an
        unknown region, gets 0.
        """
        # One record more of each class: a share of 0 would have no logarithm.
        overall = self._totals + 1.0
        share = overall = overall / overall.sum()
        for month in dict.fromkeys((ALL_MONTHS, place.month)):
            counts = self.counts(place.region, month)
            share = (counts + PSEUDO_RECORDS * share) / (counts.sum() + PSEUDO_RECORDS)
        return np.where(self._totals > 0, np.log(share / overall), 0.0)

    def in_range(self, place: Place) -> list[bool | None]:
        """Whether each class was recorded there; None for one without any record.

        All are None for an unknown region.
        """
        if not self.knows(place.region):
            return [None] * self.classes
        present = self.counts(*place) > 0
        return [
            bool(here) if total else None for here, total in zip(present, self._totals, strict=True)
        ]

    def draw(self, labels: NDArray[np.int64], *, seed: int = 0) -> list[Place]:
        """Draw a place for each photo from the records of its class, or from all if it has none.

        ``labels`` holds the class of each photo, ``(rows,)``.
        """
        random, places = np.random.default_rng(seed), dict[int, Place]()
        for label in np.unique(labels):
            entries = np.flatnonzero(self.class_index == label)
            if not entries.size:
                entries = np.arange(self.weight.size)
            rows, weights = np.flatnonzero(labels == label), self.weight[entries]
            drawn_entries = random.choice(entries, rows.size, p=weights / weights.sum())
            for row, entry in zip(rows.tolist(), drawn_entries.tolist(), strict=True):
                places[row] = Place(self.regions[self.region[entry]], int(self.month[entry]))
        return [places[row] for row in range(len(labels))]

    @cached_property
    def sha256(self) -> str:
        return hashlib.sha256(self.to_bytes()).hexdigest()

    def to_bytes(self) -> bytes:
        """Consecutive ``.npy`` arrays; equal content gives equal bytes."""
        file = io.BytesIO()
        names, size = np.array(self.regions, dtype=str), np.array(self.classes, dtype=np.int64)
        for array in (names, size, *(getattr(self, name) for name in _ARRAYS)):
            np.save(file, array, allow_pickle=False)
        return file.getvalue()

    @classmethod
    def of_bytes(cls, content: bytes) -> "Occurrences":
        """Read the output of :meth:`to_bytes`; a `ValueError` if the bytes are something else."""
        file = io.BytesIO(content)
        try:
            names, size, *columns = (read_array(file, allow_pickle=False) for _ in range(6))
        except (ValueError, MemoryError) as error:  # the latter for a shape of more than fits
            raise ValueError(f"not a table of occurrences ({error})") from error
        types = [array.dtype.str for array in (size, *columns)]
        shapes = [array.ndim for array in (names, size, *columns)]
        if types != _TYPES or names.dtype.kind != "U" or shapes != [1, 0, 1, 1, 1, 1]:
            raise ValueError(f"not a table of occurrences (arrays of {', '.join(types)})")
        arrays: dict[str, Any] = dict(zip(_ARRAYS, columns, strict=True))
        return cls(regions=tuple(names.tolist()), classes=int(size), **arrays)

    @cached_property
    def _place_of(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.regions)}

    @cached_property
    def _totals(self) -> Floats:
        return np.bincount(self.class_index, self.weight, self.classes).astype(np.float64)


_COMMENT = re.compile(r"(^|\s)#.*")
LONGEST_NAME = 100
NEAR_IDS_FOR = 20  # unknown ids that get suggestions, because the search is slow


@dataclass(frozen=True, kw_only=True)
class RegionList:
    """Some of the classes of a model."""

    name: str  # of the list in requests
    classes: tuple[int, ...]  # output indices of its classes, ascending, at least one

    def __post_init__(self) -> None:
        if not _is_plain(self.name):
            raise ValueError(f"{self.name[:LONGEST_NAME]!r} cannot be the name of a list")
        ascending = list(self.classes) == sorted(set(self.classes))
        if not self.classes or self.classes[0] < 0 or not ascending:
            raise ValueError(f"list {self.name!r} must hold distinct classes in ascending order")


def _is_plain(name: str) -> bool:
    """Whether a list may have this name, which becomes that of a file when a bundle is exported."""
    printable = name.isprintable() and name == name.strip() and 1 <= len(name) <= LONGEST_NAME
    return printable and "/" not in name and not name.startswith(".")


def _read_list(name: str, path: Path, classes: "ClassTable") -> RegionList:
    if not _is_plain(name):
        raise DataError(
            f"{path}: a list cannot be named {name[:LONGEST_NAME]!r}: use 1 to {LONGEST_NAME} "
            "printable characters without a slash, a leading dot, or spaces around them"
        )
    ids = _ids(path)
    if not ids:
        raise DataError(f"{path} holds no class id: write one per line")
    id_of = classes.ids_of(ids)
    if twice := repeated(id_of.get(name, name) for name in ids):
        raise DataError(f"{path}: these class ids appear twice: {', '.join(twice)}")
    if unknown := [name for name in ids if name not in id_of]:
        raise DataError(
            f"{path}: {len(unknown)} of {len(ids)} class ids are not among the {len(classes):,} of "
            f"the model; correct or remove them:{_with_near_names(unknown, classes)}"
        )
    indices = sorted(classes.index_of[id_] for id_ in id_of.values())
    return RegionList(name=name, classes=tuple(indices))


def read_lists(words: Iterable[str], classes: "ClassTable") -> tuple[RegionList, ...]:
    """Read the lists that `list_files` finds for each of ``words``, of a model with ``classes``.

    Raises:
        DataError: As `list_files`; or a file is unreadable, is not UTF-8, or holds no id, a
            repeated id or ids that the model lacks; or a name is invalid.
        UsageError: Two lists have the same name.
    """
    lists = [_read_list(*named, classes) for word in words for named in list_files(word)]
    if twice := repeated(region.name for region in lists):
        raise UsageError(f"--list: two lists are named {', '.join(twice)}; rename one")
    return tuple(lists)


def list_files(word: str) -> list[tuple[str, Path]]:
    """The list files that ``[NAME=]FILE`` or a folder names, each with its name.

    A list without a name is named after its file, without the suffix. Hidden files are skipped.
    Raises `DataError` if a folder is unreadable or holds no file.
    """
    name, separator, path = word.partition("=")
    if separator:
        return [(name, Path(path))]
    folder = Path(word)
    if not folder.is_dir():
        return [(folder.stem, folder)]
    with os_error_as(DataError, f"{folder} cannot be read"):
        files = sorted(p for p in folder.iterdir() if p.is_file() and not p.name.startswith("."))
    if not files:
        raise DataError(f"{folder} holds no list file: add one for each region")
    return [(file.stem, file) for file in files]


def _ids(path: Path) -> list[str]:
    try:
        text = read_written(path).decode("utf-8-sig")
    except FileNotFoundError as error:
        near = did_you_mean(nearest_paths(path))
        raise DataError(f"no list and no file is named {path}{near}") from error
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        line = error.object[: error.start].count(b"\n") + 1
        raise DataError(f"{path} is not UTF-8 in line {line}: save it as UTF-8") from error
    lines = (_COMMENT.sub("", line).strip() for line in text.splitlines())
    return [line for line in lines if line]


def _with_near_names(unknown: list[str], classes: "ClassTable") -> str:
    """A line for each unknown id, with similar known ids for the first `NEAR_IDS_FOR`."""
    id_of = {info.scientific_name: info.id for info in classes}
    text = ""
    for row, unknown_id in enumerate(unknown):
        candidates = [*classes.ids, *id_of] if row < NEAR_IDS_FOR else []
        near = dict.fromkeys(id_of.get(name, name) for name in nearest(unknown_id, candidates))
        text += f"\n  {unknown_id}" + (f" (near: {', '.join(near)})" if near else "")
    return text
