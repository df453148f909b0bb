"""Metrics of a network on validation pictures: every head, every score kind, several K."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.metrics import true_class_ranks
from florilege.calibration.scores import SCORE_KINDS, scores
from florilege.calibration.selection import TopScores
from florilege.calibration.threshold import next_above
from florilege.training.config import Metric

_REPORTED_K: Final = (1.0, 2.0, 3.0, 5.0)
Logits = Mapping[str, NDArray[np.float32]]
Floats = NDArray[np.float64]
Rows = TypeVar("Rows", bound=NDArray[Any])


@dataclass(frozen=True, kw_only=True)
class ScoreChoice:
    """A head and the score kind it is thresholded on."""

    head: str
    score_kind: str


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Figures of one evaluation; the thresholds for each K are set on the same pictures."""

    metric: Metric  # that chooses the checkpoint
    values: Mapping[ScoreChoice, float]  # by head alone for sets of a fixed size
    accuracy: Mapping[ScoreChoice, Mapping[float, float]]  # average-K accuracy by choice and K
    top_1: Mapping[str, float]  # accuracy by head
    log_loss: Mapping[str, float]  # mean negative log of the true class's softmax, by head

    @property
    def best(self) -> ScoreChoice:
        """The choice with the best value; in a tie the first."""
        return max(self.values, key=self.values.__getitem__)

    @property
    def score(self) -> float:
        """The number that chooses the checkpoint; larger is better."""
        return self.values[self.best]


class ValidationMeter:
    """Computes the figures of :class:`Validation` batch by batch.

    No logits are kept: memory grows with K times the pictures, ``rows``, not with pictures times
    classes. K of the metric is lowered to at most ``classes - 1``.
    """

    def __init__(self, *, rows: int, metric: Metric) -> None:
        self._rows, self._metric = rows, metric
        self._sets: dict[ScoreChoice, _Sets] = {}
        self._labels: list[NDArray[np.int64]] = []
        self._ranks: dict[str, list[NDArray[np.int64]]] = {}
        self._log_loss: dict[str, list[NDArray[np.float64]]] = {}

    def update(self, logits: Logits, labels: NDArray[np.int64]) -> None:
        """Add rows: finite logits ``(batch, classes)`` by head, and int64 labels ``(batch,)``."""
        largest_k = max(_REPORTED_K[-1], 0.0 if self._metric.fixed_size else self._metric.k)
        self._labels.append(labels)
        for head, values in logits.items():
            most = values.shape[1] - 1.0
            self._metric = replace(self._metric, k=min(self._metric.k, most))
            for kind in SCORE_KINDS:
                choice = ScoreChoice(head=head, score_kind=kind)
                if choice not in self._sets:
                    self._sets[choice] = _Sets(self._rows, min(largest_k, most))
                self._sets[choice].update(scores(values, kind), labels)
            self._ranks.setdefault(head, []).append(true_class_ranks(values, labels))
            self._log_loss.setdefault(head, []).append(_log_loss(values, labels))

    @classmethod
    def joined(cls, meters: Sequence["ValidationMeter"]) -> "ValidationMeter":
        """One meter of the batches of several, which took them in turn: the same figures."""
        whole, *others = [meter for meter in meters if meter._labels]
        if not others:
            return whole
        in_turn = [whole, *others]
        whole._labels = _in_turn([meter._labels for meter in in_turn])
        for rows_of in ("_ranks", "_log_loss"):
            for head, own in getattr(whole, rows_of).items():
                own[:] = _in_turn([getattr(meter, rows_of)[head][:] for meter in in_turn])
        for choice, sets in whole._sets.items():
            sets.join([meter._sets[choice] for meter in others])
        return whole

    def result(self) -> Validation:
        """The figures of all rows, at least one."""
        metric = self._metric
        ranks = {head: np.concatenate(parts) for head, parts in self._ranks.items()}
        losses = {head: np.concatenate(parts) for head, parts in self._log_loss.items()}
        return Validation(
            metric=metric,
            values={
                choice: float(shares.mean()) for choice, shares in self._shares(metric.k).items()
            },
            accuracy={choice: self._accuracy(sets) for choice, sets in self._sets.items()},
            top_1={head: int((rank == 0).sum()) / self._rows for head, rank in ranks.items()},
            log_loss={head: float(loss.mean()) for head, loss in losses.items()},
        )

    def _accuracy(self, sets: "_Sets") -> dict[float, float]:
        """Average-K accuracy by K."""
        sizes = self._sizes()
        if self._metric.fixed_size:  # K of its sets, which are not of K on average
            sizes = [k for k in sizes if k in _REPORTED_K]
        return {k: float(sets.hits(k).mean()) for k in sizes}

    def hits(self) -> dict[ScoreChoice, Floats]:
        """How often the sets of each row hold its class, over the reported K and the metric's.

        Shares of shape ``(rows,)``, in the order of the rows. In a ``macro`` metric they are
        weighted by class, so that the mean over rows is that over classes.
        """
        by_k = [self._shares(k) for k in self._sizes()]
        return {choice: np.mean([shares[choice] for shares in by_k], axis=0) for choice in by_k[0]}

    def _sizes(self) -> list[float]:
        """The reported K that there are classes for, and that of the metric."""
        largest = next(iter(self._sets.values())).largest_k
        return sorted({*(k for k in _REPORTED_K if k <= largest), self._metric.k})

    def _shares(self, k: float) -> dict[ScoreChoice, Floats]:
        """The share of each row in the metric at K."""
        if not self._metric.fixed_size:
            shares = {choice: sets.hits(k) for choice, sets in self._sets.items()}
        else:
            kind = SCORE_KINDS[0]  # all kinds rank the classes alike
            shares = {
                ScoreChoice(head=head, score_kind=kind): (np.concatenate(parts) < k).astype(
                    np.float64
                )
                for head, parts in self._ranks.items()
            }
        labels = np.concatenate(self._labels)
        weights = _class_weights(labels) if self._metric.macro else np.ones(len(labels))
        return {choice: weights * share for choice, share in shares.items()}


