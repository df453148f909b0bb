"""Detailed figures of the sets of a bundle on a split."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from florilege.calibration.calibrate import SplitOutputs
from florilege.calibration.intervals import effective_by
from florilege.calibration.record import CalibrationRecord, Measurement, OperatingPoint, Row
from florilege.calibration.sets import Bools, Floats, Ints, best_class
from florilege.calibration.view import PLAIN
from florilege.terminal import progress

_SCORE_BINS = 10
MOST_LARGE = 12  # photos with the largest sets to show
# Larger sets count pairs of these best classes alone: this bounds time and memory.
MOST_MEMBERS = 12
MOST_PAIRS = 12
SHOWN_MEMBERS = 5


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Scores in bins of equal width, and how often they are of the true class; all ``(bins,)``."""

    counts: Ints  # scores in each bin
    mean_scores: Floats  # their mean; NaN in an empty bin
    hits: Ints  # how many of them are of the true class
    effective: Floats  # effective sample sizes of the counts

    @property
    def gap(self) -> float:
        """The expected calibration error of Guo, Pleiss, Sun and Weinberger, "On calibration of
        modern neural networks", ICML 2017: the mean distance between scores and hit rates of bins.
        """
        filled = self.counts > 0
        gaps = np.abs(self.mean_scores[filled] * self.counts[filled] - self.hits[filled])
        return float(gaps.sum() / self.counts.sum())


@dataclass(frozen=True, kw_only=True)
class _Pair:
    classes: tuple[int, int]
    sets: int  # how many sets hold both classes
    true: tuple[int, int]  # how many of the sets are of photos of each class


@dataclass(frozen=True, kw_only=True)
class LargeSet:
    """A photo and its set."""

    row: int  # of the split
    label: int  # the true class
    size: int
    hit: bool
    members: tuple[tuple[int, float], ...]  # the best classes of the set with their scores


@dataclass(frozen=True, kw_only=True)
class Diagnostics:
    """Figures of the sets over K, and photo by photo for ``average_k`` at one K."""

    average_k: tuple[Row, ...]  # one row for each K of the calibration, ascending
    top_k: tuple[Row, ...]  # likewise
    k: float  # the K of all following fields, the default K
    sizes: Ints  # set sizes, (rows,)
    hits: Bools  # whether each set holds the true class, (rows,)
    best_scores: Reliability  # of the best score of each photo
    all_scores: Reliability  # of the scores of all classes
    pairs: tuple[_Pair, ...]  # pairs of classes that share the most sets, most first
    largest: tuple[LargeSet, ...]  # the largest sets of more than one class, largest first


def diagnose(record: CalibrationRecord, outputs: SplitOutputs) -> Diagnostics:
    """Measure every photo in one pass over blocks; memory does not grow with rows times classes."""
    rules = [(rule, k) for rule in ("average_k", "top_k") for k in record.values(rule)]
    points = [record.point(PLAIN, record.setting(rule, k)) for rule, k in rules]
    point, ks = record.default_point, record.values("average_k")
    observations = outputs.observations
    watched = [ks.index(point.row.value)]
    measurement = Measurement(points, record.classes, watched=watched, observations=observations)
    binned, best_scores, best_true = np.zeros((3, _SCORE_BINS)), list[Floats](), list[Bools]()
    pairs, labels_of_pairs = list[Ints](), list[Ints]()
    with progress(len(outputs.labels), "computing diagnostics") as advance:
        for (logits,), labels in outputs.blocks(record.head):
            scores = record.scores(logits)
            measurement.update(scores, labels)
            true = labels[:, np.newaxis] == np.arange(record.classes)
            binned += _binned(scores.ravel(), true.ravel())
            rows, best = np.arange(len(scores)), best_class(scores)
            best_scores.append(scores[rows, best])
            best_true.append(true[rows, best])
            for best_members, label in zip(_ranked_members(point, scores), labels, strict=True):
                members = np.sort(best_members[:MOST_MEMBERS])
                first, second = np.triu_indices(members.size, 1)
                pairs.append(members[first] * record.classes + members[second])
                labels_of_pairs.append(np.full(first.size, label))
            advance(len(labels))
    sizes, hits = measurement.row_by_row()  # (rows, 1)
    figures = [point.row_on(measurement, index) for index, point in enumerate(points)]
    best_score, is_true = np.concatenate(best_scores), np.concatenate(best_true)
    effective = effective_by(_bins(best_score), is_true, observations, groups=_SCORE_BINS)
    return Diagnostics(
        average_k=tuple(figures[: len(ks)]),
        top_k=tuple(figures[len(ks) :]),
        k=point.row.value,
        sizes=sizes[:, 0],
        hits=hits[:, 0],
        best_scores=_reliability(_binned(best_score, is_true), effective),
        all_scores=_reliability(binned),
        pairs=_most_common(np.concatenate(pairs), np.concatenate(labels_of_pairs), record.classes),
        largest=tuple(_largest(point, record, outputs, sizes[:, 0])),
    )


