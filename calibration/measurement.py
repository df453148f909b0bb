"""Sizes and hits of sets over a whole data set, batch by batch, for many thresholds at once."""

from collections.abc import Hashable, Iterable, Sequence
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from calibration.arrays import FloatArray, row_blocks
from calibration.metrics import true_class_ranks
from calibration.sets import SetRule, best_class

EXACT_SIZES = 16
"""Sizes up to this have a bin of their own in a histogram; then bins grow by a quarter."""


class Measurement:
    """What each of some rules did on the rows seen so far.

    The rules differ in their threshold only, as :func:`alike` tells.

    Attributes:
        rows: Rows seen.
        hits: Sets that hold the true class, shape ``(rules,)``.
        empty: Sets without any class, shape ``(rules,)``.
        histogram: Sets by the bins of :func:`size_bins`, shape ``(rules, bins)``.
        class_rows: Rows of each class, shape ``(classes,)``.
        class_hits: Hits among them, shape ``(rules, classes)``.

    Args:
        rules: The rules.
        classes: Number of classes.
        watched: The rule whose hits and sizes are kept row by row, for :attr:`watched_hits` and
            :attr:`watched_sizes`.
    """

    def __init__(
        self, rules: Sequence[SetRule], classes: int, *, watched: int | None = None
    ) -> None:
        if len({alike(rule) for rule in rules}) > 1:
            raise ValueError("rules must share all but their threshold, or the k of top_k")
        self.rules, self.rows = tuple(rules), 0
        count = len(self.rules)
        self._bins = size_bins(classes)
        self._size_sum = np.zeros(count, dtype=np.int64)
        self._size_squares = np.zeros(count, dtype=np.int64)
        self.hits = np.zeros(count, dtype=np.int64)
        self.empty = np.zeros(count, dtype=np.int64)
        self.histogram = np.zeros((count, self._bins.size), dtype=np.int64)
        self._watched, self._watched_hits = watched, list[NDArray[np.bool_]]()
        self._watched_sizes = list[NDArray[np.int64]]()
        self.class_rows = np.zeros(classes, dtype=np.int64)
        self.class_hits = np.zeros((count, classes), dtype=np.int64)

    def update(self, scores: FloatArray, labels: NDArray[np.int64]) -> None:
        """Add some more rows: scores ``(batch, classes)``, true classes ``(batch,)``."""
        if not self.rules:
            return
        sizes, hits = sizes_and_hits(self.rules, scores, labels)
        self.rows += len(labels)
        self._size_sum += sizes.sum(axis=0)
        self._size_squares += (sizes * sizes).sum(axis=0)
        self.hits += hits.sum(axis=0)
        if self._watched is not None:
            self._watched_hits.append(hits[:, self._watched].copy())
            self._watched_sizes.append(sizes[:, self._watched].copy())
        self.empty += (sizes == 0).sum(axis=0)
        bins = np.searchsorted(self._bins, sizes, side="right") - 1  # (batch, rules)
        self.class_rows += np.bincount(labels, minlength=self.class_rows.size)
        for index in range(len(self.rules)):
            counts = np.bincount(bins[:, index], minlength=self._bins.size)
            self.histogram[index] += counts
        for label in np.unique(labels):
            self.class_hits[:, label] += hits[labels == label].sum(axis=0)

    @property
    def watched_hits(self) -> NDArray[np.bool_]:
        """Whether each set of the watched rule holds the truth, shape ``(rows,)``."""
        return np.concatenate([np.empty(0, dtype=np.bool_), *self._watched_hits])

    @property
    def watched_sizes(self) -> NDArray[np.int64]:
        """Size of each set of the watched rule, shape ``(rows,)``."""
        return np.concatenate([np.empty(0, dtype=np.int64), *self._watched_sizes])

    def mean_size(self, index: int) -> float:
        """Mean set size of one rule."""
        return float(self._size_sum[index]) / self.rows

    def size_deviation(self, index: int) -> float:
        """Standard deviation of one rule's set size."""
        total, squares = int(self._size_sum[index]), int(self._size_squares[index])
        return sqrt(max(0, self.rows * squares - total * total)) / self.rows

    def macro_hit_rate(self, index: int, among: NDArray[np.bool_] | None = None) -> float | None:
        """Hit rate class by class, then their mean; None where no row is of these classes.

        Args:
            index: Which rule.
            among: Mask of classes, shape ``(classes,)``; all by default.
        """
        seen = self.class_rows > 0
        if among is not None:
            seen &= among
        if not seen.any():
            return None
        return float((self.class_hits[index, seen] / self.class_rows[seen]).mean())


