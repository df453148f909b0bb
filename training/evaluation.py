"""How good a network is on validation pictures: every head, every score kind, several K."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from calibration.metrics import average_k_accuracy, top_k_accuracy
from calibration.scores import SCORE_KINDS, scores
from calibration.threshold import average_k_threshold
from training.loading import Batch

REPORTED_K: Final = (1.0, 2.0, 3.0, 5.0)
Logits = Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A head and the score kind it is thresholded on."""

    head: str
    score_kind: str

    def __str__(self) -> str:
        return f"{self.head} {self.score_kind}"


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Figures of one evaluation.

    Attributes:
        average_k: The K that chooses the checkpoint.
        accuracy: Average-K accuracy by choice and K. The threshold is set on the same pictures.
        top_1: Top-1 accuracy by head.
        log_loss: Mean negative log of the true class's softmax, by head.
    """

    average_k: float
    accuracy: Mapping[Choice, Mapping[float, float]]
    top_1: Mapping[str, float]
    log_loss: Mapping[str, float]

    @property
    def best(self) -> Choice:
        """The choice with the best accuracy at ``average_k``; the first of equal ones."""
        return max(self.accuracy, key=lambda choice: self.accuracy[choice][self.average_k])

    @property
    def score(self) -> float:
        """The number that chooses the checkpoint: larger is better."""
        return self.accuracy[self.best][self.average_k]


def collect_logits(
    predict: Callable[[Tensor], Mapping[str, Tensor]], batches: Iterable[Batch]
) -> tuple[dict[str, NDArray[np.float32]], NDArray[np.int64]]:
    """Logits ``(rows, classes)`` by head, and the labels, of all batches in order."""
    parts: dict[str, list[NDArray[np.float32]]] = {}
    labels: list[NDArray[np.int64]] = []
    for batch in batches:
        for head, logits in predict(batch.images).items():
            parts.setdefault(head, []).append(logits.float().cpu().numpy())
        labels.append(batch.labels.numpy())
    joined = {head: np.concatenate(found) for head, found in parts.items()}
    return joined, np.concatenate(labels)


def measure(logits: Logits, labels: NDArray[np.int64], *, average_k: float) -> Validation:
    """All figures of :class:`Validation`.

    Args:
        logits: By head, ``(rows, classes)``, finite.
        labels: int64, ``(rows,)``.
        average_k: The K that chooses; lowered to ``classes - 1`` where it is larger.
    """
    classes = next(iter(logits.values())).shape[1]
    chosen = min(average_k, classes - 1.0)
    sizes = sorted({k for k in REPORTED_K if k < classes} | {chosen})
    accuracy: dict[Choice, dict[float, float]] = {}
    log_loss: dict[str, float] = {}
    for head, values in logits.items():
        for kind in SCORE_KINDS:
            found = scores(values, kind)
            accuracy[Choice(head=head, score_kind=kind)] = {
                k: accuracy_at(found, labels, k) for k in sizes
            }
        log_loss[head] = _log_loss(values, labels)
    return Validation(
        average_k=chosen,
        accuracy=accuracy,
        top_1={head: float(top_k_accuracy(values, labels, 1)) for head, values in logits.items()},
        log_loss=log_loss,
    )


def accuracy_at(found: NDArray[np.float64], labels: NDArray[np.int64], average_k: float) -> float:
    """Average-K accuracy at a mean size of exactly K, so that epochs and heads can be compared.

    Of scores tied at the cut only the share that fits counts: equal scores, as of a network that
    has hardly learned, would else give larger sets and so more hits.

    Example:
        >>> accuracy_at(np.full((10, 4), 0.25), np.zeros(10, dtype=np.int64), 1)
        0.25
    """
    threshold = average_k_threshold(found, average_k)
    accuracy = average_k_accuracy(found, labels, threshold.lambda_val)
    if not threshold.ties:
        return accuracy
    at_the_cut = found == threshold.lambda_val
    true_at_the_cut = at_the_cut[np.arange(len(labels)), labels].mean()
    return float(accuracy - true_at_the_cut * threshold.ties / at_the_cut.sum())


def _log_loss(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    log_sums = np.log(np.exp(shifted).sum(axis=1))
    return float((log_sums - shifted[np.arange(len(labels)), labels]).mean())