def _bins(scores: Floats) -> Ints:
    return np.minimum((scores * _SCORE_BINS).astype(np.int64), _SCORE_BINS - 1)


def _binned(scores: Floats, true: Bools) -> Floats:
    """Number of scores in each bin, their sum, and how many are of the true class, (3, bins)."""
    bins, weights = _bins(scores), (None, scores, true)
    return np.stack([np.bincount(bins, weight, minlength=_SCORE_BINS) for weight in weights])


def _reliability(binned: Floats, effective: Floats | None = None) -> Reliability:
    counts, sums, hits = binned
    means = np.full(_SCORE_BINS, np.nan)
    np.divide(sums, counts, out=means, where=counts > 0)
    return Reliability(
        counts=counts.astype(np.int64),
        mean_scores=means,
        hits=hits.astype(np.int64),
        effective=counts if effective is None else effective,
    )


def _ranked_members(point: OperatingPoint, scores: Floats) -> Iterator[Ints]:
    """The classes of each photo's set, best first; ``scores`` are ``(batch, classes)``."""
    for inside, values in zip(point.sets(scores), point.rank_by(scores), strict=True):
        members = np.flatnonzero(inside)
        yield members[np.argsort(-values[members], kind="stable")]


def _most_common(pairs: Ints, labels: Ints, classes: int) -> tuple[_Pair, ...]:
    """The pairs in the most sets, the first classes among equal ones.

    A pair of classes is the number ``first * classes + second``; ``labels`` are of its photos.
    """
    keys, places, counts = np.unique(pairs, return_inverse=True, return_counts=True)
    both = np.stack(np.divmod(keys, classes))  # (2, pairs)
    true = [np.bincount(places[labels == side[places]], minlength=keys.size) for side in both]
    order = np.argsort(-counts, kind="stable")[:MOST_PAIRS]
    columns = (values[order].tolist() for values in (*both, counts, *true))
    return tuple(
        _Pair(classes=(first, second), sets=sets, true=(of_first, of_second))
        for first, second, sets, of_first, of_second in zip(*columns, strict=True)
    )


def _largest(
    point: OperatingPoint, record: CalibrationRecord, outputs: SplitOutputs, sizes: Ints
) -> Iterator[LargeSet]:
    rows = np.argsort(-sizes, kind="stable")[:MOST_LARGE]
    for row in rows[sizes[rows] > 1]:
        scores = record.scores(outputs.rows(record.head, row[np.newaxis]))
        (members,) = _ranked_members(point, scores)
        label = int(outputs.labels[row])
        yield LargeSet(
            row=int(row),
            label=label,
            size=int(sizes[row]),
            hit=label in members,
            members=tuple((c, float(scores[0, c])) for c in members[:SHOWN_MEMBERS].tolist()),
        )
