"""Histograms of scores, small enough to store in a bundle."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

_LOWEST_POWER = -20  # scores below 2**-20 share the first bin
EDGES: NDArray[np.float64] = np.concatenate([[0.0], 2.0 ** np.arange(_LOWEST_POWER, 0.01, 0.25)])
"""Lower edges of the bins: four to a factor of two; the last one holds the score 1 alone."""

LOGSUMEXP_BINS = 40


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Histograms of the served scores, to compare live traffic with: one photo of each plant.

    Photos of one plant are alike. If each counted, a monitor would take the histograms for more
    exact than they are.

    Attributes:
        edges: Lower edges of the bins.
        all_scores: Number of scores in each bin, over all classes.
        best_scores: Number of photos whose best score lies in each bin.
        logsumexp_mean: Mean over the photos of log sum exp of the served head's logits.
        logsumexp_deviation: Its standard deviation.
        logsumexp_edges: Lower edges of up to 40 bins with about the same number of photos.
        logsumexp: Number of photos in each of these bins.
    """

    edges: tuple[float, ...]
    all_scores: tuple[int, ...]
    best_scores: tuple[int, ...]
    logsumexp_mean: float
    logsumexp_deviation: float
    logsumexp_edges: tuple[float, ...]
    logsumexp: tuple[int, ...]


class DistributionOf:
    """Builds a :class:`Distribution` batch by batch."""

    def __init__(self) -> None:
        self._all, self._best = np.zeros((2, EDGES.size), dtype=np.int64)
        self._logsumexp: list[NDArray[np.float64]] = []

    def update(self, logits: NDArray[np.float32], scores: NDArray[np.float64]) -> None:
        """Add rows: logits and scores in [0, 1], both ``(batch, classes)``."""
        self._all += _in_bins(scores)
        self._best += _in_bins(scores.max(axis=1))
        self._logsumexp.append(logsumexp(logits))

    def result(self) -> Distribution:
        """The distribution of the rows so far, at least one."""
        values = np.concatenate(self._logsumexp)
        edges = np.unique(np.quantile(values, np.arange(LOGSUMEXP_BINS) / LOGSUMEXP_BINS))
        places = np.maximum(np.searchsorted(edges, values, side="right") - 1, 0)
        return Distribution(
            edges=tuple(EDGES.tolist()),
            all_scores=tuple(self._all.tolist()),
            best_scores=tuple(self._best.tolist()),
            logsumexp_mean=float(values.mean()),
            logsumexp_deviation=float(values.std()),
            logsumexp_edges=tuple(edges.tolist()),
            logsumexp=tuple(np.bincount(places, minlength=edges.size).tolist()),
        )


def _in_bins(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many scores lie in each bin of :data:`EDGES`."""
    places = np.searchsorted(EDGES, scores.reshape(-1), side="right") - 1
    return np.bincount(places, minlength=EDGES.size).astype(np.int64)


def logsumexp(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Log of the sum of ``exp`` of each row, in float64, shape ``(rows,)``."""
    values = logits.astype(np.float64)
    top = values.max(axis=1, keepdims=True)
    summed: NDArray[np.float64] = np.log(np.exp(values - top).sum(axis=1)) + top[:, 0]
    return summed
