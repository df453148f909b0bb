"""The largest numbers of a stream, and how many there are of the smallest of them."""

from typing import Any

import numpy as np

from calibration.arrays import BLOCK, FloatArray


class Largest:
    """Keeps the ``keep`` largest numbers of a stream and forgets the others.

    Once ``keep`` are held, the smallest of them is the floor: whatever lies below it cannot
    matter any more, and of what equals it the number is enough. ``-inf`` is left out.

    Args:
        keep: How many, at least 1.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._full = keep + max(keep // 2, BLOCK)  # values held before all but `keep` are forgotten
        self._held: FloatArray | None = None  # the `keep` largest so far, some more, and room
        self._held_size = 0
        self._floor: np.floating[Any] = np.float16(-np.inf)  # the smallest of those `keep`
        self._forgotten = 0  # numbers equal to the floor that are not held
        self._is_sorted = True

    def add(self, values: FloatArray) -> None:
        """Look at some more numbers, shape ``(size,)``, free of NaN; no reference is kept."""
        for start in range(0, values.size, BLOCK):
            self._add_block(values[start : start + BLOCK])

    def merge(self, other: "Largest") -> None:
        """Add what another one holds for the same ``keep``; ``other`` stays as it is."""
        forgotten = other._forgotten
        self.add(other._values.copy() if other is self else other._values)
        self._compact()
        if other._floor == self._floor:
            self._forgotten += forgotten

    @property
    def ascending(self) -> FloatArray:
        """The numbers held, ascending: at least the ``keep`` largest, or all that there are.

        A view, good until more numbers are added.
        """
        if not self._is_sorted:
            self._values.sort()
            self._is_sorted = True
        return self._values

    def reaching(self, value: float) -> int:
        """How many of all numbers seen are at least ``value``, one of the ``keep`` largest."""
        values = self.ascending
        held = values.size - int(np.searchsorted(values, value))
        return held + (self._forgotten if value == self._floor else 0)

    @property
    def _values(self) -> FloatArray:
        return np.empty(0) if self._held is None else self._held[: self._held_size]

    def _add_block(self, values: FloatArray) -> None:
        """Hold a copy of the values above the floor; of those equal to it keep count."""
        if self._floor == -np.inf:
            above = values[values > -np.inf]
        else:
            reaching = values.compress(values >= self._floor)  # faster than a mask in brackets
            above = reaching[reaching > self._floor]
            self._forgotten += reaching.size - above.size
        if not above.size:
            return
        end = self._held_size + above.size
        self._room_for(above)[self._held_size : end] = above
        self._held_size, self._is_sorted = end, False
        if end > self._full:
            self._compact()

    def _room_for(self, values: FloatArray) -> FloatArray:
        """What is held, with room for a block more, in a type that holds ``values`` exactly."""
        dtype = values.dtype if self._held is None else np.result_type(self._held, values)
        if self._held is None or self._held.dtype != dtype or self._held.size < self._full + BLOCK:
            before, self._held = self._values, np.empty(self._full + BLOCK, dtype=dtype)
            self._held[: before.size] = before
        return self._held

    def __getstate__(self) -> dict[str, object]:
        """The ``keep`` largest, without the room, in which anything may stand."""
        self._compact()
        return {**self.__dict__, "_held": None if self._held is None else self._values}

    def _compact(self) -> None:
        """Forget all but the ``keep`` largest values held, and raise the floor to the smallest."""
        values = self._values
        surplus = values.size - self.keep
        if surplus < 0:
            return
        values.partition(surplus)
        floor = values[surplus]
        if floor > self._floor:
            self._forgotten = 0
        self._forgotten += int(np.count_nonzero(values[:surplus] == floor))
        self._floor = floor
        moved = min(surplus, self.keep)  # from the end over those forgotten
        values[:moved] = values[values.size - moved :]
        self._held_size, self._is_sorted = self.keep, False
