"""How good a network is on validation pictures: every head, every score kind, several K."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from calibration.metrics import true_class_ranks
from calibration.scores import SCORE_KINDS, scores
from calibration.selection import TopScores
from calibration.threshold import next_above

REPORTED_K: Final = (1.0, 2.0, 3.0, 5.0)
Logits = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Served:
    """A head and the score kind it is thresholded on."""

    head: str
    score_kind: str


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Figures of one evaluation; the thresholds for each K are set on the same pictures."""

    average_k: float  # the K that chooses the checkpoint
    accuracy: Mapping[Served, Mapping[float, float]]  # average-K accuracy by choice and K
    top_1: Mapping[str, float]  # accuracy by head
    log_loss: Mapping[str, float]  # mean negative log of the true class's softmax, by head

    @property
    def best(self) -> Served:
        """The choice with the best accuracy at ``average_k``; the first of several equal ones."""
        return max(self.accuracy, key=lambda choice: self.accuracy[choice][self.average_k])

    @property
    def score(self) -> float:
        """The number that chooses the checkpoint; larger is better."""
        return self.accuracy[self.best][self.average_k]


class ValidationOf:
    """Gathers the figures of :class:`Validation` batch by batch.

    No logits are kept: memory grows with K times the pictures, not with pictures times classes.

    Args:
        rows: Number of pictures.
        average_k: The K that chooses; lowered to ``classes - 1`` where it is larger.
    """

    def __init__(self, *, rows: int, average_k: float) -> None:
        self._rows, self._average_k = rows, average_k
        self._sets: dict[Served, _Sets] = {}
        self._top_1: dict[str, int] = {}
        self._log_loss: dict[str, list[NDArray[np.float64]]] = {}

    def update(self, logits: Logits, labels: NDArray[np.int64]) -> None:
        """Add rows: finite logits ``(batch, classes)`` by head, and int64 labels ``(batch,)``."""
        for head, values in logits.items():
            largest_k = max(REPORTED_K[-1], self._average_k)
            for kind in SCORE_KINDS:
                choice = Served(head=head, score_kind=kind)
                if choice not in self._sets:
                    self._sets[choice] = _Sets(self._rows, min(largest_k, values.shape[1] - 1.0))
                self._sets[choice].update(scores(values, kind), labels)
            hits = int((true_class_ranks(values, labels) == 0).sum())
            self._top_1[head] = self._top_1.get(head, 0) + hits
            self._log_loss.setdefault(head, []).append(_log_loss(values, labels))

    def result(self) -> Validation:
        """The figures of all rows, at least one."""
        largest = next(iter(self._sets.values())).largest_k
        chosen = min(self._average_k, largest)
        sizes = sorted({k for k in REPORTED_K if k <= largest} | {chosen})
        by_k = {served: {k: s.accuracy(k) for k in sizes} for served, s in self._sets.items()}
        top_1 = {head: hits / self._rows for head, hits in self._top_1.items()}
        log_loss = {head: float(np.concatenate(x).mean()) for head, x in self._log_loss.items()}
        return Validation(average_k=chosen, accuracy=by_k, top_1=top_1, log_loss=log_loss)


class _Sets:
    """What it takes to know average-K accuracy at any K up to ``largest_k``."""

    def __init__(self, rows: int, largest_k: float) -> None:
        self.largest_k = largest_k
        self._top = TopScores(rows, largest_k)
        self._true: list[NDArray[np.float64]] = []

    def update(self, found: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
        self._top.update(found)
        self._true.append(found[np.arange(len(labels)), labels])

    def accuracy(self, average_k: float) -> float:
        """At a mean size of exactly K, so that epochs and heads can be compared.

        Of the scores tied at the cut only the share that fits counts. Otherwise a network that has
        hardly learned, whose scores are equal, would get larger sets and so more hits.
        """
        threshold, true = self._top.threshold(average_k), np.concatenate(self._true)
        lambda_val = threshold.lambda_val
        accuracy = float((true >= lambda_val).mean())
        if not threshold.ties:
            return accuracy
        tied = self._top.reaching(lambda_val) - self._top.reaching(next_above(lambda_val))
        return float(accuracy - (true == lambda_val).mean() * threshold.ties / tied)


def _log_loss(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Negative log of the true class's softmax, shape ``(batch,)``."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(shifted).sum(axis=1))
    return np.asarray(log_sums - shifted[np.arange(len(labels)), labels])
