"""95 % confidence intervals for figures measured on a sample of photos or over several seeds."""

from collections.abc import Sequence
from math import exp, inf, log, pi, sqrt
from statistics import stdev
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.conformal import border
from florilege.calibration.sets import Floats, Ints

Z95 = 1.959963984540054
"""The 97.5 % quantile of the normal distribution."""
T975 = (
    12.706204736174678, 4.30265272974946, 3.1824463052837064, 2.776445105197791,
    2.5705818356363146, 2.4469118511449666, 2.3646242515927836, 2.3060041352041662,
    2.262157162798204, 2.228138851986274, 2.2009851600916392, 2.1788128296672267,
    2.1603686564627904, 2.1447866879178044, 2.131449545559774, 2.119905299221254,
    2.1098155778333165, 2.100922040241036, 2.0930240544083074, 2.085963447265866,
    2.0796138447276795, 2.0738730679040227, 2.0686576104190473, 2.0638985616280223,
    2.059538552753297, 2.055529438642876, 2.051830516480285, 2.0484071417952454,
    2.0452296421327043, 2.042272456301238,
)  # fmt: skip
"""The 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom."""
FEWEST_OF_FEW = (
    0.0, 0.0513, 0.3554, 0.8177, 1.3663, 1.9701, 2.6130, 3.2853, 3.9808, 4.6952, 5.4254,
)  # fmt: skip
"""Means of Poisson's distribution with which 0, 1, ... 10 events or more have a chance of 5 %."""
BAND_DELTAS = (0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001)
BAND_ROWS = (50, 100, 1_000, 10_000, 100_000, 1_000_000)
BAND_CRITICAL = np.array(
    [
        [2.330, 3.117, 3.879, 4.860, 5.597, 6.318, 7.331, 7.914],
        [2.438, 3.219, 3.988, 4.960, 5.704, 6.412, 7.354, 8.126],
        [2.731, 3.549, 4.324, 5.282, 6.022, 6.802, 7.714, 8.351],
        [2.987, 3.819, 4.621, 5.676, 6.359, 7.054, 7.922, 8.668],
        [3.226, 4.039, 4.887, 5.978, 6.687, 7.436, 7.995, 8.682],
        [3.450, 4.300, 5.130, 6.200, 6.950, 7.650, 8.400, 9.000],
    ]
)
"""Quantiles of the statistic of Berk and Jones by ``BAND_ROWS`` and ``BAND_DELTAS``, simulated with
``python -m benchmarks.rules.coverage_band``; it depends on nothing else."""
_TAIL = 1.1  # how much a critical value grows for each factor e of a delta below the smallest


def wilson(hits: int, rows: int, *, effective: float | None = None) -> tuple[float, float]:
    """Interval for a probability after ``hits`` successes in ``rows`` independent trials.

    Its coverage is close to 95 % for every probability, and it never leaves [0, 1]. ``effective``
    are the :func:`effective_rows` of the trials, where they come in clusters.

    It is Wilson's, lengthened where successes or failures are few: of 27 sets with a hit rate of
    99.8 % one or more misses in 5 of 100 samples, and Wilson's interval then ends at 99.3 %. So
    each end is at least as far as the probability with which so many or more have a chance of 5 %.

    Raises:
        ValueError: ``rows`` below 1, or ``hits`` outside ``[0, rows]``.

    References:
        Wilson, "Probable inference, the law of succession, and statistical inference", 1927; Brown,
        Cai and DasGupta, "Interval estimation for a binomial proportion", 2001, for few failures.

    Example:
        >>> low, high = wilson(90, 100)
        >>> round(low, 4), round(high, 4)
        (0.8256, 0.9457)
        >>> round(wilson(26, 27)[1], 4)
        0.9981
    """
    if rows < 1 or not 0 <= hits <= rows:
        raise ValueError(f"hits must be in [0, rows] and rows at least 1, got {hits} of {rows}")
    trials = rows if effective is None else effective
    low, high = score_interval(hits / rows, trials)
    of_hits, of_misses = (_fewest(part / rows * trials) for part in (hits, rows - hits))
    return min(low, of_hits / trials), max(high, 1.0 - of_misses / trials)


