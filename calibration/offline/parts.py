"""A part of a split, for calibrating on photos that nothing else has looked at.

``test:0-0.3`` is three tenths of the split ``test``, dealt at random but always the same;
``test:0.3-1`` is all the rest. Photos of one plant stay together.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from data.dataset import Split
from models.errors import DataError, UsageError

_PART = re.compile(r"(?P<name>[^:]+)(:(?P<start>[0-9.]+)-(?P<stop>[0-9.]+))?")
SEED = 0


@dataclass(frozen=True, kw_only=True)
class Part:
    """What ``--split`` names.

    Attributes:
        name: The split.
        start: Where the part begins, as a share of the split.
        stop: Where it ends.
    """

    name: str
    start: float = 0.0
    stop: float = 1.0

    @classmethod
    def parse(cls, text: str) -> "Part":
        """Read ``NAME`` or ``NAME:FROM-TO``.

        Raises:
            UsageError: Anything else.

        Example:
            >>> Part.parse("test:0-0.3")
            Part(name='test', start=0.0, stop=0.3)
        """
        found = _PART.fullmatch(text)
        try:
            start = float(found["start"] or 0) if found else -1.0
            stop = float(found["stop"] or 1) if found else -1.0
        except ValueError:
            start = stop = -1.0
        if found is None or not 0 <= start < stop <= 1:
            raise UsageError(
                f"--split takes NAME, or NAME:FROM-TO with 0 <= FROM < TO <= 1 such as "
                f"test:0-0.3, got {text!r}"
            )
        return cls(name=found["name"], start=start, stop=stop)

    def of(self, split: Split) -> Split:
        """The rows of this part, in their order.

        Raises:
            DataError: No photo falls into it.
        """
        if (self.start, self.stop) == (0.0, 1.0):
            return split
        rows = _rows(_plants(split), self.start, self.stop)
        if not rows.size:
            raise DataError(f"no photo of {split.name!r} falls into {self}: name a larger part")
        return select(split, rows, name=str(self).replace(self.name, split.name, 1))

    def rest(self, split: Split) -> NDArray[np.intp]:
        """Numbers of the rows that are not in this part, of plants that are not."""
        inside = _rows(_plants(split), self.start, self.stop)
        return np.setdiff1d(np.arange(len(split)), inside)

    def __str__(self) -> str:
        return f"{self.name}:{self.start:g}-{self.stop:g}"


def select(split: Split, rows: NDArray[np.intp], *, name: str) -> Split:
    """Some rows of a split, in the order given, under another name."""
    return replace(
        split,
        name=name,
        labels=split.labels[rows],
        names=[split.names[row] for row in rows],
        observations=None
        if split.observations is None
        else [split.observations[row] for row in rows],
        read=_Reader(read=split.read, rows=tuple(rows.tolist())),
    )


@dataclass(frozen=True, kw_only=True)
class _Reader:
    read: Callable[[int], bytes]
    rows: tuple[int, ...]

    def __call__(self, row: int) -> bytes:
        return self.read(self.rows[row])


def _plants(split: Split) -> NDArray[np.intp]:
    """Number of each photo's plant: its observation where known, else the photo itself."""
    observations: Sequence[str] | range = split.observations or range(len(split))
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault(plant, len(numbers)) for plant in observations])


def _rows(plants: NDArray[np.intp], start: float, stop: float) -> NDArray[np.intp]:
    """Rows whose plant is dealt into the part."""
    count = int(plants.max()) + 1 if plants.size else 0
    dealt = np.random.default_rng(SEED).permutation(count)
    place = np.empty(count, dtype=np.intp)
    place[dealt] = np.arange(count)
    return np.flatnonzero((place[plants] >= start * count) & (place[plants] < stop * count))
