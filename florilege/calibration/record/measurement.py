"""Measure sizes and hits of sets over a data set, batch by batch, for many rules at once."""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.intervals import effective_number, effective_rows, mean_interval, wilson
from florilege.calibration.metrics import shot_groups, true_class_ranks
from florilege.calibration.record.schema import Counts
from florilege.calibration.rules import NoisyLabels
from florilege.calibration.sets import (
    Bools,
    FloatArray,
    Floats,
    Ints,
    SetRule,
    best_class,
    row_blocks,
)

# Sizes up to this have their own histogram bins, larger bins grow by half: a record holds thousands
# of histograms, and few sets have any one large size.
EXACT_SIZES = 8


class Measurement:
    """Sizes and hits of several rules on the rows seen so far.

    Attributes:
        rows: Rows seen.
        labelled: Whether every row had a label; if not, hits mean nothing.
        hits: Number of sets that hold the true class, shape ``(rules,)``.
        size_sum, size_squares: Sum of the sizes, and of their squares, shape ``(rules,)``.
        histogram: Number of sets in each bin of :func:`size_bins`, shape ``(rules, bins)``.
        hit_histogram: Number of these that hold the true class.
        class_rows: Rows of each class, shape ``(classes,)``.
        class_hits: Hits among them, shape ``(rules, classes)``.
        noise: The assumption about wrong labels; None where labels are taken as they are.
        chance: Sum over the rows of the chance that a class drawn from the group of the label is in
            the set, in each bin of ``histogram``; 0 without ``noise``.

    Args:
        rules: The rules to measure.
        classes: Number of classes.
        watched: Indices of the rules whose sizes and hits :meth:`row_by_row` returns.
        observations: Observation of each row to come, shape ``(rows,)``; None where all rows are
            independent.
        noise: See the attribute.
    """

    def __init__(
        self,
        rules: Sequence[SetRule],
        classes: int,
        *,
        watched: Sequence[int] = (),
        observations: Ints | None = None,
        noise: NoisyLabels | None = None,
    ) -> None:
        self.rules, self.rows, self.labelled = tuple(rules), 0, True
        count = len(self.rules)
        self._groups, self._bins = _group_rules(self.rules), size_bins(classes)
        self.size_sum, self.size_squares, self.hits = np.zeros((3, count), np.int64)
        self.histogram = np.zeros((count, self._bins.size), dtype=np.int64)
        self.hit_histogram = np.zeros_like(self.histogram)
        self.noise, self.chance = noise, np.zeros(self.histogram.shape)
        none, self._watched = np.empty((0, len(watched)), dtype=np.int64), list(watched)
        self._watched_rows = [(none, none.astype(np.bool_))]
        self.class_rows = np.zeros(classes, dtype=np.int64)
        # int32: hundreds of rules are measured together, for up to tens of thousands of classes.
        self.class_hits = np.zeros((count, classes), dtype=np.int32)
        self._observations = None if observations is None else _Observations(observations, count)

    def update(self, scores: FloatArray, labels: Ints | None = None) -> None:
        """Add rows: scores ``(batch, classes)``, and true classes ``(batch,)`` if known."""
        if not self.rules:
            return
        sizes, hits = self._sizes_and_hits(scores, labels)
        if self._observations is not None:
            self._observations.update(self.rows, sizes, hits)
        self.rows += len(scores)
        self.size_sum += sizes.sum(axis=0)
        self.size_squares += (sizes * sizes).sum(axis=0)
        bins = np.searchsorted(self._bins, sizes, side="right") - 1  # (batch, rules)
        for index, (column, of_rule) in enumerate(zip(bins.T, hits.T, strict=True)):
            self.histogram[index] += np.bincount(column, minlength=self._bins.size)
            self.hit_histogram[index] += np.bincount(column[of_rule], minlength=self._bins.size)
        self._watched_rows.append((sizes[:, self._watched], hits[:, self._watched]))
        if labels is None:
            self.labelled = False
            return
        self.hits += hits.sum(axis=0)
        if self.noise is not None:
            self._add_chance(self.noise, scores, labels, sizes, bins)
        self.class_rows += np.bincount(labels, minlength=self.class_rows.size)
        for label in np.unique(labels):
            self.class_hits[:, label] += hits[labels == label].sum(axis=0)

    def _add_chance(
        self, noise: NoisyLabels, scores: FloatArray, labels: Ints, sizes: Ints, bins: Ints
    ) -> None:
        inside = sizes  # all classes are of the group
        if not noise.uniform:
            inside = np.empty_like(sizes)
            for part in row_blocks(scores):
                members = noise.members(labels[part])
                for group in self._groups:
                    rules = [self.rules[index] for index in group]
                    inside[part, group] = _members_inside(rules, scores[part], members)
        chances = noise.chance(inside, labels)  # (batch, rules)
        for index, (column, of_rule) in enumerate(zip(bins.T, chances.T, strict=True)):
            self.chance[index] += np.bincount(column, of_rule, minlength=self._bins.size)

    def row_by_row(self) -> tuple[Ints, Bools]:
        """Set sizes and whether each set holds the true class, both ``(rows, watched)``."""
        sizes, hits = zip(*self._watched_rows, strict=True)
        return np.concatenate(sizes), np.concatenate(hits)

    def mean_size(self, index: int) -> float:
        """Mean set size of one rule."""
        return float(self.size_sum[index]) / self.rows

    def size_deviation(self, index: int) -> float:
        """Standard deviation of one rule's set size."""
        # In Python's whole numbers: where all sets have the same size the two products are equal,
        # and the difference of two large floats would not be 0.
        total, squares = int(self.size_sum[index]), int(self.size_squares[index])
        return sqrt(max(0, self.rows * squares - total * total)) / self.rows

    def effective_rows(self, index: int) -> tuple[float, float]:
        """Effective sample sizes of one rule's mean size and of its hit rate."""
        if self._observations is None:
            return self.rows, self.rows
        size, variance = self.mean_size(index), self.size_deviation(index) ** 2
        share = int(self.hits[index]) / self.rows
        return (
            self._observations.effective_rows(0, index, size, variance),
            self._observations.effective_rows(1, index, share, share * (1 - share)),
        )

    def counts(self, index: int, value: float) -> Counts:
        """What was counted of the sets of one rule; ``value`` is its K or coverage."""
        rule, sizes = self.rules[index], self.histogram[index]
        size_rows, hit_rows = self.effective_rows(index)
        return Counts(
            value=float(value),
            lambda_val=rule.lambda_val,
            size_sum=int(self.size_sum[index]),
            size_squares=int(self.size_squares[index]),
            size_rows=_shorter(size_rows),
            hit_rows=_shorter(hit_rows) if self.labelled else None,
            ties=rule.ties,
            sizes=_trimmed(sizes),
            misses=_trimmed(sizes - self.hit_histogram[index]) if self.labelled else (),
            chance=_trimmed(self.chance[index].round(4)),
        )

    def macro_hit_rate(self, index: int, among: Bools | None = None) -> float | None:
        """Mean over the classes of each class's hit rate; None where no row is of these classes,
        or labels are wrong: those of a rare class are mostly those of others.

        ``among`` is a mask of classes, shape ``(classes,)``; all by default.
        """
        present = self.class_rows > 0
        if among is not None:
            present &= among
        if self.noise is not None or not present.any():
            return None
        return float((self.class_hits[index, present] / self.class_rows[present]).mean())

    def _sizes_and_hits(self, scores: FloatArray, labels: Ints | None) -> tuple[Ints, Bools]:
        """Set sizes and hits, ``(batch, rules)``; there are no hits without labels."""
        sizes = np.empty((len(scores), len(self.rules)), dtype=np.int64)
        hits = np.zeros(sizes.shape, dtype=np.bool_)
        for part in row_blocks(scores):
            true = None if labels is None else labels[part]
            for group in self._groups:
                rules = [self.rules[index] for index in group]
                sizes[part, group], hits[part, group] = _measure_group(rules, scores[part], true)
        return sizes, hits