def _fewest(count: float) -> float:
    """The expected number with which ``count`` events or more have a chance of 5 %.

    Where Wilson's interval is the longer one, it is ``count``. Effective rows have fractions.
    """
    if count > len(FEWEST_OF_FEW) - 1:
        return count
    return float(np.interp(count, range(len(FEWEST_OF_FEW)), FEWEST_OF_FEW))


def score_interval(share: float, rows: float, *, z: float = Z95) -> tuple[float, float]:
    """Wilson's interval for a probability, ``z`` standard errors each way; it is never empty."""
    square = z * z
    centre = (share + square / (2 * rows)) / (1 + square / rows)
    half = z * sqrt(share * (1 - share) / rows + square / (4 * rows * rows)) / (1 + square / rows)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(
    mean: float,
    deviation: float,
    rows: float,
    *,
    lowest: float = -inf,
    highest: float = inf,
    skewness: float = 0.0,
) -> tuple[float, float]:
    """Student's interval for a mean, given the standard deviation of the values.

    A single value, or equal values, do not show how much values vary. The interval then only uses
    that at most a share ``1 - 0.025 ** (1 / rows)`` of all values differs from the mean: it reaches
    that far towards ``lowest`` and ``highest``.

    Args:
        mean: Mean of the values.
        deviation: Root of their mean squared distance from the mean.
        rows: Number of values, or :func:`effective_rows`.
        lowest, highest: The smallest and the largest possible value.
        skewness: Of the values. A few large ones that the sample lacks move the mean up, and
            without them the deviation is too small. So the interval is longer towards the long
            tail: by Johnson's correction, and by the degrees of freedom of a variance
            (Satterthwaite) of values with the kurtosis of a gamma distribution. Student's alone
            held in 89 of 100 samples of 120 set sizes with a skewness of 5, this in 93.

    References:
        Johnson, "Modified t tests and confidence intervals for asymmetrical populations", 1978.
        Satterthwaite, "An approximate distribution of estimates of variance components", 1946.

    Example:
        >>> low, high = mean_interval(3.0, 2.0, 400)
        >>> round(low, 3), round(high, 3)
        (2.803, 3.197)
    """
    if rows <= 1 or deviation == 0:
        share = 1 - 0.025 ** (1 / rows)
        return (
            mean if mean == lowest else mean - share * (mean - lowest),
            mean if mean == highest else mean + share * (highest - mean),
        )
    # `deviation` divides by n: over the root of n - 1 it is the usual standard error.
    error, t = deviation / sqrt(rows - 1), _t975(rows - 1)
    # A variance has 2 n / (kurtosis - 1) degrees of freedom; a gamma's kurtosis is 3 + 1.5 g^2. One
    # large value among many has the kurtosis of 2 degrees of freedom, not that of a gamma.
    of_tail = _t975(min(rows - 1, max(2.0, 2 * rows / (2 + 1.5 * skewness * skewness))))
    # The second term is the shift of Johnson's t, skewness (1 + 2 t^2) / (6 n) standard deviations.
    longer = (of_tail - t) * error + abs(skewness) * deviation * (1 + 2 * t * t) / (6 * rows)
    below, above = (longer, 0.0) if skewness < 0 else (0.0, longer)
    return max(lowest, mean - t * error - below), min(highest, mean + t * error + above)


def effective_rows(values: ArrayLike, clusters: ArrayLike | None) -> float:
    """Effective sample size: the number of independent rows that estimate the mean equally well.

    Photos of one observation are correlated, so four of them are worth less than photos of four
    observations.

    Args:
        values: Shape ``(rows,)``; hits are bool.
        clusters: The cluster of each row, integers of shape ``(rows,)``; None where all rows are
            independent.

    References:
        Liang and Zeger, "Longitudinal data analysis using generalized linear models", 1986. Korn
        and Graubard, "Confidence intervals for proportions with small expected number of positive
        counts estimated from survey data", 1998.

    Example:
        >>> effective_rows([3.0, 3.0, 1.0, 1.0, 2.0, 2.0], [7, 7, 8, 8, 9, 9])
        3.0
    """
    array = np.asarray(values)
    if clusters is None:
        return float(array.size)
    _, place = np.unique(np.asarray(clusters), return_inverse=True)
    distance, sizes = array - array.mean(), np.bincount(place)
    squared = np.bincount(place, weights=distance) ** 2
    return effective_number(
        sizes,
        alone=float((distance**2).sum()),
        together=float(squared.sum()),
        between=float((squared / sizes).sum()),
        share=array.dtype == np.bool_,
    )


