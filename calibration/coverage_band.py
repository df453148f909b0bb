"""The least coverage of a set rule, for every threshold at once.

Whoever compares thresholds on calibration photos and takes one, because it hits often or its sets
have the right size, has looked at the data: an interval for a fixed threshold then promises too
much. :func:`least_coverage` holds for all thresholds together, so also for the chosen one.
"""

import math

import numpy as np

from florilege.calibration.threshold import RealNumber

LEAST_COVERAGE_DELTA = 0.1
"""Share of calibrations in which an answer may promise too much coverage."""
DELTAS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
ROWS = (50, 100, 1_000, 10_000, 100_000, 1_000_000)
CRITICAL = np.array(
    [
        [2.330, 3.117, 3.879, 4.860, 5.597, 6.318, 7.331, 7.914],
        [2.438, 3.219, 3.988, 4.960, 5.704, 6.412, 7.354, 8.126],
        [2.731, 3.549, 4.324, 5.282, 6.022, 6.802, 7.714, 8.351],
        [2.987, 3.819, 4.621, 5.676, 6.359, 7.054, 7.922, 8.668],
        [3.226, 4.039, 4.887, 5.978, 6.687, 7.436, 7.995, 8.682],
        [3.450, 4.300, 5.130, 6.200, 6.950, 7.650, 8.400, 9.000],
    ]
)
"""Quantiles of the statistic of Berk and Jones by ``ROWS`` and ``DELTAS``, simulated with
``python -m benchmarks.sets.coverage_band``; it depends on nothing else."""


def critical_value(rows: int, delta: float) -> float:
    """The value that the statistic exceeds with probability ``delta`` at most.

    Between the entries of ``CRITICAL``, it is that of the next larger number of rows and the next
    smaller delta.

    Raises:
        ValueError: ``delta`` outside [0.001, 1), or more than a million rows.
    """
    if not DELTAS[-1] <= delta < 1:
        raise ValueError(f"delta must be in [{DELTAS[-1]}, 1), got {delta}")
    if rows > ROWS[-1]:
        raise ValueError(f"rows must be at most {ROWS[-1]:,}, got {rows:,}")
    line = int(np.searchsorted(ROWS, rows))
    column = next(at for at, level in enumerate(DELTAS) if level <= delta)
    return float(CRITICAL[line, column])


def least_coverage(hits: int, rows: int, *, delta: float = 0.1, candidates: int = 1) -> float:
    r"""Least coverage on new photos of any threshold with ``hits`` hits in ``rows`` photos.

    With probability at least ``1 - delta`` over the calibration photos, the coverage of every
    threshold is at least this at the same time, however one of them is chosen, and whichever of
    ``candidates`` heads, kinds of score and temperatures was chosen on the same photos. The true
    scores must not tie much, and photos must be independent: one of each plant.

    It is the smallest coverage :math:`c` below the hit rate :math:`h` with

    .. math:: n \, \Bigl(h \log\frac{h}{c} + (1 - h) \log\frac{1 - h}{1 - c}\Bigr) \le q

    with the critical value :math:`q` of Berk and Jones for ``delta / candidates``.

    Args:
        hits: Photos whose set holds the true class, at least half of ``rows``.
        rows: Photos.
        delta: Share of calibrations that may promise too much.
        candidates: Number of scores that were compared on these photos, Bonferroni's correction.

    Returns:
        The coverage, 0 where no more than half of the photos hit or there is no critical value for
        so small a ``delta / candidates``.

    References:
        Berk and Jones, "Goodness-of-fit test statistics that dominate the Kolmogorov statistics",
        1979; Owen, "Nonparametric likelihood confidence bands for a distribution function", 1995.

    Example:
        >>> round(least_coverage(975, 1000), 3), round(least_coverage(9750, 10_000), 3)
        (0.958, 0.97)
    """
    if rows < 1 or not 0 <= hits <= rows:
        raise ValueError(f"hits must be in [0, rows] and rows at least 1, got {hits} of {rows}")
    level = delta / candidates
    if 2 * hits <= rows or level < DELTAS[-1]:
        return 0.0
    limit, misses = critical_value(rows, level) / rows, (rows - hits) / rows
    low, high = misses, 1.0
    for _ in range(60):  # bisection, for the largest share of misses that fits
        middle = (low + high) / 2
        low, high = (middle, high) if _divergence(misses, middle) <= limit else (low, middle)
    return 1.0 - high


def _divergence(share: RealNumber, other: float) -> float:
    """Kullback-Leibler divergence of two probabilities of a miss."""
    share = float(share)
    first = share * math.log(share / other) if share else 0.0
    return first + ((1 - share) * math.log((1 - share) / (1 - other)) if share < 1 else 0.0)