def together(rules: Iterable[SetRule], classes: int) -> list[Measurement]:
    """Measurements of any rules: one for each kind of them."""
    kinds: dict[Hashable, list[SetRule]] = {}
    for rule in rules:
        kinds.setdefault(alike(rule), []).append(rule)
    return [Measurement(kind, classes) for kind in kinds.values()]


def alike(rule: SetRule) -> Hashable:
    """Equal for rules that differ in their threshold only, or in the k of ``top_k``."""
    by_class = (id(rule.class_weights), id(rule.class_thresholds))
    return rule.min_size, rule.max_size, rule.top_k is None, by_class


def size_bins(classes: int) -> NDArray[np.int64]:
    """Lower edges of the bins of a set-size histogram, from 0 to ``classes``.

    Example:
        >>> size_bins(30).tolist()[-4:]
        [16, 17, 21, 26]
    """
    edges = list(range(min(EXACT_SIZES, classes) + 1))
    edge = EXACT_SIZES + 1
    while edge <= classes:
        edges.append(edge)
        edge += max(1, edge // 4)
    return np.array(edges, dtype=np.int64)


def sizes_and_hits(
    rules: Sequence[SetRule], scores: FloatArray, labels: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Set size and whether the set holds the truth, each of shape ``(batch, rules)``."""
    sizes = np.empty((len(labels), len(rules)), dtype=np.int64)
    hits = np.empty(sizes.shape, dtype=np.bool_)
    for part in row_blocks(scores):
        sizes[part], hits[part] = _sizes_and_hits(rules, scores[part], labels[part])
    return sizes, hits


def _sizes_and_hits(
    rules: Sequence[SetRule], scores: FloatArray, labels: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    values = rules[0].compare(scores)
    if rules[0].top_k is not None:
        ks = np.array([rule.top_k for rule in rules], dtype=np.int64)
        hits = true_class_ranks(values, labels)[:, np.newaxis] < ks
        return np.broadcast_to(ks, hits.shape), hits
    thresholds = np.array([rule.lambda_val for rule in rules], dtype=np.float64)
    if rules[0].min_size:
        values = values.copy()
        best = best_class(rules[0].rank_by(scores))
        np.put_along_axis(values, best[:, np.newaxis], np.inf, axis=1)
    true = values[np.arange(len(labels)), labels]
    sizes, hits = reaching(values, thresholds), true[:, np.newaxis] >= thresholds
    if rules[0].max_size is None:
        return sizes, hits
    among = true_class_ranks(rules[0].rank_by(scores), labels) < rules[0].max_size
    return np.minimum(sizes, rules[0].max_size), hits & among[:, np.newaxis]


def reaching(values: NDArray[np.float64], thresholds: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many values of each row reach each threshold, shape ``(rows, thresholds)``.

    Only the values that reach the lowest threshold are looked at twice; they are few.

    Example:
        >>> reaching(np.array([[0.7, 0.2, 0.1]]), np.array([0.2, 0.5, 0.9]))
        array([[2, 1, 0]])
    """
    if thresholds.size == 1:  # much faster where most values reach it
        return np.asarray((values >= thresholds).sum(axis=1, keepdims=True), dtype=np.int64)
    order = np.argsort(thresholds)
    ascending = thresholds[order]
    rows, columns = np.nonzero(values >= ascending[0])
    reached = np.searchsorted(ascending, values[rows, columns], side="right")  # 1 .. thresholds
    table = np.bincount(
        rows * ascending.size + reached - 1, minlength=values.shape[0] * ascending.size
    ).reshape(values.shape[0], ascending.size)
    counts = np.empty_like(table)
    counts[:, order] = table[:, ::-1].cumsum(axis=1)[:, ::-1]
    return counts
