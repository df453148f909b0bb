"""The threshold for sets of K classes on average: Algorithm 1 of the two-head paper, exactly.

It keeps the ``K rows`` largest of all ``rows x classes`` scores, which is ``K`` per row on average.
``lambda_val`` lies midway between the last score kept and the first one cut.

Such sets exceed K on new photos in half of all calibrations. With a guarantee the threshold is a
little higher, so that the mean size on new photos is at most K: on average over calibrations
(``mean``), or for all but a share ``delta`` of them (``probability``). Both need a largest set
size, and neither needs labels.

References:
    Garcin et al., "A two-head loss function for deep Average-K classification", Algorithm 1.
    Angelopoulos, Bates, Fisch, Lei and Schuster, "Conformal risk control", arXiv 2208.02814.
    Bates, Angelopoulos, Lei, Malik and Jordan, "Distribution-free, risk-controlling prediction
    sets", arXiv 2101.02703.
    Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
    arXiv 2010.09686.
"""

import math
import sys
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.sets import BLOCK, FloatArray, as_scores, row_blocks

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
        # Half as many again at least: a compaction passes over the whole buffer, and is then paid
        # for by as many new numbers.
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
        # Read before anything is added, since the other may be this one.
        dropped = other._dropped
        self.add(other._values.copy() if other is self else other._values)
        self._compact()
        # The other's `keep` largest are now among these, so this floor is at least as high as its
        # floor. If it is higher, what the other dropped is below it.
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
        # The sum of two large logits can overflow. Between neighbouring floats the midpoint rounds
        # to one of them; if that is the lower one, the first score cut would be kept.
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
            # `compress` is faster than indexing with a mask.
            reaching = values.compress(values >= self._floor)
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
        # The order does not matter, so only as many move as there are free places at the start.
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


