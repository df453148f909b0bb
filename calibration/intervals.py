"""95 % intervals for figures measured on a sample of photos."""

from math import sqrt

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
