"""Split conformal prediction: the rank among true-class scores that keeps a coverage promise."""

from fractions import Fraction
from math import floor

import numpy as np
from numpy.typing import NDArray

from calibration.threshold import RealNumber, as_fraction


def check_coverage(coverage: RealNumber) -> None:
    """Raise ValueError unless ``0 < coverage < 1``."""
    if not 0 < coverage < 1:
        raise ValueError(f"coverage must be in (0, 1), got {coverage}")


def conformal_rank(coverage: RealNumber, rows: int) -> int:
    """How many true-class scores lie at or below the threshold: ``floor((1 - coverage)(n + 1))``.

    The same rank as ``ceil((n + 1) coverage)`` counted from the other side, in exact arithmetic.

    Example:
        >>> conformal_rank(0.9, 99), conformal_rank(0.9, 8)
        (10, 0)
    """
    check_coverage(coverage)
    return floor((Fraction(1) - as_fraction(coverage)) * (rows + 1))


def true_score_quantile(true_scores: NDArray[np.float64], rank: int) -> float:
    """The ``rank``-th smallest true-class score; ``-inf`` at rank 0, where no score is low enough.

    Args:
        true_scores: Score of the true class of each calibration row, shape ``(rows,)``; ``+inf``
            where the class is in the set whatever the threshold.
        rank: From 0 to the number of rows.
    """
    if rank == 0:
        return -np.inf
    return float(np.partition(true_scores, rank - 1)[rank - 1])
