"""Wrong labels among calibration photos: what is assumed of them, and figures that allow for them.

A share ``rate`` of the labels was replaced by a class drawn evenly from the group of the true
class, itself included: from all classes (``uniform``), from its genus, or from another group that
is never wrong. A set C then holds the label of a photo with the probability

.. math:: P(\\text{label} \\in C) = (1 - e) P(\\text{truth} \\in C) + e E|C \\cap g| / |g|

whose last factor, the ``chance`` that a class drawn from the group is in the set, needs no truth:
the label tells the group. Labels may depend on the true class only, not on the photo.

:class:`NoisyCoverage` chooses thresholds that allow for this: a set misses its label with
probability

.. math:: M(\\lambda) = (1 - e) m(\\lambda) + e (1 - q(\\lambda))

where :math:`m` is the share of sets without the true class and :math:`q` the chance. So
:math:`m \\le \\alpha` where :math:`M \\le (1 - e) \\alpha + e (1 - q)`. Both sides are counted
on the same photos, at thresholds that were fixed beforehand:
:data:`florilege.calibration.threshold.THRESHOLDS`.

References:
    Sesia, Wang and Tong, "Adaptive conformal classification with noisy labels", arXiv 2309.05092.
    Penso, Goldberger and Fetaya, "Estimating the conformal prediction threshold from noisy
    labels", arXiv 2501.12749.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from math import isfinite, log
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from florilege.calibration.conformal import at_most, conformal_rank
from florilege.calibration.sets import Bools, FloatArray, Floats, Ints
from florilege.calibration.threshold import THRESHOLDS, RealNumber

NoiseKind = Literal["uniform", "genus", "group"]
# Beyond it a list holds little but wrong labels, and nothing is promised.
_MOST_IN_A_LIST = 0.95


def parse_label_noise(text: str | None) -> tuple[NoiseKind, float | Path]:
    """The kind of noise, and its rate or the file of a review; 0 for no text.

    Raises:
        ValueError: The rate is not in [0, 1), or there is no such file.

    Example:
        >>> parse_label_noise("genus:0.05"), parse_label_noise("0.02")
        (('genus', 0.05), ('uniform', 0.02))
    """
    kinds: Mapping[str, NoiseKind] = {kind: kind for kind in get_args(NoiseKind)}
    text = "0" if text is None else text
    prefix, _, rest = text.partition(":")
    kind, value = (kinds[prefix], rest) if prefix in kinds else ("uniform", text)
    try:
        rate = float(value)
    except ValueError:
        if Path(value).is_file():
            return kind, Path(value)
        raise ValueError(
            "label_noise takes a rate in [0, 1) or the CSV file of a review, after genus: or "
            f"group: where labels are wrong within these alone; there is no file {value!r}"
        ) from None
    if not isfinite(rate) or not 0 <= rate < 1:
        raise ValueError(f"label_noise must be in [0, 1), got {value}")
    return kind, rate


@dataclass(frozen=True, kw_only=True)
class LabelNoise:
    """The assumption about wrong labels.

    Attributes:
        kind: Where a replaced label is drawn from.
        rate: Share of labels that were replaced, in [0, 1); some of them by the true class.
        low: The least rate, which every promise allows for: more wrong labels than are allowed for
            only make sets larger.
        high: The largest rate; ``low`` and ``high`` are a 95 % interval where photos were reviewed.
        source: ``flag`` where the rate was typed, ``review`` where it was estimated.
        reviewed: Number of photos whose labels were reviewed; None for ``flag``.
        unexplained: Corrections to a class outside the group, which are not allowed for.
        crosses_list: Whether the photos of a list may show classes outside it, because some group
            is only partly in the list.
    """

    kind: NoiseKind
    rate: float
    low: float
    high: float
    source: Literal["flag", "review"] = "flag"
    reviewed: int | None = None
    unexplained: int = 0
    crosses_list: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.rate <= self.high < 1:
            raise ValueError(
                f"label noise must be in [0, 1), got {self.rate:g} ({self.low:g} to {self.high:g})"
            )

    @classmethod
    def of(cls, kind: NoiseKind, rate: float) -> "LabelNoise":
        """A rate that is known."""
        return cls(kind=kind, rate=rate, low=rate, high=rate)

    def corrected(self, share: float, chance: float, rate: float | None = None) -> float:
        """Share of sets with the true class, from that with the label; at :attr:`rate` by default.

        Example:
            >>> round(LabelNoise.of("uniform", 0.05).corrected(0.905, 0.05), 3)
            0.95
        """
        rate = self.rate if rate is None else rate
        return min(1.0, max(0.0, (share - rate * chance) / (1 - rate)))

    def interval(self, low: float, high: float, chance: float) -> tuple[float, float]:
        """The corrected ends of an interval for the share of sets with the label."""
        return (
            self.corrected(low, chance, self.low),
            self.corrected(high, chance, self.high),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class NoisyLabels:
    """The assumption, and the group of every scored class."""

    noise: LabelNoise
    groups: Ints  # number of the group of each class, from 0, (classes,)

    @property
    def uniform(self) -> bool:
        """Whether all classes are in one group."""
        return bool(self.groups.max() == 0)

    @cached_property
    def sizes(self) -> Ints:
        """Number of classes in the group of each class, ``(classes,)``."""
        sizes: Ints = np.bincount(self.groups)[self.groups]
        return sizes

    def members(self, labels: Ints) -> Bools:
        """The classes of the group of each label, ``(rows, classes)``."""
        mask: Bools = self.groups[labels][:, np.newaxis] == self.groups
        return mask

    def chance(self, inside: Ints, labels: Ints) -> Floats:
        """Share of the group of each label that is in its sets, from counts ``(rows, rules)``."""
        share: Floats = inside / self.sizes[labels][:, np.newaxis]
        return share

    @property
    def together(self) -> "NoisyLabels":
        """The same for groups of photos that have one label.

        Wrong labels of single photos rarely agree, those of whole observations always do. So a
        share of 0 to the rate of single photos is wrong: none is allowed for, which makes sets
        larger, and the interval of a hit rate allows for all.
        """
        noise = replace(self.noise, low=0.0, rate=0.0)
        return replace(self, noise=noise)

    def among(self, classes: Ints, labels: Ints) -> "NoisyLabels":
        """The same for the photos whose label is in a list, ``classes``, and the scores of these.

        A replaced label falls into the list with the share of its group that is listed. So among
        the photos of a list the rate is ``e`` times the mean of this share over all photos, whose
        ``labels`` are given, divided by the share of labels in the list. This is ``e`` where the
        list holds whole groups.
        """
        listed = np.isin(np.arange(self.groups.size), classes)
        share = np.bincount(self.groups, listed)[self.groups] / self.sizes  # of each class's group
        in_list = float(listed[labels].sum())
        factor = float(share[labels].sum()) / in_list if in_list else 1.0
        ends = (min(end * factor, _MOST_IN_A_LIST) for end in
                (self.noise.low, self.noise.rate, self.noise.high))  # fmt: skip
        low, rate, high = ends
        crosses = bool(((share > 0) & (share < 1)).any())
        noise = replace(self.noise, low=low, rate=rate, high=high, crosses_list=crosses)
        if not crosses:  # without rounding
            noise = self.noise
        _, groups = np.unique(self.groups[classes], return_inverse=True)
        return NoisyLabels(noise=noise, groups=groups.astype(np.int64))


_CHANCE_SHARE = 0.1
"""Share of ``delta`` for an error of the chance: it counts ``e`` times, and grows slowly with a
smaller share."""


class NoisyCoverage:
    """Counts of labels and of chance at each threshold, from one pass over batches of scores.

    Memory depends neither on the rows nor on the classes.

    Args:
        labels: The assumption about the labels, and the groups of the classes.
        highest: The highest possible score: 1, or the largest class weight.
    """

    def __init__(self, labels: NoisyLabels, *, highest: float = 1.0) -> None:
        self._labels, self._rows = labels, 0
        self._ascending = THRESHOLDS[::-1] * highest
        bins = THRESHOLDS.size + 1  # by how many thresholds a score reaches
        self._true, self._chance = np.zeros(bins, dtype=np.int64), np.zeros(bins)

    def add(self, scores: FloatArray, labels: Ints) -> None:
        """Add rows of scores, ``+inf`` for a class that is always in the set, with their labels."""
        bins, sizes = self._true.size, self._labels.sizes[labels]
        true = scores[np.arange(len(labels)), labels]
        self._true += np.bincount(self._reached(true), minlength=bins)
        members = self._labels.members(labels)
        reached = self._reached(scores[members])
        # A row has as many members as its group has classes.
        weights = np.repeat(1 / sizes, sizes)
        self._chance += np.bincount(reached, weights, minlength=bins)
        self._rows += len(labels)

    def _reached(self, scores: FloatArray) -> Ints:
        """How many thresholds each score reaches."""
        return np.searchsorted(self._ascending, scores.astype(np.float64), side="right")

    def mean_threshold(self, coverage: RealNumber, *, candidates: int = 1) -> float:
        r"""Threshold whose sets hold the true class with at least this probability, on average.

        Up to it the excess :math:`S`, the number of misses beyond
        :math:`n ((1 - e) \alpha + e (1 - q_n))`, is at most :math:`-(1 - (1 - e) \alpha)`: with one
        more photo, however it falls out, the excess of all :math:`n + 1` is then at most 0
        (conformal risk control, without the condition that a loss grows with the threshold).
        At a higher threshold the excess may be as small by chance, where wrong labels miss more
        often than true classes: taken there, .985 would be covered for .99 (300 photos, 20 %).

        Proven for exchangeable photos: the expected coverage is at least the level, less
        :math:`e / (1 - e)` times the expected fall of the chance between this threshold and the
        one of all :math:`n + 1` photos, which is of the order of :math:`1 / n`. That the room for
        one more photo outweighs it is only simulated, and so is the effect of several
        ``candidates``: they raise the level as much as for :func:`.conformal.conformal_rank` with
        as many photos as would give the same standard error.

        Returns:
            The threshold, 0 if only the set of all classes has the promise, and ``inf`` if the best
            class suffices.

        References:
            Angelopoulos, Bates, Fisch, Lei and Schuster, "Conformal risk control",
            arXiv 2208.02814.
        """
        misses = 1 - float(coverage)
        if candidates > 1:
            index = self._mean_index(misses)
            rows = self._effective_rows(misses, index)
            rank = conformal_rank(coverage, rows, candidates=candidates)
            misses = rank / (rows + 1)
        return self._threshold(self._mean_index(misses))

    def _mean_index(self, misses: float) -> int:
        """Index of the threshold, -1 if none fits."""
        rate, chance = self._labels.noise.low, self._chances()
        allowed = (1 - rate) * misses
        excess = self._misses() - self._rows * (allowed + rate * (1 - chance))
        beyond = np.flatnonzero(excess + 1 - allowed > 0)
        return int(beyond[0]) - 1 if beyond.size else excess.size - 1

    def _effective_rows(self, misses: float, index: int) -> int:
        """Photos without wrong labels that would tell the coverage as exactly as these."""
        share = float(self._misses()[index]) / self._rows if index >= 0 else 0.0
        variance = share * (1 - share) / (1 - self._labels.noise.low) ** 2
        clean = misses * (1 - misses)
        return int(self._rows * min(1.0, clean / variance)) if variance else self._rows

    def probability_threshold(
        self, coverage: RealNumber, *, delta: float, candidates: int = 1
    ) -> float:
        r"""Threshold that covers at least this share for all but ``delta`` of calibrations.

        Proven for independent photos: raises the threshold as long as a test finds the coverage
        above the level (a fixed sequence of tests), so that it ends too high only if the first
        wrong one passes. The test is an exact binomial one of the misses at
        ``0.9 delta / candidates``, against :math:`(1 - e) \alpha + e (1 - q)` with an upper bound
        for :math:`q` at ``0.1 delta / candidates`` (Hoeffding's with the divergence).

        Returns:
            As :meth:`mean_threshold`.

        References:
            Hoeffding, "Probability inequalities for sums of bounded random variables", 1963,
            theorem 1. Angelopoulos, Bates, Candes, Jordan and Lei, "Learn then test",
            arXiv 2110.01052.
        """
        share, rate = delta / candidates, self._labels.noise.low
        misses = self._misses()
        # Of thresholds with equally many misses the lowest has the lowest bound: if it passes, all
        # of them do.
        lowest = np.flatnonzero(np.diff(misses, prepend=-1))
        limit = log(1 / (_CHANCE_SHARE * share)) / self._rows
        chance = _highest_mean(self._chances()[lowest], limit)
        bounds = (1 - rate) * (1 - float(coverage)) + rate * (1 - chance)
        for index, bound in zip(lowest.tolist(), bounds.tolist(), strict=True):
            if at_most(misses[index], self._rows, bound) > (1 - _CHANCE_SHARE) * share:
                return self._threshold(index - 1)
        return np.inf

    def _misses(self) -> Ints:
        """Rows whose set lacks the label, by threshold."""
        # A score in bin j reaches the j lowest thresholds, so the sets at threshold t lack bins 0
        # to t.
        misses: Ints = np.cumsum(self._true)[:-1]
        return misses

    def _chances(self) -> Floats:
        """The mean chance that a class drawn from the group is in the set, by threshold."""
        chances: Floats = np.cumsum(self._chance[:0:-1])[::-1] / self._rows
        # A sum of many 1/size may round to more than 1, whose divergence is not a number.
        return np.minimum(chances, 1.0)

    def _threshold(self, index: int) -> float:
        if index == self._ascending.size - 1:  # no score reaches it
            return np.inf
        return float(self._ascending[index]) if index >= 0 else 0.0


def _highest_mean(means: Floats, limit: float) -> Floats:
    """The largest true means of values in [0, 1] whose divergence from these is within a limit.

    Example:
        >>> _highest_mean(np.array([0.0, 0.5, 1.0]), 0.01).round(3)
        array([0.01, 0.57, 1.  ])
    """
    low, high = means, np.ones_like(means)
    with np.errstate(divide="ignore", invalid="ignore"):  # 0 log 0 is 0
        entropy = np.nan_to_num(means * np.log(means))
        entropy += np.nan_to_num((1 - means) * np.log1p(-means))
        for _ in range(50):  # bisection
            middle = (low + high) / 2
            fits = entropy - means * np.log(middle) - (1 - means) * np.log1p(-middle) <= limit
            low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return high