class _Sets:
    """The scores that give average-K accuracy at any K up to ``largest_k``."""

    def __init__(self, rows: int, largest_k: float) -> None:
        self.largest_k = largest_k
        self._top = TopScores(rows, largest_k)
        self._true: list[NDArray[np.float64]] = []

    def update(self, values: NDArray[np.float64], labels: NDArray[np.int64]) -> None:
        self._top.update(values)
        self._true.append(values[np.arange(len(labels)), labels])

    def join(self, others: Sequence["_Sets"]) -> None:
        """Add the batches of others, which took them in turn."""
        self._true = _in_turn([self._true, *(other._true for other in others)])
        for other in others:
            self._top.merge(other._top)

    def hits(self, average_k: float) -> Floats:
        """The share of each row in the accuracy at a mean set size of exactly K, in [0, 1].

        Of the scores that tie at the threshold, only the share that fits counts. Otherwise equal
        scores, those of a network that has hardly learned, would give larger sets and more hits.
        """
        threshold, true = self._top.threshold(average_k), np.concatenate(self._true)
        lambda_val = threshold.lambda_val
        inside = (true >= lambda_val).astype(np.float64)
        if threshold.ties:
            tied = self._top.reaching(lambda_val) - self._top.reaching(next_above(lambda_val))
            inside[true == lambda_val] -= threshold.ties / tied
        return inside


def _in_turn(batches: Sequence[list[Rows]]) -> list[Rows]:
    """The first batch of each list, then the second of each, and so on."""
    return [batch for turn in zip_longest(*batches) for batch in turn if batch is not None]


def _class_weights(labels: NDArray[np.int64]) -> Floats:
    """Weights of rows, with a mean of one, under which every class counts the same."""
    counts = np.bincount(labels)
    weights: Floats = len(labels) / ((counts > 0).sum() * counts[labels])
    return weights


def _log_loss(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.float64]:
    """Negative log of the true class's softmax, shape ``(batch,)``."""
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(shifted).sum(axis=1))
    return np.asarray(log_sums - shifted[np.arange(len(labels)), labels])