def check_average_k(
    average_k: RealNumber, *, lowest: RealNumber, classes: int, name: str = "average_k"
) -> None:
    """Raise ValueError, about ``name``, unless ``lowest <= average_k <= classes``."""
    if isinstance(average_k, bool) or not isinstance(average_k, Real | Decimal):
        raise ValueError(f"{name} must be a number, got {average_k!r}")
    if not lowest <= average_k <= classes:
        raise ValueError(
            f"{name} must be in [{lowest}, {classes}] for {classes} classes, got {average_k}"
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


LARGEST = float(np.finfo(np.float64).max)  # a threshold that no score reaches
_FINE = np.arange(-1, 64 * 24 + 1) / 64  # from just above 2**0 to 2**-24
_COARSE = 24 + np.arange(1, 8 * (240 - 24) + 1) / 8  # and on to 2**-240
THRESHOLDS: NDArray[np.float64] = 2.0 ** -np.concatenate([_FINE, _COARSE])
"""Candidates from just above 1, the highest score, downwards: 64 per factor of two, then 8. The
coarse ones are for the scores of very confident networks."""
DEFAULT_MAX_SIZE = 50
_RESERVE = 0.01
"""Share of K left for calibrations in which a mean size is exceeded. A smaller share needs a
rarer exceedance, hence a higher threshold; between .003 and .03 the mean size changes little."""
AT_ONCE = 16  # thresholds whose set sizes are counted together


class BestOfRows:
    """The best scores of each row, for thresholds with a guarantee.

    Each score is stored as the first of :data:`THRESHOLDS` that it reaches. This takes two bytes
    and suffices to count set sizes at these thresholds.

    Args:
        rows: Number of rows to come.
        max_average_k: The largest mean set size to be requested.
        max_size: ``B``, at least ``max_average_k``: sets keep at most their ``B`` best classes.
        min_size: How many classes are in each set whatever their score.
    """

    def __init__(
        self, rows: int, max_average_k: RealNumber, *, max_size: int, min_size: int
    ) -> None:
        self._max_size, self._min_size, self._seen = max_size, min_size, 0
        # Enough for `mean_threshold` too: B is at least K, so it never keeps more than this rank.
        self._largest = Largest(exact_rank(as_fraction(max_average_k) - min_size, rows) + 1)
        # One column even where the best class fills the set: blocks of rows need a width.
        keep = max(1, max_size - min_size)
        self._first = np.full((rows, keep), THRESHOLDS.size, dtype=np.uint16)
        # Between the thresholds that some score is the first to reach, no set changes.
        self._changes = np.zeros(THRESHOLDS.size + 1, dtype=np.bool_)
        self._changes[0] = True

    def add(self, rest: FloatArray) -> None:
        """Add rows of scores that the threshold applies to, shape ``(batch, classes)``."""
        batch, classes = rest.shape
        keep = min(self._first.shape[1], classes)
        best = np.partition(rest, classes - keep, axis=1)[:, classes - keep :]
        self._largest.add(best.reshape(-1))
        # The table descends, so the thresholds that a score reaches are its last ones.
        reached = np.searchsorted(THRESHOLDS[::-1], best, side="right")
        first = THRESHOLDS.size - reached
        self._first[self._seen : self._seen + batch, :keep] = first
        self._changes[first] = True
        self._seen += batch

    def mean_threshold(self, average_k: RealNumber, *, candidates: int = 1) -> float:
        """Threshold whose sets hold at most ``average_k`` classes in expectation.

        If a new row is exchangeable with the ``n`` calibration rows, its expected size is at most
        K when the calibration sizes sum to at most ``K (n + 1) - B``. Scores equal to the first one
        cut are cut too. The mean size is about ``(B - K) / n`` smaller for it.

        Where the rows chose among several ``candidates``, the threshold is that of a mean size
        below ``K' < K`` for all of these but with a small probability ``d``, in which a mean size
        may reach ``B``: ``K' + m d (B - K')`` is K.
        """
        if candidates > 1:
            lower = float(average_k) * (1 - _RESERVE)
            exceeded = (float(average_k) - lower) / (candidates * (self._max_size - lower))
            return self.probability_threshold(lower, delta=min(exceeded, 0.5))
        rows, always = self._seen, self._min_size * self._seen
        room = math.floor(as_fraction(average_k) * (rows + 1)) - self._max_size - always
        if room < 0:
            return LARGEST
        values = self._largest.ascending
        if values.size <= room:  # all scores may be kept
            return float(values[0]) if values.size else LARGEST
        return next_above(float(values[-room - 1]))

    def probability_threshold(self, average_k: RealNumber, *, delta: float, seed: int = 0) -> float:
        """Threshold whose mean set size is at most ``average_k`` with probability ``1 - delta``.

        Lowers the threshold as long as a test at level ``delta`` finds the mean size below K. The
        first one whose true mean size exceeds K passes with probability at most ``delta``. ``seed``
        shuffles the rows.
        """
        # Rows come class by class from a folder; for a bet, each must be a fresh draw given those
        # before it.
        order = np.random.default_rng(seed).permutation(self._seen)
        sizes = np.full(self._seen, self._min_size, dtype=np.int32)
        max_size = self._max_size
        indices = np.flatnonzero(self._changes[:-1])
        # From the top, and never past the first failure: a fixed sequence needs no correction for
        # the number of tests.
        for start in range(0, indices.size, AT_ONCE):
            part = indices[start : start + AT_ONCE]
            added = self._reaching_first(part)[:, order]
            reached = sizes + np.cumsum(added, axis=0, dtype=np.int32)
            values = np.minimum(reached, max_size) / max_size  # (thresholds, rows)
            below = _means_are_below(values, float(average_k) / max_size, delta)
            if not below.all():
                failed = part[below.argmin()]
                return float(THRESHOLDS[failed - 1]) if failed else LARGEST
            sizes = reached[-1]
        return float(THRESHOLDS[-1])

    def _reaching_first(self, indices: NDArray[np.int64]) -> NDArray[np.uint16]:
        """Scores of each row that reach each threshold and none above, ``(thresholds, rows)``.

        ``indices`` into :data:`THRESHOLDS` ascend; what is stored reaches none between them first.
        """
        counts = np.empty((indices.size, self._seen), dtype=np.uint16)
        places = np.zeros(THRESHOLDS.size, dtype=np.int64)
        places[indices] = np.arange(indices.size)
        lowest, highest = int(indices[0]), int(indices[-1])  # NumPy's would be slower
        for part in row_blocks(self._first[: self._seen]):
            first = self._first[part]
            rows, columns = np.nonzero((first >= lowest) & (first <= highest))
            cells = places[first[rows, columns]] * len(first) + rows
            cell_counts = np.bincount(cells, minlength=indices.size * len(first))
            counts[:, part] = cell_counts.reshape(indices.size, len(first))
        return counts


def _means_are_below(values: NDArray[np.float64], bound: float, delta: float) -> NDArray[np.bool_]:
    """Whether tests at level ``delta`` reject the hypotheses that each mean is at least ``bound``.

    A test bets against its hypothesis: the capital grows with every value below the bound and
    shrinks with every value above. If the hypothesis is true, the capital ever reaches ``1/delta``
    times its start with probability at most ``delta``.

    ``values`` are independent draws in [0, 1], shape ``(tests, rows)``, in random order.
    """
    tests, rows = values.shape
    rejected = np.full(tests, bound >= 1.0)
    # The first rows suffice for thresholds far above the right one, and few rows are soon done.
    for part in (16, 4, 1) if rows > 1000 else (1,):
        among = np.flatnonzero(~rejected)
        if among.size:
            capital = _log_capital(values[among, : rows // part], rows, bound, delta)
            rejected[among] = capital.max(axis=1, initial=0.0) >= math.log(1 / delta)
    return rejected


def _log_capital(
    values: NDArray[np.float64], total: int, bound: float, delta: float
) -> NDArray[np.float64]:
    """Log of the capital of each test after each of the first ones of ``total`` values."""
    rows = np.arange(1, values.shape[1] + 1)
    # Both begin as if one row had been seen, with mean 1/2 and variance 1/4, as in Waudby-Smith and
    # Ramdas.
    means = (0.5 + np.cumsum(values, axis=1)) / (rows + 1)
    variances = (0.25 + np.cumsum((values - means) ** 2, axis=1)) / (rows + 1)
    # A bet depends on earlier rows only.
    before = np.full_like(variances, 0.25)
    before[:, 1:] = variances[:, :-1]
    # `total`, not the rows given: the first rows are then bet on as they are in the whole. A value
    # of 1 takes at most three quarters of the capital, so that no single row can ruin it.
    bets = np.minimum(np.sqrt(2 * math.log(1 / delta) / (total * before)), 0.75 / (1 - bound))
    capital: NDArray[np.float64] = np.cumsum(np.log1p(bets * (bound - values)), axis=1)
    return capital
