"""Split conformal prediction: the rank among true-class scores that guarantees a coverage."""

from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from numbers import Real

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.threshold import RealNumber, as_fraction


def check_coverage(coverage: RealNumber) -> None:
    """Raise ValueError unless ``0 < coverage < 1``."""
    if not isinstance(coverage, Real | Decimal) or not 0 < coverage < 1:
        raise ValueError(f"coverage must be a number in (0, 1), got {coverage!r}")


def conformal_rank(coverage: RealNumber, rows: int, *, largest_plant: int = 1) -> int:
    """How many true-class scores lie at or below the threshold: ``floor((1 - coverage)(n + 1))``.

    In exact arithmetic, this is the rank ``ceil((n + 1) coverage)`` counted from the other end.
    With up to ``m`` photos of each plant, a new photo shows a new plant, all of whose photos may
    have the lowest scores. The rank is then ``floor((1 - coverage)(n + m)) - m + 1``, by conformal
    risk control: the loss of a plant is its misses less those allowed.

    Args:
        coverage: Requested probability, in (0, 1).
        rows: ``n``.
        largest_plant: ``m``, the most photos of one plant.

    References:
        Angelopoulos, Bates, Fisch, Lei and Schuster, "Conformal risk control", arXiv 2208.02814.

    Example:
        >>> conformal_rank(0.9, 99), conformal_rank(0.9, 8)
        (10, 0)
        >>> conformal_rank(0.9, 99, largest_plant=4)
        7
    """
    check_coverage(coverage)
    misses = floor((Fraction(1) - as_fraction(coverage)) * (rows + largest_plant))
    return max(0, misses - largest_plant + 1)


def fewest_rows(coverage: RealNumber) -> int:
    """The fewest rows with which a threshold that cuts anything can guarantee the coverage.

    Example:
        >>> fewest_rows(0.9), conformal_rank(0.9, 9), conformal_rank(0.9, 8)
        (9, 1, 0)
    """
    check_coverage(coverage)
    return ceil(1 / (Fraction(1) - as_fraction(coverage))) - 1


def pac_rank(coverage: RealNumber, rows: int, delta: float) -> int:
    """How many true-class scores may lie at or below a threshold of guaranteed coverage.

    This is the largest ``k`` with ``P(Binomial(n, 1 - coverage) >= k) >= 1 - delta``. The sets
    then reach the requested coverage in all but a share ``delta`` of calibrations.

    Example:
        >>> pac_rank(0.9, 1000, 0.1), conformal_rank(0.9, 1000)
        (88, 100)
    """
    check_coverage(coverage)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    fewer = np.cumsum(binomial(rows, float(1 - as_fraction(coverage))))[:-1]  # than 1, 2, ... rows
    return int(np.count_nonzero(fewer <= delta))  # sums are small: 1 - delta may round to 1


def binomial(rows: int, probability: float) -> NDArray[np.float64]:
    """Probabilities of 0, 1, ... ``rows`` successes in as many independent trials.

    Example:
        >>> binomial(2, 0.5)
        array([0.25, 0.5 , 0.25])
    """
    counts = np.arange(rows + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, rows + 1)))])  # of factorials
    choices = logs[-1] - logs - logs[::-1]
    powers = counts * np.log(probability) + (rows - counts) * np.log1p(-probability)
    return np.asarray(np.exp(choices + powers), dtype=np.float64)


def true_score_quantile(true_scores: NDArray[np.float64], rank: int) -> float:
    """The ``rank``-th smallest true-class score; ``-inf`` at rank 0, which cuts nothing.

    Args:
        true_scores: Score of the true class of each calibration row, shape ``(rows,)``; ``+inf``
            where the class is in the set whatever the threshold.
        rank: From 0 to the number of rows.
    """
    if rank == 0:
        return -np.inf
    return float(np.partition(true_scores, rank - 1)[rank - 1])
