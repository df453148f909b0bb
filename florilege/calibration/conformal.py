"""Split conformal prediction: thresholds that guarantee a coverage, for all classes or for each."""

from bisect import bisect_right
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache, partial
from math import ceil, floor
from numbers import Real
from typing import NamedTuple

import numpy as np

from florilege.calibration.sets import Floats, Ints
from florilege.calibration.threshold import RealNumber, as_fraction


def check_coverage(coverage: RealNumber) -> None:
    """Raise ValueError unless ``0 < coverage < 1``."""
    if not isinstance(coverage, Real | Decimal) or not 0 < coverage < 1:
        raise ValueError(f"coverage must be a number in (0, 1), got {coverage!r}")


def _check_candidates(candidates: int) -> None:
    """Raise ValueError unless it is a positive whole number."""
    if candidates < 1 or candidates != int(candidates):
        raise ValueError(f"candidates must be a whole number of at least 1, got {candidates}")


def conformal_rank(coverage: RealNumber, rows: int, *, candidates: int = 1) -> int:
    """How many true-class scores lie at or below the threshold: ``floor((1 - coverage)(n + 1))``.

    In exact arithmetic, this is the rank ``ceil((n + 1) coverage)`` counted from the other end.

    Where the same rows also chose the scores among several ``candidates``, the rank is the largest
    one at which the *largest* of so many shares of misses is expected to be at most
    ``1 - coverage``, see :func:`_largest_expected_miss`. The choice may then depend on anything.

    Example:
        >>> conformal_rank(0.9, 99), conformal_rank(0.9, 8)
        (10, 0)
        >>> conformal_rank(0.9, 3000, candidates=8), conformal_rank(0.9, 3000)
        (273, 300)
    """
    check_coverage(coverage)
    _check_candidates(candidates)
    misses = Fraction(1) - as_fraction(coverage)
    rank = floor(misses * (rows + 1))
    if candidates == 1 or rank == 0:
        return rank
    bound = partial(_largest_expected_miss, rows=rows, candidates=candidates)  # grows with the rank
    # The bound grows with the rank, so the number of ranks within the misses is the largest of
    # them.
    return bisect_right(range(1, rank + 1), float(misses), key=bound)


# Each kind of score of a calibration, and each coverage, asks again for the same rows.
@lru_cache(4096)
def _largest_expected_miss(rank: int, rows: int, candidates: int) -> float:
    r"""Bound on the mean of the largest share of misses of several scores, however dependent.

    A threshold at the ``r``-th of ``n`` true-class scores that do not tie misses a share of new
    photos that is distributed as :math:`B \sim \text{Beta}(r, n + 1 - r)`. For any :math:`t`

    .. math:: E \max_j B_j \le t + m \, E \max(B - t, 0)

    which is least where :math:`P(B > t) = 1 / m`, and is then
    :math:`m \frac{r}{n + 1} P(\text{Binomial}(n + 1, t) \le r)`.

    References:
        Lai and Robbins, "Maximally dependent random variables", 1976, for the inequality.

    Example:
        >>> round(_largest_expected_miss(10, 99, 1), 3), round(_largest_expected_miss(10, 99, 8), 3)
        (0.1, 0.154)
    """
    if candidates == 1:
        return rank / (rows + 1)
    # Of n uniform draws the r-th smallest, which is Beta(r, n + 1 - r), exceeds t if fewer than r
    # lie below t: a binomial probability.
    quantile = border(lambda t: at_most(rank - 1, rows, t) * candidates > 1, 0.0, 1.0)  # 1 - 1/m
    return candidates * rank / (rows + 1) * at_most(rank, rows + 1, quantile)


def border(is_inside: Callable[[float], bool], inside: float, outside: float) -> float:
    """The point between the two where ``is_inside`` becomes false, rounded outwards."""
    for _ in range(60):  # halvings
        middle = (inside + outside) / 2
        inside, outside = (middle, outside) if is_inside(middle) else (inside, middle)
    return outside


