r"""Thresholds for a coverage of the true class where some labels are wrong.

With the notation of :mod:`.label_noise`, a set misses its label with probability

.. math:: M(\lambda) = (1 - e) m(\lambda) + e (1 - q(\lambda))

where :math:`m` is the share of sets without the true class and :math:`q` the chance that a class
drawn from the group is in the set. So :math:`m \le \alpha` where
:math:`M \le (1 - e) \alpha + e (1 - q)`. Both sides are counted on the same photos, at thresholds
that were fixed beforehand: :data:`florilege.calibration.guarantees.THRESHOLDS`.
"""

from math import log

import numpy as np

from florilege.calibration.conformal import at_most, conformal_rank
from florilege.calibration.guarantees import THRESHOLDS
from florilege.calibration.rules.label_noise import NoisyLabels
from florilege.calibration.threshold import RealNumber
from florilege.calibration.validation import FloatArray, Floats, Ints

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
        weights = np.repeat(1 / sizes, sizes)  # a row has as many members as its group
        self._chance += np.bincount(reached, weights, minlength=bins)
        self._rows += len(labels)

    def _reached(self, scores: FloatArray) -> Ints:
        """How many thresholds each score reaches."""
        return np.searchsorted(self._ascending, scores.astype(np.float64), side="right")

    def mean_threshold(self, coverage: RealNumber, *, candidates: int = 1) -> float:
        r"""Threshold whose sets hold the true class with at least this probability, on average.

        It is the largest at which the excess :math:`S`, the number of misses beyond
        :math:`n ((1 - e) \alpha + e (1 - q_n))`, is at most :math:`-(1 - (1 - e) \alpha)`: with one
        more photo, however it falls out, the excess of all :math:`n + 1` is then at most 0
        (conformal risk control, without the condition that a loss grows with the threshold).

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
        places = np.flatnonzero(excess + 1 - allowed <= 0)
        return int(places[-1]) if places.size else -1

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
        chance = highest_mean(self._chances(), log(1 / (_CHANCE_SHARE * share)) / self._rows)
        bounds = (1 - rate) * (1 - float(coverage)) + rate * (1 - chance)
        misses = self._misses()
        # Of thresholds with equally many misses the lowest has the lowest bound: if it passes, all
        # of them do.
        for index in np.flatnonzero(np.diff(misses, prepend=-1)).tolist():
            if at_most(misses[index], self._rows, bounds[index]) > (1 - _CHANCE_SHARE) * share:
                return self._threshold(index - 1)
        return np.inf

    def _misses(self) -> Ints:
        """Rows whose set lacks the label, by threshold."""
        misses: Ints = np.cumsum(self._true)[:-1]
        return misses

    def _chances(self) -> Floats:
        """The mean chance that a class drawn from the group is in the set, by threshold."""
        chances: Floats = np.cumsum(self._chance[:0:-1])[::-1] / self._rows
        return np.minimum(chances, 1.0)

    def _threshold(self, index: int) -> float:
        if index == self._ascending.size - 1:  # no score reaches it
            return np.inf
        return float(self._ascending[index]) if index >= 0 else 0.0


def highest_mean(means: Floats, limit: float) -> Floats:
    """The largest true means of values in [0, 1] whose divergence from these is within a limit.

    Example:
        >>> highest_mean(np.array([0.0, 0.5, 1.0]), 0.01).round(3)
        array([0.01, 0.57, 1.  ])
    """
    low, high = means, np.ones_like(means)
    for _ in range(50):  # bisection
        middle = (low + high) / 2
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = np.nan_to_num(means * np.log(means / middle))
            outside = np.nan_to_num((1 - means) * np.log((1 - means) / (1 - middle)))
        fits = inside + outside <= limit
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return high