def effective_by(
    places: Ints, values: NDArray[Any], clusters: Ints | None, *, groups: int
) -> Floats:
    """:func:`effective_rows` of each group, ``(groups,)``; ``places`` are the rows' groups."""
    if clusters is None:
        return np.bincount(places, minlength=groups).astype(np.float64)
    masks = (places == group for group in range(groups))
    return np.array([effective_rows(values[m], clusters[m]) if m.any() else 0 for m in masks])


def effective_number(
    sizes: Ints, *, alone: float, together: float, between: float, share: bool
) -> float:
    """:func:`effective_rows` from the numbers of rows in each cluster, ``(clusters,)``, and sums.

    ``alone`` sums the squared distance from the mean over rows, ``together`` the squared sum of
    these distances over clusters, ``between`` the same divided by the rows of each cluster.
    ``share`` says whether the values are 0 and 1. One cluster of equal rows is added, with the
    variance of the values or of a share of one half, so that a few rare rows cannot make clusters
    look independent.

    A few large clusters dominate ``together``. So the effect of clusters is at least the one that
    the correlation within all of them has, small ones included: an interval by the former alone
    held in 91 of 100 samples with 1 to 64 photos of each observation.
    """
    rows, squares = int(sizes.sum()), float((sizes.astype(np.float64) ** 2).sum())
    mean_size = squares / rows  # mean over the rows of the size of their cluster
    # So many equal clusters would be as unequal: one much-photographed plant counts for little.
    clusters = rows / mean_size
    variance = 0.25 if share else alone / rows
    if variance == 0 or sizes.size == 1:
        return rows / mean_size
    effect = (together + mean_size * mean_size * variance) / (alone + mean_size * variance)
    effect = max(effect, 1 + (mean_size - 1) * _correlation(sizes, alone - between, between))
    # The variance between clusters was estimated from these few. Student's interval allows for as
    # many values as there are effective rows, Wilson's for none.
    allowed = rows if share else max(rows / max(effect, 1.0), 1.5)
    effect *= max(1.0, _variance_factor(clusters) / _variance_factor(allowed))
    return rows / max(effect, 1.0)


def _correlation(sizes: Ints, within: float, between: float) -> float:
    """Correlation of the rows of a cluster, from sums of squares; 0 where it would be negative.

    References:
        Donner, "A review of inference procedures for the intraclass correlation coefficient in the
        one-way random effects model", 1986: the analysis of variance.
    """
    rows, clusters = int(sizes.sum()), sizes.size
    squares = float((sizes.astype(np.float64) ** 2).sum())
    # Donner's n_0, which is less than the mean size where sizes differ.
    usual = (rows - squares / rows) / (clusters - 1)  # rows of a cluster
    inside, among = within / max(rows - clusters, 1), between / (clusters - 1)
    total = among + (usual - 1) * inside
    return max(0.0, (among - inside) / total) if total > 0 else 0.0


def _variance_factor(clusters: float) -> float:
    """Correction of a variance that is estimated from few clusters, for a normal interval."""
    return clusters / max(clusters - 1, 1.0) * _t975(clusters - 1) ** 2


def student_half(values: Sequence[float]) -> float | None:
    """Half of Student's 95 % interval for the mean of a few values; None for a single value."""
    if len(values) < 2:
        return None
    return _t975(len(values) - 1) * stdev(values) / sqrt(len(values))


def _t975(freedom: float) -> float:
    """The 97.5 % quantile of Student's t; up to 30, that of the whole degrees of freedom below.

    References:
        Abramowitz and Stegun, "Handbook of mathematical functions", 26.7.5.
    """
    if freedom <= len(T975):
        return T975[max(1, int(freedom)) - 1]
    first = (Z95**3 + Z95) / 4
    second = (5 * Z95**5 + 16 * Z95**3 + 3 * Z95) / 96
    return Z95 + first / freedom + second / freedom**2


