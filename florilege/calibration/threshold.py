"""The threshold for sets of K classes on average: Algorithm 1 of the two-head paper, exactly.

It keeps the ``K rows`` largest of all ``rows x classes`` scores, which is ``K`` per row on average.
``lambda_val`` lies midway between the last score kept and the first one cut.

References:
    Garcin et al., "A two-head loss function for deep Average-K classification", Algorithm 1.
"""

import math
import sys
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.sets import BLOCK, FloatArray, as_scores

RealNumber = int | float | Decimal | Fraction | np.floating[Any]


@dataclass(frozen=True, kw_only=True)
class Threshold:
    """A threshold and its effect on the scores that chose it."""

    lambda_val: float  # finite; a class is kept when its score, in float64, is at least this
    achieved: float  # mean set size on these scores; exceeds the requested one by ``ties / rows``
    rows: int  # rows of these scores
    ties: int  # scores kept beyond the rank, because they equal the last one within it


class Largest:
    """The ``keep`` largest numbers of a stream, one or more.

    The smallest of these is the floor: numbers below it are dropped, and numbers equal to it are
    only counted. ``-inf`` is ignored.
    """

    def __init__(self, keep: int) -> None:
        self.keep = keep
        self._full = keep + max(keep // 2, BLOCK)  # a larger buffer is cut down to `keep` numbers
        self._buffer: FloatArray | None = None  # the `keep` largest so far, more numbers, free room
        self._buffer_size = 0
        self._floor: np.floating[Any] = np.float16(-np.inf)  # the smallest of those `keep`
        self._dropped = 0  # numbers equal to the floor that are not in the buffer
        self._is_sorted = True

    def add(self, values: FloatArray) -> None:
        """Add numbers without NaN, shape ``(size,)``, without keeping a reference."""
        for start in range(0, values.size, BLOCK):
            self._add_block(values[start : start + BLOCK])

    def merge(self, other: "Largest") -> None:
        """Add the numbers of another one with the same ``keep``; ``other`` is not changed."""
        dropped = other._dropped
        self.add(other._values.copy() if other is self else other._values)
        self._compact()
        if other._floor == self._floor:
            self._dropped += dropped

    @property
    def ascending(self) -> FloatArray:
        """The ``keep`` largest numbers or more, ascending: a view, valid until more are added."""
        if not self._is_sorted:
            self._values.sort()
            self._is_sorted = True
        return self._values

    def reaching(self, value: float) -> int:
        """How many numbers seen are at least ``value``, which is one of the ``keep`` largest."""
        values = self.ascending
        count = values.size - int(np.searchsorted(values, value))
        return count + (self._dropped if value == self._floor else 0)

    def threshold(self, rank: int, rows: int) -> Threshold:
        """Threshold that keeps the ``rank`` largest scores and any that tie with the last of them.

        ``rank`` is below ``keep``; the scores are those of ``rows`` rows.
        """
        values = self.ascending
        if rank == 0:
            top = float(values[-1]) if values.size else -math.inf
            return Threshold(lambda_val=next_above(top), achieved=0.0, rows=rows, ties=0)
        if rank >= values.size:  # every possible score is kept
            smallest = float(values[0]) + 0.0 if values.size else next_above(-math.inf)
            return Threshold(lambda_val=smallest, achieved=values.size / rows, rows=rows, ties=0)
        last_kept, first_cut = float(values[-rank]), float(values[-rank - 1])
        members = rank if last_kept > first_cut else self.reaching(last_kept)
        middle = (last_kept + first_cut) / 2
        if not math.isfinite(middle):
            middle = last_kept / 2 + first_cut / 2
        above = (middle if middle > first_cut else last_kept) + 0.0  # never -0.0
        return Threshold(lambda_val=above, achieved=members / rows, rows=rows, ties=members - rank)

    @property
    def _values(self) -> FloatArray:
        return np.empty(0) if self._buffer is None else self._buffer[: self._buffer_size]

    def _add_block(self, values: FloatArray) -> None:
        """Copy the values above the floor to the buffer, and count those equal to it."""
        if self._floor == -np.inf:
            above = values[values > -np.inf]
        else:
            reaching = values.compress(values >= self._floor)  # faster than indexing with a mask
            above = reaching[reaching > self._floor]
            self._dropped += reaching.size - above.size
        if not above.size:
            return
        end = self._buffer_size + above.size
        self._room_for(above)[self._buffer_size : end] = above
        self._buffer_size, self._is_sorted = end, False
        if end > self._full:
            self._compact()

    def _room_for(self, values: FloatArray) -> FloatArray:
        """The buffer with room for another block, in a type that is exact for ``values``."""
        dtype = values.dtype if self._buffer is None else np.result_type(self._buffer, values)
        size = self._full + BLOCK
        if self._buffer is None or self._buffer.dtype != dtype or self._buffer.size < size:
            content, self._buffer = self._values, np.empty(size, dtype=dtype)
            self._buffer[: content.size] = content
        return self._buffer

    def __getstate__(self) -> dict[str, object]:
        """The state for pickle, without the unused part of the buffer."""
        self._compact()
        return {**self.__dict__, "_buffer": None if self._buffer is None else self._values}

    def _compact(self) -> None:
        """Drop all but the ``keep`` largest values, and raise the floor to the smallest of them."""
        values = self._values
        surplus = values.size - self.keep
        if surplus < 0:
            return
        values.partition(surplus)
        floor = values[surplus]
        if floor > self._floor:
            self._dropped = 0
        self._dropped += int(np.count_nonzero(values[:surplus] == floor))
        self._floor = floor
        moved = min(surplus, self.keep)  # from the end to the place of dropped values
        values[:moved] = values[values.size - moved :]
        self._buffer_size, self._is_sorted = self.keep, False


def threshold_text(lambda_val: float | None, digits: int = 6) -> str:
    """A threshold for people to read.

    Where scores tie at zero, the threshold may be the next float above it, 4.94e-324, which keeps
    every class with a score above zero.

    Example:
        >>> [threshold_text(value) for value in (0.0321456789, 5e-324, 0.0, None)]
        ['0.0321457', '> 0', '0', '-']
    """
    if lambda_val is None:
        return "-"
    return "> 0" if 0 < lambda_val < sys.float_info.min else f"{lambda_val:.{digits}g}"


def average_k_threshold(scores: ArrayLike, average_k: RealNumber) -> Threshold:
    """Choose ``lambda_val`` so that on average ``average_k`` classes of a row reach it.

    Args:
        scores: Shape ``(rows, classes)``, float16, float32 or float64; ``-inf`` marks a class
            that is in no set.
        average_k: Requested mean set size, ``0 <= average_k <= classes``, fractions allowed.

    Returns:
        The threshold. It keeps all scores that tie at the cut. At rank 0 ``lambda_val`` is the next
        float64 above the largest score; where nothing is cut, it is the smallest score.

    Raises:
        ValueError: A NaN or +inf among the scores, a wrong shape, or ``average_k`` out of range.

    Example:
        >>> average_k_threshold([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25]], 1.5)
        Threshold(lambda_val=0.3, achieved=1.5, rows=2, ties=0)
    """
    array = as_scores(scores)
    rows, classes = array.shape
    check_average_k(average_k, lowest=0, classes=classes)
    rank = exact_rank(average_k, rows)
    largest = Largest(rank + 1)
    largest.add(array.reshape(-1))
    return largest.threshold(rank, rows)


def exact_rank(average_k: RealNumber, rows: int) -> int:
    """``floor(average_k * rows)`` in exact decimal arithmetic.

    A float counts as its shortest decimal text.

    Example:
        >>> int(0.7 * 700), exact_rank(0.7, 700)
        (489, 490)
    """
    return math.floor(as_fraction(average_k) * rows)


def as_fraction(number: RealNumber) -> Fraction:
    """The exact value of the number's decimal text: 0.1 is one tenth."""
    return Fraction(str(number))


def check_average_k(average_k: RealNumber, *, lowest: RealNumber, classes: int) -> None:
    """Raise ValueError unless ``lowest <= average_k <= classes``."""
    if isinstance(average_k, bool) or not isinstance(average_k, Real | Decimal):
        raise ValueError(f"average_k must be a number, got {average_k!r}")
    if not lowest <= average_k <= classes:
        raise ValueError(
            f"average_k must be in [{lowest}, {classes}] for {classes} classes, got {average_k}"
        )


def next_above(largest: float) -> float:
    """The next float64 above the largest score, which no score reaches.

    Raises:
        ValueError: The score is the largest float64.
    """
    above = math.nextafter(largest, math.inf)
    if above == math.inf:
        raise ValueError(f"scores must be below the largest float64, got {largest}")
    return above
