"""How scores are distributed, small enough to travel with a bundle."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

LOWEST_POWER = -20
"""Scores below 2**-20 share the first bin."""
EDGES: NDArray[np.float64] = np.concatenate([[0.0], 2.0 ** np.arange(LOWEST_POWER, 0.01, 0.25)])
"""Lower edges of the bins: four to a factor of two; the last one holds the score 1 alone."""

LOGSUMEXP_BINS = 40


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """How the served scores were distributed; live traffic can be compared with it.

    Attributes:
        edges: Lower edges of the bins.
        all_scores: Scores of all classes in each bin.
        best_scores: The best score of each photo in each bin.
        logsumexp_mean: Mean over the photos of log sum exp of the served head's logits.
        logsumexp_deviation: Its standard deviation.
        logsumexp_edges: Lower edges of up to 40 bins with about as many photos each.
        logsumexp: Photos in each of them.
        mean_scores: Mean score of each class, to six digits: the class frequencies that the
            scores assume (:mod:`florilege.calibration.monitoring.prior_shift`).
        class_logsumexp: Mean log sum exp of the photos of each class, each photo counting for a
            class as much as its score says; empty in older records.
        class_spread: The same for the standard deviation of a photo's logits.
    """

    edges: tuple[float, ...]
    all_scores: tuple[int, ...]
    best_scores: tuple[int, ...]
    logsumexp_mean: float
    logsumexp_deviation: float
    logsumexp_edges: tuple[float, ...]
    logsumexp: tuple[int, ...]
    mean_scores: tuple[float, ...]
    class_logsumexp: tuple[float, ...] = ()
    class_spread: tuple[float, ...] = ()


class DistributionOf:
    """Gathers a :class:`Distribution` batch by batch."""

    def __init__(self) -> None:
        self._all = np.zeros(EDGES.size, dtype=np.int64)
        self._best = np.zeros(EDGES.size, dtype=np.int64)
        self._traits: list[NDArray[np.float64]] = []
        self._sums: NDArray[np.float64] | None = None  # (1 + traits, classes)

    def update(self, logits: NDArray[np.float32], scores: NDArray[np.float64]) -> None:
        """Add some more rows: logits and scores in [0, 1], both ``(batch, classes)``."""
        self._all += in_bins(scores)
        self._best += in_bins(scores.max(axis=1))
        found = traits(logits)
        self._traits.append(found)
        factors = np.concatenate([np.ones((len(found), 1)), found], axis=1)  # (batch, 1 + traits)
        rows = factors[:, :, np.newaxis] * scores[:, np.newaxis]
        if self._sums is None:
            self._sums = np.zeros(rows.shape[1:])
        for row in rows:  # one after the other: blocks of any length give the same bits
            self._sums += row

    def result(self) -> Distribution:
        """What was gathered from the rows so far, at least one."""
        assert self._sums is not None  # a split has photos
        every = np.concatenate(self._traits)
        values = every[:, 0]
        score_sums, trait_sums = self._sums[0], self._sums[1:]
        nowhere = score_sums == 0  # classes that score 0 on every photo
        by_class = trait_sums / np.where(nowhere, 1, score_sums)
        by_class = np.where(nowhere, every.mean(axis=0)[:, np.newaxis], by_class)
        edges = np.unique(np.quantile(values, np.arange(LOGSUMEXP_BINS) / LOGSUMEXP_BINS))
        places = np.maximum(np.searchsorted(edges, values, side="right") - 1, 0)
        means = score_sums / values.size
        return Distribution(
            edges=tuple(EDGES.tolist()),
            all_scores=tuple(self._all.tolist()),
            best_scores=tuple(self._best.tolist()),
            logsumexp_mean=float(values.mean()),
            logsumexp_deviation=float(values.std()),
            logsumexp_edges=tuple(edges.tolist()),
            logsumexp=tuple(np.bincount(places, minlength=edges.size).tolist()),
            mean_scores=_short(means),
            class_logsumexp=_short(by_class[0]),
            class_spread=_short(by_class[1]),
        )


def in_bins(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many scores lie in each bin of :data:`EDGES`."""
    places = np.searchsorted(EDGES, scores.reshape(-1), side="right") - 1
    return np.bincount(places, minlength=EDGES.size).astype(np.int64)


def traits(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Log sum exp and standard deviation of each row of logits, shape ``(rows, 2)``."""
    spread = logits.astype(np.float64).std(axis=1)
    return np.stack([logsumexp(logits), spread], axis=1)


def _short(values: NDArray[np.float64]) -> tuple[float, ...]:
    return tuple(float(f"{value:.6g}") for value in values)


def logsumexp(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Log of the sum of ``exp`` of each row, in float64, shape ``(rows,)``.

    Example:
        >>> logsumexp(np.zeros((1, 4), dtype=np.float32)).round(4)
        array([1.3863])
    """
    values = logits.astype(np.float64)
    top = values.max(axis=1, keepdims=True)
    summed: NDArray[np.float64] = np.log(np.exp(values - top).sum(axis=1)) + top[:, 0]
    return summed