def _shorter(rows: float) -> int | float:
    """A number of rows to half a percent; photos of two plants may be worth a hundredth of one."""
    return round(rows) if rows >= 100 else float(f"{rows:.3g}")


def _trimmed(histogram: NDArray[Any]) -> tuple[Any, ...]:
    values = histogram.tolist()
    while values and not values[-1]:  # `np.trim_zeros` takes ten times as long
        del values[-1]
    return tuple(values)


class _Observations:
    """Sums over the photos of each observation that has several."""

    def __init__(self, observations: Ints, rules: int) -> None:
        _, numbers, self._photos = np.unique(observations, return_inverse=True, return_counts=True)
        several = self._photos > 1
        place = np.where(several, np.cumsum(several) - 1, -1)
        self._place, self._several = place[numbers], self._photos[several]
        self._sums = np.zeros((2, self._several.size, rules), dtype=np.int32)  # of sizes, of hits
        self._squares = np.zeros((2, 2, rules), dtype=np.int64)  # of observations with one photo

    def update(self, first: int, sizes: Ints, hits: Bools) -> None:
        """Add sizes and hits of the rows from ``first`` on, both ``(batch, rules)``."""
        place = self._place[first : first + len(sizes)]
        several = place >= 0
        for kind, values in enumerate((sizes, hits.astype(np.int64))):
            np.add.at(self._sums[kind], place[several], values[several].astype(np.int32))
            alone = values[~several]
            self._squares[kind] += np.stack([alone.sum(axis=0), (alone * alone).sum(axis=0)])

    def effective_rows(self, kind: int, index: int, mean: float, variance: float) -> float:
        """Effective rows of the sizes (``kind`` 0) or the hits (1) of one rule."""
        total, squares = self._squares[kind, :, index].tolist()
        alone = int((self._photos == 1).sum())
        together = squares - 2 * mean * total + alone * mean * mean
        squared = (self._sums[kind, :, index] - mean * self._several) ** 2
        return effective_number(
            self._photos,
            alone=int(self._photos.sum()) * variance,
            together=together + float(squared.sum()),
            between=together + float((squared / self._several).sum()),
            share=kind == 1,
        )


