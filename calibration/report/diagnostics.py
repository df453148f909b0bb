"""Detailed figures of the sets of a bundle on a split."""

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.calibrate.threshold_tables import row_of
from florilege.calibration.intervals import effective_by
from florilege.calibration.measurement import Bools, Ints, Measurement
from florilege.calibration.record.operating_point import OperatingPoint
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.record.schema import Row
from florilege.calibration.sets import best_class
from florilege.progress import progress

SCORE_BINS = 10
"""Scores are counted in bins of a tenth."""
MOST_LARGE = 12
"""Number of photos with the largest sets to show."""
MOST_MEMBERS = 12
"""Larger sets only count pairs of this many best classes, which bounds time and memory."""
MOST_PAIRS = 12
SHOWN_MEMBERS = 5


@dataclass(frozen=True, kw_only=True)
class Reliability:
    """Scores in bins of equal width, and how often they are of the true class; all ``(bins,)``."""

    counts: Ints  # scores in each bin
    mean_scores: NDArray[np.float64]  # their mean; NaN in an empty bin
    hits: Ints  # how many of them are of the true class
    effective: NDArray[np.float64] | None = None  # effective sample sizes; None without plants

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
    """Two classes and the sets that hold both of them."""

    classes: tuple[int, int]
    sets: int
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
    labels: Ints  # true class indices, (rows,)
    sizes: Ints  # set sizes, (rows,)
    hits: Bools  # whether each set holds the true class, (rows,)
    plants: Ints | None = None  # plant of each photo, (rows,); None where unknown
    best_scores: Reliability  # of the best score of each photo
    all_scores: Reliability  # of the scores of all classes
    pairs: tuple[_Pair, ...]  # pairs of classes that share the most sets, most first
    largest: tuple[LargeSet, ...]  # the largest sets of more than one class, largest first


def diagnose(record: CalibrationRecord, outputs: SplitOutputs) -> Diagnostics:
    """Measure every photo in one pass over blocks; memory does not grow with rows times classes."""
    rules = [(rule, k) for rule in ("average_k", "top_k") for k in record.ks(rule)]
    points = [record.point(rule, k=k) for rule, k in rules]
    point, ks = record.point("average_k"), record.ks("average_k")
    assert point.k is not None  # average_k has a K
    plants = outputs.plants
    measurement = Measurement(points, record.classes, watched=[ks.index(point.k)], plants=plants)
    best, every, pairs = _Bins(), _Bins(), _Pairs(record.classes)
    with progress(len(outputs.labels), "computing diagnostics") as advance:
        for (logits,), labels in outputs.blocks(record.head):
            scores = record.scores(logits)
            measurement.update(scores, labels)
            true = labels[:, np.newaxis] == np.arange(record.classes)
            every.update(scores, true)
            first = best_class(scores)[:, np.newaxis]
            best.update(np.take_along_axis(scores, first, 1), np.take_along_axis(true, first, 1))
            pairs.update(point, scores, labels)
            advance(len(labels))
    watched_sizes, watched_hits = measurement.row_by_row()  # (rows, 1)
    rows = [row_of(measurement, index, k, record.score_kind) for index, (_, k) in enumerate(rules)]
    return Diagnostics(
        average_k=tuple(rows[: len(ks)]),
        top_k=tuple(rows[len(ks) :]),
        k=point.k,
        labels=outputs.labels,
        sizes=watched_sizes[:, 0],
        hits=watched_hits[:, 0],
        plants=plants,
        best_scores=best.result(plants),
        all_scores=every.result(),
        pairs=pairs.most(),
        largest=tuple(_largest(point, record, outputs, watched_sizes[:, 0])),
    )


@dataclass
class _Bins:
    """Builds a :class:`Reliability`."""

    counts: Ints = field(default_factory=lambda: np.zeros(SCORE_BINS, dtype=np.int64))
    hits: Ints = field(default_factory=lambda: np.zeros(SCORE_BINS, dtype=np.int64))
    sums: NDArray[np.float64] = field(default_factory=lambda: np.zeros(SCORE_BINS))
    places: list[Ints] = field(default_factory=list)  # the bin of each photo with one score
    true: list[Bools] = field(default_factory=list)

    def update(self, scores: NDArray[np.float64], true: Bools) -> None:
        """Add scores in [0, 1] and whether each is of the true class, in the same shape."""
        values = scores.ravel()
        bins = np.minimum((values * SCORE_BINS).astype(np.int64), SCORE_BINS - 1)
        self.counts += np.bincount(bins, minlength=SCORE_BINS)
        self.sums += np.bincount(bins, weights=values, minlength=SCORE_BINS)
        self.hits += np.bincount(bins[true.ravel()], minlength=SCORE_BINS)
        if scores.shape[1] == 1:
            self.places.append(bins)
            self.true.append(true.ravel())

    def result(self, plants: Ints | None = None) -> Reliability:
        means = np.full(SCORE_BINS, np.nan)
        np.divide(self.sums, self.counts, out=means, where=self.counts > 0)
        effective = None
        if plants is not None:
            places, true = np.concatenate(self.places), np.concatenate(self.true)
            effective = effective_by(places, true, plants, groups=SCORE_BINS)
        return Reliability(
            counts=self.counts, mean_scores=means, hits=self.hits, effective=effective
        )


class _Pairs:
    """Counts the sets that two classes share."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._keys, self._labels = [np.empty(0, np.int64)], [np.empty(0, np.int64)]

    def update(self, point: OperatingPoint, scores: NDArray[np.float64], labels: Ints) -> None:
        """Add the sets of some photos, ``scores`` of shape ``(batch, classes)``."""
        ranked = point.rank_by(scores)
        for inside, values, label in zip(point.sets(scores), ranked, labels, strict=True):
            members = np.flatnonzero(inside)
            if members.size > MOST_MEMBERS:
                best = np.argsort(-values[members], kind="stable")[:MOST_MEMBERS]
                members = np.sort(members[best])
            first, second = np.triu_indices(members.size, 1)
            self._keys.append(members[first] * self._classes + members[second])
            self._labels.append(np.full(first.size, label))

    def most(self) -> tuple[_Pair, ...]:
        """The pairs with the most sets; the first classes among equal ones."""
        labels = np.concatenate(self._labels)
        keys, places, counts = np.unique(
            np.concatenate(self._keys), return_inverse=True, return_counts=True
        )
        first, second = np.divmod(keys, self._classes)
        true = [np.bincount(places[labels == side[places]], minlength=keys.size)
                for side in (first, second)]  # fmt: skip
        return tuple(
            _Pair(
                classes=(int(first[place]), int(second[place])),
                sets=int(counts[place]),
                true=(int(true[0][place]), int(true[1][place])),
            )
            for place in np.argsort(-counts, kind="stable")[:MOST_PAIRS].tolist()
        )


def _largest(
    point: OperatingPoint, record: CalibrationRecord, outputs: SplitOutputs, sizes: Ints
) -> Iterator[LargeSet]:
    rows = np.argsort(-sizes, kind="stable")[:MOST_LARGE]
    rows = rows[sizes[rows] > 1]
    for row in rows:
        scores = record.scores(outputs.rows(record.head, row[np.newaxis]))
        inside = point.sets(scores)[0]
        order = np.argsort(-point.rank_by(scores)[0], kind="stable")
        members = [c for c in order.tolist() if inside[c]][:SHOWN_MEMBERS]
        label = int(outputs.labels[row])
        yield LargeSet(
            row=int(row),
            label=label,
            size=int(sizes[row]),
            hit=bool(inside[label]),
            members=tuple((c, float(scores[0, c])) for c in members),
        )
