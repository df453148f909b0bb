"""Compare on the same photos: two bundles with intervals, or candidates of which the best serves.

The best of ten equally good heads on 600 photos looks 1.5 points better on those photos than it
is. Cross-validation removes this bias: :func:`choose` chooses on one part of the rows and measures
on the rest. An interval for independent rows would hold in only 82 of 100 cases, since the choices
of the folds depend on one another; :func:`interval_of_best` is valid whichever candidate is chosen.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import erfc, inf, sqrt
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.intervals import (
    Z95,
    effective_rows,
    mean_interval,
    score_interval,
    wilson,
)
from florilege.calibration.sets import Bools, Floats


@dataclass(frozen=True, kw_only=True)
class _Change:
    """How a figure changes from the old bundle to the new one on the same photos."""

    old: float
    new: float
    difference: float  # ``new - old``
    ci95: tuple[float, float]  # its 95 % interval, for bundles calibrated and compared like these


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """How two bundles compare on the same photos, by one rule."""

    rule: str  # what was compared, such as ``average_k k=3``
    rows: int  # photos
    hit_rate: _Change
    size: _Change  # mean set size
    gained: int  # photos whose set holds the true class only with the new bundle
    lost: int  # photos whose set holds it only with the old bundle
    p_value: float  # probability of so large a difference in hits if both are equally good


@dataclass(frozen=True, kw_only=True)
class ThresholdOrigin:
    """How a threshold was chosen: other photos would have given another threshold.

    The threshold gives the requested mean, of sizes or of hits, on the photos that chose it. If
    they happen to have large sets or many hits, new photos have fewer by as much. The other mean
    changes with it by ``hits_per_class``.
    """

    data_sha256: str  # hash of the photos that chose it
    rows: int  # number of these photos
    fixes: Literal["sizes", "hits"] | None  # None for rules without a threshold
    hits_per_class: float  # hits gained for each class that a lower threshold adds


def compare(
    old_sets: tuple[ArrayLike, ArrayLike],
    new_sets: tuple[ArrayLike, ArrayLike],
    *,
    rule: str = "",
    data_sha256: str = "",
    thresholds: Sequence[ThresholdOrigin] = (),
    observations: ArrayLike | None = None,
    growth: tuple[float, float] = (-inf, inf),
) -> Comparison:
    """Compare the sets of two bundles on the same photos.

    Promise: each interval holds the true difference about 95 times in 100, over the choice of these
    photos and of those that chose the thresholds, for observations drawn independently. Where the
    thresholds are fixed and each photo is of a different observation, the interval of the hit rate
    is that of Bonett and Price: Wald's after adding one gained and one lost photo.

    Args:
        old_sets: Whether each set holds the true class, bool, and its size, both ``(rows,)``.
        new_sets: The same for the new bundle, photos in the same order.
        data_sha256: Hash of these photos.
        thresholds: Origin of the old threshold and of the new one; empty where both are fixed.
        observations: Observation of each photo, ``(rows,)``; None where each photo is of a
            different observation.
        growth: The least and the most that a set can grow by.

    Raises:
        ValueError: Different numbers of photos, or none.

    References:
        Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial
        proportions based on paired data", 2012.

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
    rows, gain, growths = old_hits.size, new_hits - old_hits, new_sizes - old_sizes
    # By the hash of the photos: errors from the same photos depend on each other, so their terms
    # are added before they are squared.
    hit_terms, size_terms, counts = {data_sha256: gain}, {data_sha256: growths}, {data_sha256: rows}
    measured = ((1, old_hits, old_sizes), (-1, new_hits, new_sizes))
    for origin, (sign, hits, sizes) in zip(thresholds, measured, strict=bool(thresholds)):
        photos, (fewer_hits, fewer_classes) = origin.data_sha256, _shifts(origin, hits, sizes)
        hit_terms[photos] = hit_terms.get(photos, 0) + sign * fewer_hits
        size_terms[photos] = size_terms.get(photos, 0) + sign * fewer_classes
        counts.setdefault(photos, origin.rows)
    centre = float(gain.sum()) / (rows + 2)
    error = _standard_error(hit_terms, counts, observations, adjusted=data_sha256)
    # `mean_interval` divides by this root again, and is asked only for Student's factor.
    deviation = _standard_error(size_terms, counts, observations) * sqrt(rows - 1)
    least, most = growth
    size_ci95 = mean_interval(float(growths.mean()), deviation, rows, lowest=least, highest=most)
    hit_ci95 = (max(-1.0, centre - Z95 * error), min(1.0, centre + Z95 * error))
    return Comparison(
        rule=rule,
        rows=rows,
        hit_rate=_change(old_hits, new_hits, hit_ci95),
        size=_change(old_sizes, new_sizes, size_ci95),
        gained=int((gain > 0).sum()),
        lost=int((gain < 0).sum()),
        p_value=erfc(abs(centre) / error / sqrt(2)),
    )


