"""The largest numbers of a stream, and how many there are of the smallest of them."""

from typing import Any

import numpy as np

from calibration.arrays import FloatArray

BLOCK = 1 << 16
"""Numbers looked at together: what the processor's cache holds."""


class Largest:
    """Keeps the ``keep`` largest numbers of a stream and forgets the others.

    Once ``keep`` are held, the smallest of them is the floor: whatever lies below it cannot
    matter any more, and of what equals it the number is enough. ``-inf`` is left out.

    Args:
        keep: How many, at least 1.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._held: list[FloatArray] = []  # the `keep` largest so far and some more
        self._held_size = 0
        self._floor: np.floating[Any] = np.float16(-np.inf)  # the smallest of those `keep`
        self._forgotten = 0  # numbers equal to the floor that are not held
        self._sorted: FloatArray | None = None

    def add(self, values: FloatArray) -> None:
        """Look at some more numbers, shape ``(size,)``, free of NaN; no reference is kept."""
        for start in range(0, values.size, BLOCK):
            self._add_block(values[start : start + BLOCK])

    def merge(self, other: "Largest") -> None:
        """Add what another one holds for the same ``keep``; ``other`` stays as it is."""
        forgotten = other._forgotten
        for part in list(other._held):
            self.add(part)
        self._compact()
        if other._floor == self._floor:
            self._forgotten += forgotten

    @property
    def held_size(self) -> int:
        """How many numbers are held at present."""
        return self._held_size

    @property
    def ascending(self) -> FloatArray:
        """The numbers held, ascending: at least the ``keep`` largest, or all that there are."""
        if self._sorted is None:
            self._sorted = np.sort(np.concatenate(self._held or [np.empty(0, dtype=np.float64)]))
        return self._sorted

    def reaching(self, value: float) -> int:
        """How many of all numbers seen are at least ``value``, one of the ``keep`` largest."""
        values = self.ascending
        held = values.size - int(np.searchsorted(values, value))
        return held + (self._forgotten if value == self._floor else 0)

    def _add_block(self, values: FloatArray) -> None:
        """Hold a copy of the values above the floor; of those equal to it keep count."""
        if self._floor == -np.inf:
            above = values[values > -np.inf]
        else:
            reaching = values.compress(values >= self._floor)  # faster than a mask in brackets
            above = reaching[reaching > self._floor]
            self._forgotten += reaching.size - above.size
        if above.size:
            self._held.append(above)
            self._held_size += above.size
            self._sorted = None
        if self._held_size > self.keep + max(self.keep // 2, BLOCK):
            self._compact()

    def _compact(self) -> None:
        """Forget all but the ``keep`` largest values held, and raise the floor to the smallest."""
        surplus = self._held_size - self.keep
        if surplus < 0:
            return
        values = np.concatenate(self._held)
        values.partition(surplus)
        floor = values[surplus]
        if floor > self._floor:
            self._forgotten = 0
        self._forgotten += int(np.count_nonzero(values[:surplus] == floor))
        self._floor = floor
        self._held, self._held_size = [values[surplus:].copy()], self.keep
        self._sorted = None
