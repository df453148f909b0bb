"""Two bundles on the same photos: which is better, and how surely."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import erfc, inf, sqrt
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.intervals import Z95, effective_rows, mean_interval

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Change:
    """A figure of the new bundle minus that of the old one on the same photos."""

    old: float  # the old bundle's figure
    new: float  # the new bundle's
    difference: float  # ``new - old``
    ci95: tuple[float, float]  # its 95 % interval, for bundles calibrated and compared like these


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """Two bundles on the same photos, by one rule."""

    rule: str  # what was compared, such as ``average_k k=3``
    rows: int  # photos
    hit_rate: Change  # of the share of sets that hold the truth
    size: Change  # of the mean set size
    gained: int  # photos whose set holds the truth with the new bundle only
    lost: int  # with the old one only
    p_value: float  # of a difference in hits as large as this between equally good bundles


@dataclass(frozen=True, kw_only=True)
class Calibrated:
    """How a threshold was chosen: other photos would have chosen another, and so other sets.

    It was chosen so that the mean of something, of sizes or of hits, is as asked for on some
    photos. Where these have a little more of it than others, new photos get as much less, and of
    the other one as much less as ``hits_per_class`` says.
    """

    photos: str  # hash of the photos that chose it
    rows: int  # how many there were
    fixes: Literal["sizes", "hits"] | None  # None for rules without a threshold
    hits_per_class: float  # hits gained for each class that a lower threshold adds


def compare(
    old_sets: tuple[ArrayLike, ArrayLike],
    new_sets: tuple[ArrayLike, ArrayLike],
    *,
    rule: str = "",
    photos: str = "",
    calibrated: Sequence[Calibrated] = (),
    clusters: ArrayLike | None = None,
    growth: tuple[float, float] = (-inf, inf),
) -> Comparison:
    """Compare the sets of two bundles on the same photos.

    Promise: each interval holds the true difference about 95 times in 100, over the choice of these
    photos and of those that chose the thresholds, for plants drawn independently. Where thresholds
    are given and each photo is of another plant, the hit rate's is that of Bonett and Price: Wald's
    with one photo more gained and one more lost.

    Args:
        old_sets: Whether each set holds the truth, bool ``(rows,)``, and its size, ``(rows,)``.
        new_sets: The same for the new bundle, photos in the same order.
        rule: Name of what is compared.
        photos: Hash of these photos.
        calibrated: How the old threshold and the new one were chosen; nothing for thresholds that
            were given.
        clusters: Which plant each photo is of, whole numbers ``(rows,)``; None for one a photo.
        growth: The least and the most that a set can grow by.

    Raises:
        ValueError: Different numbers of photos, or none.

    References:
        Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial
        proportions based on paired data", 2012.

    Example:
        >>> found = compare(([True, False, True, True], [3, 3, 3, 3]), ([True] * 4, [2, 3, 3, 3]))
        >>> found.hit_rate.difference, found.size.difference, found.gained, found.lost
        (0.25, -0.25, 1, 0)
    """
    old_hits, old_sizes = _checked(*old_sets)
    new_hits, new_sizes = _checked(*new_sets)
    if old_hits.shape != new_hits.shape:
        raise ValueError(
            f"both must be measured on the same photos, got {old_hits.size} and {new_hits.size}"
        )
    rows, better, grown = old_hits.size, new_hits - old_hits, new_sizes - old_sizes
    by_hits, by_sizes = {photos: [better]}, {photos: [grown]}
    numbers = {photos: rows}
    measured = ((1, old_hits, old_sizes), (-1, new_hits, new_sizes))
    for threshold, (sign, hits, sizes) in zip(calibrated, measured, strict=bool(calibrated)):
        of_hits, of_sizes = _effects(threshold, hits, sizes)
        by_hits.setdefault(threshold.photos, []).append(sign * of_hits)
        by_sizes.setdefault(threshold.photos, []).append(sign * of_sizes)
        numbers.setdefault(threshold.photos, threshold.rows)
    centre = float(better.sum()) / (rows + 2)
    error = _error(by_hits, numbers, clusters, more=(photos, [1.0, -1.0]))
    deviation = _error(by_sizes, numbers, clusters) * sqrt(rows - 1)
    low, high = growth
    return Comparison(
        rule=rule,
        rows=rows,
        hit_rate=_change(
            old_hits, new_hits, (max(-1.0, centre - Z95 * error), min(1.0, centre + Z95 * error))
        ),
        size=_change(
            old_sizes,
            new_sizes,
            mean_interval(float(grown.mean()), deviation, rows, lowest=low, highest=high),
        ),
        gained=int((better > 0).sum()),
        lost=int((better < 0).sum()),
        p_value=erfc(abs(centre) / error / sqrt(2)),
    )


def _effects(threshold: Calibrated, hits: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    """How much fewer hits and classes others get for what each photo that chose a threshold has."""
    slope = threshold.hits_per_class
    if threshold.fixes == "sizes":
        return slope * sizes, sizes
    if threshold.fixes == "hits":
        return hits, hits / slope if slope else 0 * hits
    return 0 * hits, 0 * sizes


def _error(
    effects: Mapping[str, Sequence[Floats]],
    numbers: Mapping[str, int],
    clusters: ArrayLike | None,
    *,
    more: tuple[str, Sequence[float]] = ("", ()),
) -> float:
    """Standard error of a sum of means, each over photos of its own; ``more`` are further photos.

    The photos that chose a threshold are not here, so those of the comparison stand for them.
    """
    variance = 0.0
    for name, parts in effects.items():
        values = np.sum(parts, axis=0)
        alone = effective_rows(values, clusters) / values.size
        added = np.array(more[1] if name == more[0] else ())
        every = np.concatenate([values, added])
        variance += float(every.var()) / ((numbers[name] + added.size) * alone)
    return sqrt(variance)


def _change(old: Floats, new: Floats, interval: tuple[float, float]) -> Change:
    before, after = float(old.mean()), float(new.mean())
    return Change(old=before, new=after, difference=after - before, ci95=interval)


def _checked(hits: ArrayLike, sizes: ArrayLike) -> tuple[Floats, Floats]:
    held, classes = np.asarray(hits), np.asarray(sizes, dtype=np.float64)
    if held.ndim != 1 or not held.size or held.dtype != np.bool_ or classes.shape != held.shape:
        raise ValueError(
            f"hits must be bool and sizes numbers, both of shape (rows,) with at least one row; "
            f"got {held.dtype} {held.shape} and {classes.shape}"
        )
    return held.astype(np.float64), classes
