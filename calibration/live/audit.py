"""How often sets hold the truth, from a small sample of requests that a person has labelled.

The only one of the checks after deployment that measures accuracy. It is as good as the sample:
requests have to be drawn at random and every one of them labelled. Feedback that people give of
their own accord is no such sample; its share of hits can be shown, its intervals mean nothing.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import lgamma, log
from typing import Any

import numpy as np
from numpy.typing import NDArray

Interval = tuple[float, float]

_HALVINGS = 60


@dataclass(frozen=True, kw_only=True)
class Audit:
    """What a labelled sample says.

    Attributes:
        rows: Labelled requests.
        hits: Sets among them that hold the true class.
        skipped: Requests without a label.
        hit_rate: Share of hits.
        fixed: Interval that is valid where the number of rows was fixed beforehand.
        anytime: Interval that stays valid however often one looks and whenever one stops.
        level: Confidence of both.
    """

    rows: int
    hits: int
    skipped: int
    hit_rate: float
    fixed: Interval
    anytime: Interval
    level: float


def audit(feedback: Iterable[Mapping[str, Any]], *, level: float = 0.95) -> Audit:
    """Measure the hit rate on labelled requests.

    Args:
        feedback: One mapping a request, with ``class_id``, the true class, or None where nobody
            knows it, and ``set``, the class ids that were answered.
        level: Confidence, in (0, 1).

    Raises:
        ValueError: No request is labelled, a row lacks one of the two, or ``level`` is out of
            range.

    Example:
        >>> rows = [{"class_id": "7", "set": ["7", "9"]}] * 9 + [{"class_id": "7", "set": []}]
        >>> found = audit(rows)
        >>> found.hit_rate, [round(end, 3) for end in found.fixed]
        (0.9, [0.555, 0.997])
    """
    rows = hits = skipped = 0
    for number, row in enumerate(feedback):
        if "class_id" not in row or not isinstance(row.get("set"), list | tuple):
            raise ValueError(f"feedback row {number} must have class_id and set, got {sorted(row)}")
        if row["class_id"] is None:
            skipped += 1
            continue
        rows, hits = rows + 1, hits + (row["class_id"] in row["set"])
    if not rows:
        raise ValueError(f"no request is labelled ({skipped} without a label)")
    return Audit(
        rows=rows,
        hits=hits,
        skipped=skipped,
        hit_rate=hits / rows,
        fixed=clopper_pearson(hits, rows, level=level),
        anytime=anytime_interval(hits, rows, level=level),
        level=level,
    )


def clopper_pearson(hits: int, rows: int, *, level: float = 0.95) -> Interval:
    """Exact interval for a probability after a fixed number of independent trials.

    Promise: it holds the true probability with at least ``level``, whatever that is.

    Raises:
        ValueError: ``rows`` below 1, ``hits`` outside ``[0, rows]`` or ``level`` outside (0, 1).

    References:
        Clopper and Pearson, "The use of confidence or fiducial limits", 1934.

    Example:
        >>> [round(end, 4) for end in clopper_pearson(0, 10)]
        [0.0, 0.3085]
    """
    _check(hits, rows, level)
    tail = (1 - level) / 2
    low = 0.0 if hits == 0 else 1 - _upper(rows - hits, rows, tail)
    high = 1.0 if hits == rows else _upper(hits, rows, tail)
    return low, high


def anytime_interval(hits: int, rows: int, *, level: float = 0.95) -> Interval:
    """Interval for a probability that one may look at after every trial.

    Promise: with probability at least ``level`` the intervals after 1, 2, 3, ... independent
    trials *all* hold the true probability, so one may stop when one likes what one sees. Against
    each probability ``p`` plays a player who spreads a capital evenly over all others; the
    interval holds every ``p`` against which the capital stays below ``1 / (1 - level)``.

    Raises:
        ValueError: ``rows`` below 1, ``hits`` outside ``[0, rows]`` or ``level`` outside (0, 1).

    References:
        Robbins, "Statistical methods related to the law of the iterated logarithm", 1970;
        Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", 2024.

    Example:
        >>> [round(end, 4) for end in anytime_interval(90, 100)]
        [0.7717, 0.9712]
    """
    _check(hits, rows, level)
    misses, share = rows - hits, hits / rows
    capital = lgamma(hits + 1) + lgamma(misses + 1) - lgamma(rows + 2)
    limit = capital + log(1 - level)  # the log likelihood below which p is ruled out

    def held(p: float) -> bool:
        likelihood = (hits * log(p) if hits else 0.0) + (misses * log1m(p) if misses else 0.0)
        return likelihood > limit

    low = 0.0 if hits == 0 else _border(held, share, 0.0)
    high = 1.0 if misses == 0 else _border(held, share, 1.0)
    return low, high


def log1m(p: float) -> float:
    """``log(1 - p)``."""
    return float(np.log1p(-p))


def _border(held: Callable[[float], bool], inside: float, outside: float) -> float:
    """Where ``held`` turns false on the way, rounded outwards."""
    near, far = inside, outside
    for _ in range(_HALVINGS):
        middle = (near + far) / 2
        if held(middle):
            near = middle
        else:
            far = middle
    return far


def _upper(hits: int, rows: int, tail: float) -> float:
    """The probability at which ``hits`` or fewer hits have the probability ``tail``."""
    ways = _log_ways(rows, hits)
    return _border(lambda p: _at_most(ways, rows, p) > tail, hits / rows, 1.0)


def _log_ways(rows: int, hits: int) -> NDArray[np.float64]:
    """Log of the number of ways to have 0 to ``hits`` hits."""
    taken = np.arange(1, hits + 1)
    return np.concatenate([[0.0], np.cumsum(np.log(rows - taken + 1) - np.log(taken))])


def _at_most(log_ways: NDArray[np.float64], rows: int, p: float) -> float:
    count = np.arange(log_ways.size)
    if not 0 < p < 1:
        return 1.0 if p <= 0 else 0.0
    return float(np.exp(log_ways + count * log(p) + (rows - count) * log1m(p)).sum())


def _check(hits: int, rows: int, level: float) -> None:
    if rows < 1 or not 0 <= hits <= rows or not 0 < level < 1:
        raise ValueError(
            "hits must be in [0, rows], rows at least 1 and level in (0, 1), got "
            f"{hits} of {rows} at {level}"
        )
