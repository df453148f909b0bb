"""Mean set sizes that are guaranteed on new photos, not only on the calibration data.

Plain ``average_k`` exceeds K on new photos in half of all calibrations. Here the threshold is a
little higher, so that the mean size on new photos is at most K: on average over calibrations
(``mean``), or for all but a share ``delta`` of them (``probability``). Both need a largest set
size, and neither needs labels.

References:
    Angelopoulos, Bates, Fisch, Lei and Schuster, "Conformal risk control", arXiv 2208.02814.
    Bates, Angelopoulos, Lei, Malik and Jordan, "Distribution-free, risk-controlling prediction
    sets", arXiv 2101.02703.
    Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting",
    arXiv 2010.09686.
"""

import math

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.sets import FloatArray, row_blocks
from florilege.calibration.threshold import Largest, RealNumber, as_fraction, exact_rank, next_above

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
        self._largest = Largest(exact_rank(as_fraction(max_average_k) - min_size, rows) + 1)
        keep = max(1, max_size - min_size)
        self._first = np.full((rows, keep), THRESHOLDS.size, dtype=np.uint16)

    def add(self, rest: FloatArray) -> None:
        """Add rows of scores that the threshold applies to, shape ``(batch, classes)``."""
        batch, classes = rest.shape
        keep = min(self._first.shape[1], classes)
        best = np.partition(rest, classes - keep, axis=1)[:, classes - keep :]
        self._largest.add(best.reshape(-1))
        reached = np.searchsorted(THRESHOLDS[::-1], best, side="right")
        self._first[self._seen : self._seen + batch, :keep] = THRESHOLDS.size - reached
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
        order = np.random.default_rng(seed).permutation(self._seen)
        sizes = np.full(self._seen, self._min_size, dtype=np.int32)
        max_size, threshold = self._max_size, LARGEST
        for start in range(0, THRESHOLDS.size, AT_ONCE):
            added = self._reaching_first(start)[:, order]
            reached = sizes + np.cumsum(added, axis=0, dtype=np.int32)
            values = np.minimum(reached, max_size) / max_size  # (thresholds, rows)
            below = _means_are_below(values, float(average_k) / max_size, delta)
            passed = int(below.argmin()) if not below.all() else below.size
            if passed:
                threshold = float(THRESHOLDS[start + passed - 1])
            if passed < below.size:
                break
            sizes = reached[-1]
        return threshold

    def _reaching_first(self, start: int) -> NDArray[np.uint16]:
        """Scores of each row that reach each threshold and none above, ``(thresholds, rows)``."""
        stop = min(start + AT_ONCE, THRESHOLDS.size)
        counts = np.empty((stop - start, self._seen), dtype=np.uint16)
        for part in row_blocks(self._first[: self._seen]):
            first = self._first[part]
            rows, columns = np.nonzero((first >= start) & (first < stop))
            cells = (first[rows, columns] - np.int64(start)) * len(first) + rows
            cell_counts = np.bincount(cells, minlength=(stop - start) * len(first))
            counts[:, part] = cell_counts.reshape(stop - start, len(first))
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
    for part in (16, 4, 1):  # the first rows suffice for thresholds far above the right one
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
    means = (0.5 + np.cumsum(values, axis=1)) / (rows + 1)
    variances = (0.25 + np.cumsum((values - means) ** 2, axis=1)) / (rows + 1)
    # A bet depends on earlier rows only.
    before = np.insert(variances, 0, 0.25, axis=1)[:, : values.shape[1]]
    bets = np.minimum(np.sqrt(2 * math.log(1 / delta) / (total * before)), 0.75 / (1 - bound))
    capital: NDArray[np.float64] = np.cumsum(np.log1p(bets * (bound - values)), axis=1)
    return capital