def _critical_value(rows: int, delta: float) -> float:
    """The entry of ``BAND_CRITICAL`` for the next larger number of rows and next smaller delta."""
    if not 0 < delta < 1:
        raise ValueError(f"delta must be in (0, 1), got {delta}")
    line = int(np.searchsorted(BAND_ROWS, rows))
    column = next((at for at, level in enumerate(BAND_DELTAS) if level <= delta), -1)
    # Beyond the table the tail falls about like exp(-q), so q grows by 1 for each factor e. Three
    # million samples of 50 rows give 10.42 at 0.0001 and 12.76 at 0.00001, this 10.45 and 12.98.
    beyond = max(0.0, log(BAND_DELTAS[-1] / delta))
    return float(BAND_CRITICAL[line, column]) + _TAIL * beyond


def least_coverage(hits: int, rows: int, *, delta: float = 0.1, candidates: int = 1) -> float:
    r"""Least coverage on new photos of any threshold with ``hits`` hits in ``rows`` photos.

    With probability at least ``1 - delta`` over the calibration photos, the coverage of every
    threshold is at least this at the same time, however one of them is chosen, and whichever of
    ``candidates`` heads, kinds of score and temperatures was chosen on the same photos. The true
    scores must not tie much, and photos must be independent: one of each observation.

    It is the smallest coverage :math:`c` below the hit rate :math:`h` with

    .. math:: n \, \Bigl(h \log\frac{h}{c} + (1 - h) \log\frac{1 - h}{1 - c}\Bigr) \le q

    with the critical value :math:`q` of Berk and Jones for ``delta / candidates``.

    Args:
        hits: Photos whose set holds the true class.
        rows: Photos.
        delta: Share of calibrations that may promise too much.
        candidates: Number of scores that were compared on these photos, Bonferroni's correction.

    Returns:
        The coverage, 0 where no more than half of the photos hit.

    References:
        Berk and Jones, "Goodness-of-fit test statistics that dominate the Kolmogorov statistics",
        1979; Owen, "Nonparametric likelihood confidence bands for a distribution function", 1995.

    Example:
        >>> round(least_coverage(975, 1000), 3), round(least_coverage(9750, 10_000), 3)
        (0.96, 0.97)
    """
    if rows < 1 or not 0 <= hits <= rows:
        raise ValueError(f"hits must be in [0, rows] and rows at least 1, got {hits} of {rows}")
    level = delta / candidates
    if 2 * hits <= rows:
        return 0.0
    # Beyond the table: the critical value grows far more slowly than the rows it is divided by.
    counted, misses = min(rows, BAND_ROWS[-1]), (rows - hits) / rows
    limit = _critical_value(counted, level) / counted
    return 1.0 - border(lambda share: _divergence(misses, share) <= limit, misses, 1.0)


def largest_fall(rows: int, delta: float) -> float:
    r"""How far the mean chance of new photos may lie above that of these, for every threshold.

    The chance of a photo is the share of some classes whose scores reach the threshold. With
    probability at least ``1 - delta`` the mean over all photos exceeds the mean over these by no
    more than this, whatever the threshold, so that this may depend on them.

    For one class drawn for each photo this is the one-sided inequality of Dvoretzky, Kiefer and
    Wolfowitz, :math:`\exp(-2 n x^2)`. The mean over all draws is convex in them, so the moments of
    :math:`\exp(s x)` bound it. With :math:`s = 4 \sqrt{n} y` and :math:`y = \sqrt{n} x` this gives
    :math:`5.02 \, y \exp(-2 y^2) + \exp(2.36 \, y - 4 y^2)`; the last term is for distances below
    :math:`0.589 / \sqrt{n}`, where the inequality says nothing.

    References:
        Massart, "The tight constant in the Dvoretzky-Kiefer-Wolfowitz inequality", 1990.

    Example:
        >>> round(largest_fall(10_000, 0.01), 4)
        0.0185
    """

    def exceeds(y: float) -> bool:
        return 4 * sqrt(pi / 2) * y * exp(-2 * y * y) + exp(2.36 * y - 4 * y * y) > delta

    # The bound falls between them.
    return border(exceeds, 0.5, 10.0) / sqrt(rows)


def _divergence(share: float, other: float) -> float:
    """Kullback-Leibler divergence of two probabilities of a miss."""
    first = share * log(share / other) if share else 0.0
    return first + ((1 - share) * log((1 - share) / (1 - other)) if share < 1 else 0.0)
