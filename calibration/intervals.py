"""95 % intervals for figures measured on a sample of photos, or from several seeds."""

from collections.abc import Sequence
from math import atan2, cos, pi, sin, sqrt
from statistics import stdev

Z95 = 1.959963984540054
"""Quantile of the normal distribution with 2.5 % above it."""


def wilson(hits: int, rows: int) -> tuple[float, float]:
    """Interval for a probability after ``hits`` successes in ``rows`` independent trials.

    Its coverage is close to 95 % for every probability, and it never leaves [0, 1].

    Raises:
        ValueError: ``rows`` below 1, or ``hits`` outside ``[0, rows]``.

    References:
        Wilson, "Probable inference, the law of succession, and statistical inference", 1927.

    Example:
        >>> low, high = wilson(90, 100)
        >>> round(low, 4), round(high, 4)
        (0.8256, 0.9448)
    """
    if rows < 1 or not 0 <= hits <= rows:
        raise ValueError(f"hits must be in [0, rows] and rows at least 1, got {hits} of {rows}")
    low, high = score_interval(hits / rows, rows)
    return 0.0 if hits == 0 else low, 1.0 if hits == rows else high


def score_interval(share: float, rows: int, *, z: float = Z95) -> tuple[float, float]:
    """Wilson's interval for a probability, ``z`` standard errors each way; never empty."""
    square = z * z
    centre = (share + square / (2 * rows)) / (1 + square / rows)
    half = z * sqrt(share * (1 - share) / rows + square / (4 * rows * rows)) / (1 + square / rows)
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_interval(mean: float, deviation: float, rows: int) -> tuple[float, float]:
    """Normal interval for a mean, given the standard deviation of a single value.

    Example:
        >>> mean_interval(3.0, 0.0, 10)
        (3.0, 3.0)
    """
    half = Z95 * deviation / sqrt(rows)
    return mean - half, mean + half


def student_half(values: Sequence[float]) -> float | None:
    """Half of the 95 % interval for the mean of a few values; None for a single one.

    Student's t: it holds for normal values of unknown deviation, however few they are.

    Example:
        >>> round(student_half([0.9, 1.0, 1.1]), 3)
        0.248
    """
    if len(values) < 2:
        return None
    return t975(len(values) - 1) * stdev(values) / sqrt(len(values))


def t975(freedom: int) -> float:
    """Quantile of Student's distribution with 2.5 % above it, for whole degrees of freedom.

    References:
        Abramowitz and Stegun, "Handbook of mathematical functions", 26.7.3 and 26.7.4.

    Example:
        >>> round(t975(2), 3), round(t975(4), 3)
        (4.303, 2.776)
    """
    low, high = 0.0, 20.0  # 12.71 for one degree, less for more
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _within(middle, freedom) < 0.95 else (low, middle)
    return high


def _within(t: float, freedom: int) -> float:
    """Probability that Student's variable is between -t and t."""
    angle = atan2(t, sqrt(freedom))
    odd = freedom % 2
    term = cos(angle) if odd else 1.0
    total = 0.0
    for power in range(2 + odd, freedom + 1, 2):
        total += term
        term *= cos(angle) ** 2 * (power - 1) / power
    return 2 / pi * (angle + sin(angle) * total) if odd else sin(angle) * total
