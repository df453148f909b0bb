"""Split conformal prediction: thresholds that guarantee a coverage, for all classes or for each."""

from decimal import Decimal
from fractions import Fraction
from math import ceil, floor
from numbers import Real

import numpy as np

from florilege.calibration.threshold import RealNumber, as_fraction
from florilege.calibration.validation import Floats, Ints


def _check_coverage(coverage: RealNumber) -> None:
    """Raise ValueError unless ``0 < coverage < 1``."""
    if not isinstance(coverage, Real | Decimal) or not 0 < coverage < 1:
        raise ValueError(f"coverage must be a number in (0, 1), got {coverage!r}")


def conformal_rank(coverage: RealNumber, rows: int, *, largest_plant: int = 1) -> int:
    """How many true-class scores lie at or below the threshold: ``floor((1 - coverage)(n + 1))``.

    In exact arithmetic, this is the rank ``ceil((n + 1) coverage)`` counted from the other end.
    With up to ``m`` photos of each plant, a new photo shows a new plant, all of whose photos may
    have the lowest scores. The rank is then ``floor((1 - coverage)(n + m)) - m + 1``, by conformal
    risk control: the loss of a plant is its misses less those allowed. ``n`` is ``rows``, ``m`` is
    ``largest_plant``.

    References:
        Angelopoulos, Bates, Fisch, Lei and Schuster, "Conformal risk control", arXiv 2208.02814.

    Example:
        >>> conformal_rank(0.9, 99), conformal_rank(0.9, 8)
        (10, 0)
        >>> conformal_rank(0.9, 97, largest_plant=4)
        7
    """
    _check_coverage(coverage)
    misses = floor((Fraction(1) - as_fraction(coverage)) * (rows + largest_plant))
    return max(0, misses - largest_plant + 1)


def fewest_rows(coverage: RealNumber) -> int:
    """The fewest rows with which a threshold that cuts anything can guarantee the coverage.

    Example:
        >>> fewest_rows(0.9), conformal_rank(0.9, 9), conformal_rank(0.9, 8)
        (9, 1, 0)
    """
    _check_coverage(coverage)
    return ceil(1 / (Fraction(1) - as_fraction(coverage))) - 1


def pac_rank(coverage: RealNumber, rows: int, delta: float) -> int:
    """How many true-class scores may lie at or below a threshold of guaranteed coverage.

    This is the largest ``k`` with ``P(Binomial(n, 1 - coverage) >= k) >= 1 - delta``. The sets
    then reach the requested coverage in all but a share ``delta`` of calibrations.

    Example:
        >>> pac_rank(0.9, 1000, 0.1), conformal_rank(0.9, 1000)
        (88, 100)
    """
    _check_coverage(coverage)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    fewer = np.cumsum(binomial(rows, float(1 - as_fraction(coverage))))[:-1]  # than 1, 2, ... rows
    return int(np.count_nonzero(fewer <= delta))  # sums are small: 1 - delta may round to 1


def binomial(rows: int, probability: float) -> Floats:
    """Probabilities of 0, 1, ... ``rows`` successes in as many independent trials."""
    counts = np.arange(rows + 1)
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, rows + 1)))])  # of factorials
    choices = logs[-1] - logs - logs[::-1]
    powers = counts * np.log(probability) + (rows - counts) * np.log1p(-probability)
    return np.asarray(np.exp(choices + powers), dtype=np.float64)


def true_score_quantile(true_scores: Floats, rank: int) -> float:
    """The ``rank``-th smallest true-class score; ``-inf`` at rank 0, which cuts nothing.

    ``true_scores`` have shape ``(rows,)``: ``+inf`` for a class that is always in the set.
    """
    return float(np.partition(true_scores, rank - 1)[rank - 1]) if rank else -np.inf


def class_quantiles(
    true_scores: Floats, labels: Ints, classes: int, coverage: RealNumber
) -> tuple[Floats, float]:
    """The conformal threshold of the rows of each class, ``(classes,)``, and that of all rows.

    ``true_scores`` are those of each row's true class, ``+inf`` where it is always in the set. Both
    they and ``labels`` have the shape ``(rows,)``. A threshold is ``-inf`` for fewer than
    ``1/(1 - coverage) - 1`` rows: then only the set of all classes has the guarantee.
    """

    def quantile(of_rows: Floats) -> float:
        return true_score_quantile(of_rows, conformal_rank(coverage, of_rows.size))

    own = [quantile(true_scores[labels == label]) for label in range(classes)]
    return np.array(own), quantile(true_scores)


def interpolate(own: Floats, shared: float, macro_weight: float) -> Floats:
    """``w own + (1 - w) shared`` with ``w = macro_weight``, never outside the two.

    Rounding puts no threshold above the score it equals, so both ends of ``w`` are exact.
    """
    mixed = macro_weight * own + (1 - macro_weight) * shared
    return np.clip(mixed, np.minimum(own, shared), np.maximum(own, shared))


def promised_coverage(coverage: RealNumber, macro_weight: float) -> float:
    """The share of all photos that ``class_coverage`` covers at least, on average.

    It is ``coverage`` at both ends of ``macro_weight``. Between them a threshold is at most the
    higher of that of the class and that of all rows. A set without its true class is therefore a
    miss at one of these two, and each of them misses at most ``1 - coverage`` of all photos.
    Together they miss at most ``2 (1 - coverage)``, and some data come close to it.
    """
    misses = (1 if macro_weight in (0, 1) else 2) * (1 - as_fraction(coverage))
    return float(max(Fraction(0), 1 - misses))