def _shifts(origin: ThresholdOrigin, hits: Floats, sizes: Floats) -> tuple[Floats, Floats]:
    """The hits and classes that new photos lose because of each photo that chose the threshold."""
    slope = origin.hits_per_class
    if origin.fixes == "sizes":
        return slope * sizes, sizes
    if origin.fixes == "hits":
        return hits, hits / slope if slope else 0 * hits
    return 0 * hits, 0 * sizes


def _standard_error(
    terms: Mapping[str, Floats],
    counts: Mapping[str, int],
    observations: ArrayLike | None,
    *,
    adjusted: str | None = None,
) -> float:
    """Standard error of a sum of means over several sets of photos, each named by its hash.

    The photos that chose a threshold are not available, so those of the comparison represent them.
    ``adjusted`` names the photos that get one gain and one loss more (Bonett and Price).
    """
    variance = 0.0
    for photos, values in terms.items():
        independent = effective_rows(values, observations) / values.size
        extra = [1.0, -1.0] if photos == adjusted else []
        extended = np.concatenate([values, extra])
        variance += float(extended.var()) / ((counts[photos] + len(extra)) * independent)
    return sqrt(variance)


def _change(old: Floats, new: Floats, interval: tuple[float, float]) -> _Change:
    before, after = float(old.mean()), float(new.mean())
    return _Change(old=before, new=after, difference=after - before, ci95=interval)


def _checked(hits: ArrayLike, sizes: ArrayLike) -> tuple[Floats, Floats]:
    is_hit, classes = np.asarray(hits), np.asarray(sizes, dtype=np.float64)
    if is_hit.dtype != np.bool_ or not is_hit.shape == classes.shape == (classes.size or 1,):
        raise ValueError(
            f"hits must be bool and sizes numbers, both of shape (rows,) with at least one row; "
            f"got {is_hit.dtype} {is_hit.shape} and {classes.shape}"
        )
    return is_hit.astype(np.float64), classes


FOLDS = 5


def choose(
    hits: ArrayLike, *, folds: int = FOLDS, seed: int = 0, observations: ArrayLike | None = None
) -> tuple[int, float]:
    """Choose the candidate with the most hits; measure it on rows that did not choose it.

    Each fold measures the candidate that is best on the other folds. Rows of one observation stay
    in the same fold, and together have one vote.

    Args:
        hits: Whether each candidate's set holds the true class, shape ``(candidates, rows)``.
        folds: Number of folds, at least 2; at most as many as rows or observations are made.
        seed: Seed of the split into folds.
        observations: Observation of each row, shape ``(rows,)``; None where rows are independent.

    Returns:
        Index of the first candidate with the most hits on all rows, and the hit rate of one chosen
        this way on rows that did not choose it.

    Raises:
        ValueError: A wrong shape, no candidate, no row, or fewer than two folds.

    Example:
        >>> choose([[1, 1, 1, 1], [1, 0, 1, 0]])
        (0, 1.0)
    """
    table = np.asarray(hits, dtype=np.bool_)
    if table.ndim != 2 or 0 in table.shape:
        raise ValueError(
            f"hits must have shape (candidates, rows), with at least one of each, got {table.shape}"
        )
    if folds < 2:
        raise ValueError(f"folds must be at least 2, got {folds}")
    honest, votes = np.empty(table.shape[1], dtype=np.bool_), np.ones(table.shape[1])
    if observations is not None:
        _, numbers, photos = np.unique(observations, return_inverse=True, return_counts=True)
        votes = 1 / photos[numbers]
    totals = table @ votes
    for among in folds_of(table.shape[1], observations, folds, seed):
        others = table[:, ~among] @ votes[~among]
        honest[among] = table[others.argmax(), among]
    return int(totals.argmax()), float(honest.mean())