def size_bins(classes: int) -> Ints:
    """Lower edges of the bins of a set-size histogram up to ``classes``: 0, 1, ... 9, 13, ..."""
    edges = list(range(min(EXACT_SIZES, classes) + 1))
    edge = EXACT_SIZES + 1
    while edge <= classes:
        edges.append(edge)
        edge += edge // 2
    return np.array(edges, dtype=np.int64)


def _reaching(values: Floats, thresholds: Floats) -> Ints:
    """How many values of each row reach each threshold, shape ``(rows, thresholds)``.

    Only the few values that reach the lowest threshold are compared with the others.
    """
    # Much faster where most values reach it.
    if thresholds.size == 1:
        return np.asarray((values >= thresholds).sum(axis=1, keepdims=True), dtype=np.int64)
    order = np.argsort(thresholds)
    ascending = thresholds[order]
    rows, columns = np.nonzero(values >= ascending[0])
    reached = np.searchsorted(ascending, values[rows, columns], side="right")  # 1 .. thresholds
    cells = rows * ascending.size + reached - 1
    table = np.bincount(cells, minlength=len(values) * ascending.size).reshape(-1, ascending.size)
    counts = np.empty_like(table)
    # A cell counts values that reach its threshold and no higher one, so sums from the right are
    # needed.
    counts[:, order] = table[:, ::-1].cumsum(axis=1)[:, ::-1]
    return counts


def _group_rules(rules: Sequence[SetRule]) -> list[list[int]]:
    """Indices of the rules that differ only in the threshold or k, and so rank classes alike."""
    groups: dict[Hashable, list[int]] = {}
    for index, rule in enumerate(rules):
        by_class = (rule.class_weights, rule.class_thresholds)
        arrays = (None if array is None else array.tobytes() for array in by_class)
        key = (rule.min_size, rule.max_size, rule.top_k is None, *arrays)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


