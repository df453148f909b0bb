"""Where and when each class was recorded: a prior for photos whose place and month are known.

Scores of a network know nothing of the place. :meth:`Occurrences.log_lift` says how much more
common each class is in a region and month than overall; the logits plus this, times a strength,
are the logits of the photo at that place. Nothing is excluded: a class that was never recorded
there is only less likely.
"""

import io
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

MONTHS = 12
ALL_MONTHS = 0
"""The month of records without a month."""
PSEUDO_RECORDS = 20.0
"""Weight of what is known of all regions for one region, and of all months for one month."""
NEIGHBOUR = 0.5
"""Weight of the month before and after: a season does not end on the last day of a month."""
_CELL = re.compile(r"cell([\d.]+)_(-?[\d.]+)_(-?[\d.]+)")


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
    corner = (np.floor(value / degrees) * degrees for value in (latitude, longitude))
    return f"cell{degrees:g}_" + "_".join(f"{value:g}" for value in corner)


@dataclass(frozen=True, kw_only=True, eq=False)
class Occurrences:
    """How often each class was recorded, by region and month.

    Attributes:
        regions: Names of the regions, each once.
        classes: Number of classes.
        region: Index of the region of each entry, ascending, int32 ``(entries,)``.
        month: 1 to 12, or ``ALL_MONTHS``; int8 ``(entries,)``.
        class_index: Output index of the class, int32 ``(entries,)``.
        weight: Number of records, above 0; float64 ``(entries,)``.

    Raises:
        ValueError: The arrays do not match, or hold a value out of range.
    """

    regions: tuple[str, ...]
    classes: int
    region: NDArray[np.int32]
    month: NDArray[np.int8]
    class_index: NDArray[np.int32]
    weight: Floats

    def __post_init__(self) -> None:
        shapes = {a.shape for a in (self.region, self.month, self.class_index, self.weight)}
        if len(shapes) != 1 or self.weight.ndim != 1 or not self.weight.size:
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
        names, region = np.unique(np.asarray(regions, dtype=str), return_inverse=True)
        month, class_index = np.asarray(months), np.asarray(class_indices)
        order = np.lexsort((class_index, month, region))
        return cls(
            regions=tuple(names.tolist()),
            classes=classes,
            region=region[order].astype(np.int32),
            month=month[order].astype(np.int8),
            class_index=class_index[order].astype(np.int32),
            weight=np.asarray(weights, dtype=np.float64)[order],
        )

    @cached_property
    def cell_degrees(self) -> float | None:
        """Side of the grid's cells; None if the regions are not cells of one grid."""
        sizes = {m.group(1) if (m := _CELL.fullmatch(name)) else None for name in self.regions}
        (size, *others) = sizes
        return None if others or size is None else float(size)

    def knows(self, region: str) -> bool:
        """Whether there are records of a region."""
        return region in self._place_of

    def counts(self, region: str, month: int | None = None) -> Floats:
        """Weight of each class in a region, ``(classes,)``; 0 where nothing was recorded.

        With a month, records of the months beside it count half, and those without a month as if
        they were spread evenly over the year.
        """
        place = self._place_of.get(region)
        rows = slice(0, 0) if place is None else slice(*self._bounds[place : place + 2])
        months, weights = self.month[rows], self.weight[rows]
        if month is not None:
            apart = np.abs(months - month)
            apart = np.minimum(apart, MONTHS - apart)
            factor = np.select([apart == 0, apart == 1], [1.0, NEIGHBOUR], 0.0)
            spread = (1 + 2 * NEIGHBOUR) / MONTHS
            weights = weights * np.where(months == ALL_MONTHS, spread, factor)
        return np.bincount(self.class_index[rows], weights, self.classes).astype(np.float64)

    def log_lift(self, region: str, month: int | None = None) -> Floats:
        """Logarithm of how much more common each class is there than overall, ``(classes,)``.

        The shares of a month lean on those of the region, and these on all records, so that few
        records move little. 0 for a class without any record, and everywhere for an unknown region.
        """
        overall = self._totals + 1.0
        share = overall = overall / overall.sum()
        for at in (None,) if month is None else (None, month):
            counts = self.counts(region, at)
            share = (counts + PSEUDO_RECORDS * share) / (counts.sum() + PSEUDO_RECORDS)
        return np.where(self._totals > 0, np.log(share / overall), 0.0)

    def in_range(self, region: str, month: int | None = None) -> list[bool | None]:
        """Whether each class was recorded there; None for one without any record.

        All are None for an unknown region.
        """
        if not self.knows(region):
            return [None] * self.classes
        present = self.counts(region, month) > 0
        return [
            bool(here) if total else None for here, total in zip(present, self._totals, strict=True)
        ]

    def to_bytes(self) -> bytes:
        """Consecutive ``.npy`` arrays; equal content gives equal bytes."""
        file = io.BytesIO()
        names = np.array(self.regions, dtype=str)
        size = np.array(self.classes, dtype=np.int64)
        for array in (names, size, self.region, self.month, self.class_index, self.weight):
            np.save(file, array, allow_pickle=False)
        return file.getvalue()

    @classmethod
    def of_bytes(cls, content: bytes) -> "Occurrences":
        """Read the output of :meth:`to_bytes`.

        Raises:
            ValueError: The bytes are not a table of occurrences.
        """
        file = io.BytesIO(content)
        try:
            names, size, *columns = (np.load(file, allow_pickle=False) for _ in range(6))
        except (EOFError, OSError, ValueError) as error:
            raise ValueError(f"not a table of occurrences ({error})") from error
        region, month, class_index, weight = columns
        return cls(
            regions=tuple(names.tolist()),
            classes=int(size),
            region=region,
            month=month,
            class_index=class_index,
            weight=weight,
        )

    @cached_property
    def _place_of(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.regions)}

    @cached_property
    def _bounds(self) -> NDArray[np.intp]:
        """Where the entries of each region begin, and the end of the last."""
        return np.searchsorted(self.region, np.arange(len(self.regions) + 1))

    @cached_property
    def _totals(self) -> Floats:
        return np.bincount(self.class_index, self.weight, self.classes).astype(np.float64)
