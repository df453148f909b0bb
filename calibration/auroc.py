"""How well a number tells two groups of photos apart, with intervals, and methods side by side."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration.intervals import Z95, wilson
from calibration.rejection import DEFAULT_SHARE, suspect_threshold

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

    Approximate: solves for the areas whose own standard error (Hanley and McNeil's) reaches the
    measured one, as Wilson's interval does for a share.

    References:
        Newcombe, "Confidence intervals for an effect size measure based on the Mann-Whitney
        statistic, part 2", 2006, method 5.

    Example:
        >>> low, high = auroc_interval([2.0, 3.0, 4.0, 5.0], [0.0, 1.0, 0.5, 0.2])
        >>> round(low, 3), high
        (0.579, 1.0)
    """
    ours, others = _checked(inside, outside)
    area = auroc(ours, others)
    ends = [_solve(area, end, ours.size, others.size) for end in (0.0, 1.0)]
    return ends[0], ends[1]


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
    pairs = [_checked(*first), _checked(*second)]
    if pairs[0][0].shape != pairs[1][0].shape or pairs[0][1].shape != pairs[1][1].shape:
        raise ValueError("two methods can be compared on the same photos only")
    if min(part.size for part in pairs[0]) < 2:
        raise ValueError("at least two photos of each group are needed")
    (inside, outside), (other_inside, other_outside) = (_wins(*pair) for pair in pairs)
    ours, others = inside - other_inside, outside - other_outside
    error = sqrt(ours.var(ddof=1) / ours.size + others.var(ddof=1) / others.size)
    difference = float(ours.mean())
    return difference, (difference - Z95 * error, difference + Z95 * error)


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


def _solve(area: float, end: float, inside: int, outside: int) -> float:
    """The area between ``area`` and ``end`` that lies ``Z95`` of its standard errors off."""
    near, far = area, end
    for _ in range(60):
        middle = (near + far) / 2
        if abs(middle - area) <= Z95 * _standard_error(middle, inside, outside):
            near = middle
        else:
            far = middle
    return near


def _standard_error(area: float, inside: int, outside: int) -> float:
    rest = (inside + outside) / 2 - 1
    spread = 1 + rest * ((1 - area) / (2 - area) + area / (1 + area))
    return sqrt(area * (1 - area) * spread / (inside * outside))


def _checked(inside: ArrayLike, outside: ArrayLike) -> tuple[Floats, Floats]:
    groups = [np.asarray(values, dtype=np.float64) for values in (inside, outside)]
    for values in groups:
        if values.ndim != 1 or not values.size or np.isnan(values).any():
            raise ValueError(
                "familiarity must be one number a photo, of at least one photo of each group, and "
                f"no NaN; got shape {values.shape}"
            )
    return groups[0], groups[1]
