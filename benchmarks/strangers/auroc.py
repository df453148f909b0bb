"""How well a number tells two groups of photos apart, with intervals, and methods side by side."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, log, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.intervals import Z95, wilson
from florilege.calibration.rejection import DEFAULT_SHARE, suspect_threshold

Floats = NDArray[np.float64]


def auroc(inside: ArrayLike, outside: ArrayLike) -> float:
    """Probability that a photo of ours is more familiar than one that is not; ties count half.

    Args:
        inside: Familiarity of photos of our classes, shape ``(rows,)``.
        outside: Of other photos, shape ``(other rows,)``.

    Raises:
        ValueError: One of them is empty or holds a NaN.

    Example:
        >>> auroc([0.9, 0.5], [0.5, 0.1])
        0.875
    """
    return float(_wins(*_checked(inside, outside))[0].mean())


def auroc_interval(inside: ArrayLike, outside: ArrayLike) -> tuple[float, float]:
    """95 % interval for :func:`auroc`, of sense even where the groups are told apart perfectly.

    Approximate: DeLong's standard error on the logit scale, hulled with the same after one
    pretended photo of each group that ties with all others. In simulations with 900 and 60 photos
    it held the true area 94 to 98 times in 100 for areas from .76 to .9998 and unequal spreads,
    where the plain interval fell to 79.

    Raises:
        ValueError: A group has fewer than two photos, or a NaN.

    References:
        DeLong, DeLong and Clarke-Pearson, "Comparing the areas under two or more correlated
        receiver operating characteristic curves", 1988.

    Example:
        >>> low, high = auroc_interval([2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 0.5, 0.2])
        >>> round(low, 2), high
        (0.29, 1.0)
    """
    wins = _wins(*_checked(inside, outside, fewest=2))
    plain, careful = _logit_interval(*wins), _logit_interval(*(np.append(w, 0.5) for w in wins))
    return min(plain[0], careful[0]), max(plain[1], careful[1])


def auroc_difference(
    first: tuple[ArrayLike, ArrayLike], second: tuple[ArrayLike, ArrayLike]
) -> tuple[float, tuple[float, float]]:
    """Area of the first method less that of the second on the same photos, and its 95 % interval.

    Approximate, for 30 photos or more of each group; of no use where both areas are 1.

    Args:
        first: Familiarity by one method of photos of ours and of others.
        second: Of the same photos, in the same order, by another method.

    Raises:
        ValueError: Not the same photos, fewer than two of a group, or a NaN.

    References:
        DeLong, DeLong and Clarke-Pearson, "Comparing the areas under two or more correlated
        receiver operating characteristic curves", 1988.
    """
    pairs = [_checked(*first, fewest=2), _checked(*second, fewest=2)]
    if pairs[0][0].shape != pairs[1][0].shape or pairs[0][1].shape != pairs[1][1].shape:
        raise ValueError("two methods can be compared on the same photos only")
    (inside, outside), (other_inside, other_outside) = (_wins(*pair) for pair in pairs)
    ours, half = inside - other_inside, Z95 * _error(inside - other_inside, outside - other_outside)
    difference = float(ours.mean())
    return difference, (difference - half, difference + half)


@dataclass(frozen=True, kw_only=True)
class MethodResult:
    """How well one method does.

    Attributes:
        method: Its name.
        auroc: Area under the curve, and ``ci95`` its interval.
        threshold: Below it a photo is suspect; from the photos of ours.
        caught: Share of the other photos that is suspect, and ``caught_ci95`` its interval given
            this threshold.
        inside: Photos of ours.
        outside: Other photos.
    """

    method: str
    auroc: float
    ci95: tuple[float, float]
    threshold: float
    caught: float
    caught_ci95: tuple[float, float]
    inside: int
    outside: int


def compare_methods(
    inside: Mapping[str, ArrayLike],
    outside: Mapping[str, ArrayLike],
    *,
    share: float = DEFAULT_SHARE,
) -> list[MethodResult]:
    """Methods side by side, the largest area first.

    Args:
        inside: Familiarity of photos of our classes by method.
        outside: Of other photos, by the same methods.
        share: Share of the photos of ours that is suspect.

    Raises:
        ValueError: The methods differ, or a group is empty or holds a NaN.
    """
    if inside.keys() != outside.keys():
        raise ValueError(f"methods must be the same, got {sorted(inside)} and {sorted(outside)}")
    results = [_result(name, inside[name], outside[name], share) for name in inside]
    return sorted(results, key=lambda result: -result.auroc)


def _result(name: str, inside: ArrayLike, outside: ArrayLike, share: float) -> MethodResult:
    ours, others = _checked(inside, outside)
    threshold = suspect_threshold(ours, share)
    caught = int((others < threshold).sum())
    return MethodResult(
        method=name,
        auroc=auroc(ours, others),
        ci95=auroc_interval(ours, others),
        threshold=threshold,
        caught=caught / others.size,
        caught_ci95=wilson(caught, others.size),
        inside=ours.size,
        outside=others.size,
    )


def _wins(inside: Floats, outside: Floats) -> tuple[Floats, Floats]:
    """For each photo the share of the other group that it beats (ours) or loses to (others)."""
    return _below(inside, outside), 1 - _below(outside, inside)


def _below(values: Floats, others: Floats) -> Floats:
    """Share of the others that is smaller, equal ones counting half."""
    ascending = np.sort(others)
    smaller = np.searchsorted(ascending, values, side="left")
    up_to = np.searchsorted(ascending, values, side="right")
    share: Floats = (smaller + up_to) / (2 * others.size)
    return share


def _logit_interval(inside: Floats, outside: Floats) -> tuple[float, float]:
    area = sqrt(float(inside.mean()) * float(outside.mean()))  # the two agree, but for photos added
    if not 0 < area < 1:
        return area, area
    error = _error(inside, outside) / (area * (1 - area))
    centre = log(area / (1 - area))
    low, high = (1 / (1 + exp(-(centre + side * Z95 * error))) for side in (-1, 1))
    return low, high


def _error(inside: Floats, outside: Floats) -> float:
    """Standard error of the mean of wins."""
    return sqrt(inside.var(ddof=1) / inside.size + outside.var(ddof=1) / outside.size)


def _checked(inside: ArrayLike, outside: ArrayLike, *, fewest: int = 1) -> tuple[Floats, Floats]:
    groups = [np.asarray(values, dtype=np.float64) for values in (inside, outside)]
    for values in groups:
        if values.ndim != 1 or values.size < fewest or np.isnan(values).any():
            raise ValueError(
                f"familiarity must be one number a photo, of at least {fewest} of each group, and "
                f"no NaN; got shape {values.shape}"
            )
    return groups[0], groups[1]