def at_most(successes: int, rows: int, probability: float) -> float:
    """Probability of at most so many successes in independent trials."""
    # 0 times the logarithm of 0 would be NaN.
    if probability == 0:
        return 1.0
    counts, choices = np.arange(successes + 1), _log_choices(rows)[: successes + 1]
    powers = counts * np.log(probability) + (rows - counts) * np.log1p(-probability)
    return float(np.exp(choices + powers).sum())


# A search for a rank asks hundreds of times for the same rows.
@lru_cache(8)
def _log_choices(rows: int) -> Floats:
    """Logarithms of the binomial coefficients of ``rows`` over 0, 1, ... ``rows``."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, rows + 1)))])  # of factorials
    choices: Floats = logs[-1] - logs - logs[::-1]
    return choices


def fewest_rows(coverage: RealNumber, *, candidates: int = 1) -> int:
    """The fewest rows with which a threshold that cuts anything can guarantee the coverage.

    More where they also chose among ``candidates``, as in :func:`conformal_rank`.

    Example:
        >>> fewest_rows(0.9), conformal_rank(0.9, 9), conformal_rank(0.9, 8)
        (9, 1, 0)
        >>> fewest_rows(0.9, candidates=16)
        36
    """
    check_coverage(coverage)
    inverse = ceil(1 / (Fraction(1) - as_fraction(coverage)))
    rows = range(inverse - 1, candidates * inverse)
    rank = partial(conformal_rank, coverage, candidates=candidates)
    return rows[bisect_right(rows, 0, key=rank)]


def pac_rank(coverage: RealNumber, rows: int, delta: float, *, candidates: int = 1) -> int:
    """How many true-class scores may lie at or below a threshold of guaranteed coverage.

    This is the largest ``k`` with ``P(Binomial(n, 1 - coverage) >= k) >= 1 - delta``. The sets
    then reach the requested coverage in all but a share ``delta`` of calibrations. Where the same
    rows also chose the scores among several ``candidates``, each of these gets an equal part of
    ``delta``: however they chose, the promise then holds.

    Example:
        >>> conformal_rank(0.9, 1000), pac_rank(0.9, 1000, 0.1)
        (100, 88)
        >>> pac_rank(0.9, 1000, 0.1, candidates=8)
        79
    """
    check_coverage(coverage)
    _check_candidates(candidates)
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    delta /= candidates
    fewer = np.cumsum(binomial(rows, float(1 - as_fraction(coverage))))[:-1]  # than 1, 2, ... rows
    # P(X < k) <= delta instead of P(X >= k) >= 1 - delta: for a tiny delta, 1 - delta rounds to 1.
    return int(np.count_nonzero(fewer <= delta))


def binomial(rows: int, probability: float) -> Floats:
    """Probabilities of 0, 1, ... ``rows`` successes in as many independent trials."""
    counts = np.arange(rows + 1)
    powers = counts * np.log(probability) + (rows - counts) * np.log1p(-probability)
    return np.asarray(np.exp(_log_choices(rows) + powers), dtype=np.float64)


def true_score_quantile(true_scores: Floats, rank: int) -> float:
    """The ``rank``-th smallest true-class score; ``-inf`` at rank 0, which cuts nothing.

    ``true_scores`` have shape ``(rows,)``: ``+inf`` for a class that is always in the set.
    """
    return float(np.partition(true_scores, rank - 1)[rank - 1]) if rank else -np.inf


def class_quantiles(
    true_scores: Floats,
    labels: Ints,
    classes: int,
    coverage: RealNumber,
    *,
    candidates: int = 1,
    below: int = 0,
) -> tuple[Floats, float]:
    """The conformal threshold of the rows of each class, ``(classes,)``, and that of all rows.

    ``true_scores`` are those of each row's true class, ``+inf`` where it is always in the set. Both
    they and ``labels`` have the shape ``(rows,)``. A threshold is ``-inf`` for fewer than
    ``1/(1 - coverage) - 1`` rows: then only the set of all classes has the guarantee. With
    ``below`` thresholds are so many ranks lower.
    """

    def quantile(of_rows: Floats) -> float:
        rank = conformal_rank(coverage, of_rows.size, candidates=candidates)
        return true_score_quantile(of_rows, max(0, rank - below))

    own = [quantile(true_scores[labels == label]) for label in range(classes)]
    return np.array(own), quantile(true_scores)


def interpolate(own: Floats, shared: float, macro_weight: float) -> Floats:
    """``w own + (1 - w) shared`` with ``w = macro_weight``, never outside the two.

    Rounding puts no threshold above the score it equals, so both ends of ``w`` are exact.
    """
    mixed = macro_weight * own + (1 - macro_weight) * shared
    return np.clip(mixed, np.minimum(own, shared), np.maximum(own, shared))


class Cut(NamedTuple):
    """Quantiles of each class, ``(classes,)``, and of all rows, with the scores one rank lower."""

    own: Floats
    shared: float
    own_below: Floats
    shared_below: float


# In place of 0: by that a score of 0 cannot be divided; it would count as covered, and be missed.
_LEAST_THRESHOLD = 1e-150


def interpolated_thresholds(
    true_scores: Floats,
    labels: Ints,
    cut: Cut,
    coverage: RealNumber,
    macro_weight: float,
    *,
    candidates: int = 1,
) -> Floats:
    r"""Thresholds between those of each class and that of all rows that cover ``coverage`` of all.

    Let :math:`T_c = w Q_c + (1 - w) Q` interpolate the quantiles of class and of all rows. Their
    own coverage is unknown: a row may be missed by either. So all are multiplied by the factor
    :math:`f`, the conformal quantile of the ratios :math:`s_i / T_{y_i}`.

    The rows that chose :math:`T` would look better than new ones, so a new row of class ``c`` with
    the score ``s`` counts among those that choose. It moves the quantiles to
    :math:`\min(\max(s, Q^-), Q)`, between the score one rank lower and the old one. All ratios are
    then exchangeable, and the least ``s`` to be in the set solves

    .. math:: s = f (w \min(\max(s, Q^-_c), Q_c) + (1 - w) Q^-)

    Here :math:`Q^-` for all rows, and :math:`Q` in the ratios, make sets a trifle too large rather
    than too small. So the coverage is at least ``coverage`` on average over calibrations.

    Args:
        true_scores, labels: As in :func:`class_quantiles`; scores of 0 or more.
        cut: The quantiles, 0 or more.
        macro_weight: :math:`w`, above 0 and below 1.
        candidates: How many scores the rows chose among. The factor allows for it as
            :func:`conformal_rank` does, as if :math:`T` were known: this is simulated, not proved.

    Returns:
        Shape ``(classes,)``, 0 if all classes must be in every set and ``+inf`` if the best one
        suffices.

    References:
        Vovk, Gammerman and Shafer, "Algorithmic learning in a random world", 2005, for new rows
        that count (transductive conformal prediction); Ding, Fermanian and Salmon,
        arXiv 2507.06867, for the interpolation, which alone covers ``1 - 2 (1 - coverage)``.
    """
    mixed = interpolate(cut.own, cut.shared, macro_weight)
    ratios = true_scores / np.maximum(mixed, _LEAST_THRESHOLD)[labels]
    rank = conformal_rank(coverage, true_scores.size, candidates=candidates)
    factor = true_score_quantile(ratios, rank) if rank else 0.0
    if np.isinf(factor):
        return np.full(cut.own.shape, np.inf)
    of_all, of_class = factor * (1 - macro_weight) * cut.shared_below, factor * macro_weight
    # Where neither bound of the clamp is active the equation is linear, with the solution
    # s = f (1 - w) Q^- / (1 - f w). If f w is 1 or more, its right side outgrows s, up to the upper
    # bound. The clip then applies the clamp.
    score = np.inf if of_class >= 1 else of_all / (1 - of_class)  # solves it between two ranks
    lowered = np.clip(score, cut.own_below, cut.own)
    mixed = interpolate(lowered, cut.shared_below, macro_weight)
    # A score times over the same number may be a bit more than the score, which would miss its tie.
    thresholds: Floats = factor * (1 - 2.0**-50) * np.maximum(mixed, _LEAST_THRESHOLD)
    return thresholds
