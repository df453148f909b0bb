"""Two bundles on the same photos: which is better, and how surely."""

from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.intervals import Z95, mean_interval


@dataclass(frozen=True, kw_only=True)
class Change:
    """A figure of the new bundle minus that of the old one on the same photos."""

    old: float  # the old bundle's figure
    new: float  # the new bundle's
    difference: float  # ``new - old``
    ci95: tuple[float, float]  # its 95 % interval, for photos that are the same


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two bundles on the same photos, by one rule."""

    rule: str  # what was compared, such as ``average_k k=3``
    rows: int  # photos
    hit_rate: Change  # of the share of sets that hold the truth
    size: Change  # of the mean set size
    gained: int  # photos whose set holds the truth with the new bundle only
    lost: int  # with the old one only
    p_value: float  # of McNemar's exact test that gains and losses are equally likely


def compare(
    old_sets: tuple[ArrayLike, ArrayLike], new_sets: tuple[ArrayLike, ArrayLike], *, rule: str = ""
) -> Comparison:
    """Compare the sets of two bundles on the same photos.

    Promise: the interval of the hit rate holds the true difference about 95 times in 100, for
    photos drawn independently (Bonett and Price: Wald's interval with one photo more gained and
    one more lost). The interval of the size is Student's.

    Args:
        old_sets: Whether each set holds the truth, bool ``(rows,)``, and its size, ``(rows,)``.
        new_sets: The same for the new bundle, photos in the same order.
        rule: Name of what is compared.

    Raises:
        ValueError: Different numbers of photos, or none.

    References:
        Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial
        proportions based on paired data", 2012. McNemar, "Note on the sampling error of the
        difference between correlated proportions or percentages", 1947.

    Example:
        >>> change = compare(([True, False, True, True], [3, 3, 3, 3]), ([True] * 4, [2, 3, 3, 3]))
        >>> change.hit_rate.difference, change.size.difference, change.gained, change.lost
        (0.25, -0.25, 1, 0)
    """
    old_hits, old_sizes = _checked(*old_sets)
    new_hits, new_sizes = _checked(*new_sets)
    if old_hits.shape != new_hits.shape:
        raise ValueError(
            f"both must be measured on the same photos, got {old_hits.size} and {new_hits.size}"
        )
    gained, lost = int((new_hits & ~old_hits).sum()), int((old_hits & ~new_hits).sum())
    rows, grown = old_hits.size, new_sizes - old_sizes
    mean, deviation = float(grown.mean()), float(grown.std())
    by_size = (mean, mean) if rows > 1 and not deviation else mean_interval(mean, deviation, rows)
    return Comparison(
        rule=rule,
        rows=rows,
        hit_rate=_change(old_hits, new_hits, paired_interval(gained, lost, rows)),
        size=_change(old_sizes, new_sizes, by_size),
        gained=gained,
        lost=lost,
        p_value=mcnemar(gained, lost),
    )


def paired_interval(gained: int, lost: int, rows: int) -> tuple[float, float]:
    """95 % interval for the difference of two hit rates on the same photos.

    Raises:
        ValueError: Negative counts, or more than there are rows.

    Example:
        >>> [round(end, 4) for end in paired_interval(30, 10, 1000)]
        [0.0073, 0.0326]
    """
    if min(gained, lost) < 0 or not 1 <= rows >= gained + lost:
        raise ValueError(f"gained and lost must be counts of {rows} rows, got {gained} and {lost}")
    more, fewer = (gained + 1) / (rows + 2), (lost + 1) / (rows + 2)
    half = Z95 * sqrt((more + fewer - (more - fewer) ** 2) / (rows + 2))
    return max(-1.0, more - fewer - half), min(1.0, more - fewer + half)


def mcnemar(gained: int, lost: int) -> float:
    """Probability of a split at least as uneven if gains and losses were equally likely.

    Example:
        >>> mcnemar(5, 0)
        0.0625
    """
    changed, fewer = gained + lost, min(gained, lost)
    ways, term = 0, 1  # term: ways to have this many of the rarer kind
    for count in range(fewer + 1):
        ways += term
        term = term * (changed - count) // (count + 1)
    return min(1.0, 2 * ways / (1 << changed))


def _change(old: NDArray[Any], new: NDArray[Any], interval: tuple[float, float]) -> Change:
    before, after = float(old.mean()), float(new.mean())
    return Change(old=before, new=after, difference=after - before, ci95=interval)


def _checked(hits: ArrayLike, sizes: ArrayLike) -> tuple[NDArray[np.bool_], NDArray[np.float64]]:
    is_hit, classes = np.asarray(hits), np.asarray(sizes, dtype=np.float64)
    if (
        is_hit.ndim != 1
        or not is_hit.size
        or is_hit.dtype != np.bool_
        or classes.shape != is_hit.shape
    ):
        raise ValueError(
            f"hits must be bool and sizes numbers, both of shape (rows,) with at least one row; "
            f"got {is_hit.dtype} {is_hit.shape} and {classes.shape}"
        )
    return is_hit, classes
