"""A part of a split, for calibrating on photos that nothing else uses.

``test:0-0.3`` is three tenths of the split ``test``, drawn at random with a fixed seed;
``test:0.3-1`` is the rest. Photos of one plant stay together.
"""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from florilege.data.dataset import Split
from florilege.errors import DataError, UsageError

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
        numbers: dict[object, int] = {}
        plants = np.array([numbers.setdefault(plant, len(numbers)) for plant in observations])
        positions = np.argsort(np.random.default_rng(_SEED).permutation(len(numbers)))
        row_positions = positions[plants.astype(np.intp)]  # (rows,)
        start, stop = self.start * len(numbers), self.stop * len(numbers)
        return np.flatnonzero((row_positions >= start) & (row_positions < stop))