def _measure_group(
    rules: Sequence[SetRule], scores: FloatArray, labels: Ints | None
) -> tuple[Ints, Bools]:
    first = rules[0]
    values = first.compare(scores)
    hits = np.zeros((len(scores), 1), dtype=np.bool_)  # unknown without labels
    if first.top_k is not None:
        ks = np.array([rule.top_k for rule in rules], dtype=np.int64)
        ks = np.minimum(ks, values.shape[1])  # a list may have fewer classes
        if labels is not None:
            hits = true_class_ranks(values, labels)[:, np.newaxis] < ks
        return ks[np.newaxis], hits
    thresholds = np.array([rule.lambda_val for rule in rules], dtype=np.float64)
    if first.min_size:
        values = values.copy()
        best = best_class(first.rank_by(scores))
        np.put_along_axis(values, best[:, np.newaxis], np.inf, axis=1)
    sizes = _reaching(values, thresholds)
    if labels is not None:
        hits = values[np.arange(len(labels)), labels][:, np.newaxis] >= thresholds
        if first.max_size is not None:
            ranks = true_class_ranks(first.rank_by(scores), labels)
            hits = hits & (ranks < first.max_size)[:, np.newaxis]
    return np.minimum(sizes, first.max_size or values.shape[1]), hits


def _members_inside(rules: Sequence[SetRule], scores: FloatArray, members: Bools) -> Ints:
    """How many classes under a mask ``(rows, classes)`` are in the sets of rules of a group."""
    first = rules[0]
    values, ranked = first.compare(scores), first.rank_by(scores)
    thresholds = np.array([rule.lambda_val or 0.0 for rule in rules], dtype=np.float64)
    if first.min_size:
        values = values.copy()
        np.put_along_axis(values, best_class(ranked)[:, np.newaxis], np.inf, axis=1)
    if first.top_k is not None or first.max_size is not None:
        ranks = np.empty(values.shape, dtype=np.int64)
        order, places = np.argsort(-ranked, axis=1, kind="stable"), np.arange(values.shape[1])
        np.put_along_axis(ranks, order, places[np.newaxis], axis=1)
        if first.top_k is not None:
            # The k best have ranks 0 to k - 1, so minus the rank is at least 1 - k.
            values = -ranks.astype(np.float64)
            thresholds = np.array([1 - (rule.top_k or 0) for rule in rules], dtype=np.float64)
        else:
            values = np.where(ranks < (first.max_size or 0), values, -np.inf)
    return _reaching(np.where(members, values, -np.inf), thresholds)


@dataclass(frozen=True, kw_only=True)
class ShotGroup:
    """Set size and hit rate on photos of one group of species.

    Attributes:
        name: ``few``, ``medium`` or ``many``.
        classes: Number of species in the group that have a photo.
        rows: Number of their photos.
        mean_size: Mean set size, and ``size_ci95`` its interval.
        hit_rate: Share of sets with the true species, over all photos, and ``hit_ci95`` its
            interval.
    """

    name: str
    classes: int
    rows: int
    mean_size: float
    size_ci95: tuple[float, float]
    hit_rate: float
    hit_ci95: tuple[float, float]


def measure_by_shots(
    sizes: Ints,
    hits: Bools,
    labels: Ints,
    class_counts: Ints,
    *,
    largest: int | None = None,
    observations: Ints | None = None,
) -> tuple[ShotGroup, ...]:
    """Measure the groups ``few``, ``medium`` and ``many``, without those that have no photo.

    ``sizes``, ``hits``, ``labels`` and ``observations`` have the shape ``(rows,)``,
    ``class_counts``, the training images per class, ``(classes,)``. A set can hold ``largest``
    classes, by default all.
    """
    groups, most = list[ShotGroup](), largest or class_counts.size
    for name, classes in shot_groups(class_counts).items():
        rows = np.flatnonzero(classes[labels])
        if not rows.size:
            continue
        clusters = None if observations is None else observations[rows]
        mean, deviation, hit_count = sizes[rows].mean(), sizes[rows].std(), int(hits[rows].sum())
        size_rows, hit_rows = (effective_rows(values[rows], clusters) for values in (sizes, hits))
        third = float(((sizes[rows] - mean) ** 3).mean())
        size_ci95 = mean_interval(
            float(mean),
            float(deviation),
            size_rows,
            lowest=0,
            highest=most,
            skewness=third / float(deviation) ** 3 if deviation else 0.0,
        )
        groups.append(
            ShotGroup(
                name=name,
                classes=np.unique(labels[rows]).size,
                rows=rows.size,
                mean_size=float(mean),
                size_ci95=size_ci95,
                hit_rate=hit_count / rows.size,
                hit_ci95=wilson(hit_count, rows.size, effective=hit_rows),
            )
        )
    return tuple(groups)