def interval_of_best(
    hits: Bools, candidates: int, *, observations: ArrayLike | None = None
) -> tuple[float, float]:
    """95 % interval of the hit rate of the best of several candidates, by Bonferroni's correction.

    ``hits`` are those of the best one, shape ``(rows,)``; ``observations`` are as in
    :func:`choose`.
    """
    rows, z = effective_rows(hits, observations), NormalDist().inv_cdf(1 - 0.025 / candidates)
    low, high = score_interval(float(hits.mean()), rows, z=z)
    # This one is longer where misses are few.
    least, most = wilson(int(hits.sum()), hits.size, effective=rows)
    return min(low, least), max(high, most)


def choose_simplest(
    hits: ArrayLike, *, observations: ArrayLike | None = None
) -> tuple[int, Floats]:
    """Choose by the one-standard-error rule; measure the gain on rows that did not choose.

    The choice is the first candidate within one standard error of the best one. It stays the first
    of all unless the choices of the folds gain hits on the rows that they did not see.

    Args:
        hits: Whether each candidate's set holds the true class, shape
            ``(candidates, rows, sizes)`` for several mean set sizes, which count equally; the
            simplest candidate first.
        observations: As in :func:`choose`.

    Returns:
        Index of the choice, and how much its hit rate exceeds that of the first candidate, shape
        ``(sizes,)``: an average over rows that did not choose.

    References:
        Breiman, Friedman, Olshen and Stone, "Classification and regression trees", 1984, section
        3.4.3.

    Example:
        >>> choose_simplest(np.array([[0] * 50 + [1] * 50, [1] * 100])[:, :, np.newaxis])
        (1, array([0.5]))
    """
    table = np.asarray(hits, dtype=np.float64)
    means, clusters = table.mean(axis=2), None if observations is None else np.asarray(observations)

    def choice(rows: Bools) -> int:
        values = means[:, rows]
        behind = values[values.mean(axis=1).argmax()] - values  # (candidates, rows)
        among = None if clusters is None else clusters[rows]
        errors = [gap.std() / np.sqrt(effective_rows(gap, among)) for gap in behind]
        # The best one is behind itself by 0 with an error of 0, so there is always one.
        return int((behind.mean(axis=1) <= errors).argmax())

    gains, every = np.zeros(table.shape[1:]), np.ones(table.shape[1], dtype=np.bool_)
    for among in folds_of(len(every), observations, FOLDS, 0):
        if not among.all():
            gains[among] = table[choice(~among), among] - table[0, among]
    gain: Floats = gains.mean(axis=0)
    return (choice(every), gain) if gain.mean() > 0 else (0, np.zeros_like(gain))


def folds_of(rows: int, observations: ArrayLike | None, folds: int, seed: int) -> Iterator[Bools]:
    """Masks of the rows of each fold; rows of one observation are in the same one."""
    _, numbers = np.unique(
        np.arange(rows) if observations is None else observations, return_inverse=True
    )
    order = np.random.default_rng(seed).permutation(int(numbers.max()) + 1)
    for part in np.array_split(order, min(folds, len(order))):
        yield np.isin(numbers, part)
