"""The figures of an epoch: measured on validation pictures, and recorded.

Every head, every score kind and several K; ``metrics.csv``, TensorBoard events and a line of text.
"""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from torch.utils.tensorboard import SummaryWriter

from florilege.calibration.metrics import true_class_ranks
from florilege.calibration.scores import SCORE_KINDS, scores
from florilege.calibration.selection import TopScores
from florilege.calibration.threshold import next_above
from florilege.training.config import Metric
from florilege.training.loop.training_state import Position

_REPORTED_K: Final = (1.0, 2.0, 3.0, 5.0)
Logits = Mapping[str, NDArray[np.float32]]
Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class _ScoreChoice:
    """A head and the score kind it is thresholded on."""

    head: str
    score_kind: str


@dataclass(frozen=True, kw_only=True)
class Validation:
    """Figures of one evaluation; the thresholds for each K are set on the same pictures."""

    metric: Metric  # that chooses the checkpoint
    values: Mapping[_ScoreChoice, float]  # by head alone for sets of a fixed size
    accuracy: Mapping[_ScoreChoice, Mapping[float, float]]  # average-K accuracy by choice and K
    top_1: Mapping[str, float]  # accuracy by head
    log_loss: Mapping[str, float]  # mean negative log of the true class's softmax, by head

    @property
    def best(self) -> _ScoreChoice:
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
        self._rows, self._metric, self._largest_k = rows, metric, 0.0
        self._top: dict[_ScoreChoice, TopScores] = {}
        # Of each row its label, by head rank and log-loss of the label, by choice its score.
        self._batches: list[dict[object, NDArray[Any]]] = []

    def update(self, logits: Logits, labels: NDArray[np.int64]) -> None:
        """Add rows: finite logits ``(batch, classes)`` by head, and int64 labels ``(batch,)``."""
        largest_k = max(_REPORTED_K[-1], 0.0 if self._metric.fixed_size else self._metric.k)
        batch: dict[object, NDArray[Any]] = {"label": labels}
        for head, values in logits.items():
            most = values.shape[1] - 1.0
            self._metric = replace(self._metric, k=min(self._metric.k, most))
            self._largest_k = self._largest_k or min(largest_k, most)
            for kind in SCORE_KINDS:
                choice, by_class = _ScoreChoice(head=head, score_kind=kind), scores(values, kind)
                if choice not in self._top:
                    self._top[choice] = TopScores(self._rows, self._largest_k)
                self._top[choice].update(by_class)
                batch[choice] = by_class[np.arange(len(labels)), labels]
            batch["rank", head] = true_class_ranks(values, labels)
            batch["log_loss", head] = _log_loss(values, labels)
        self._batches.append(batch)

    @classmethod
    def joined(cls, meters: Sequence["ValidationMeter"]) -> "ValidationMeter":
        """One meter of the batches of several, which took them in turn: the same figures."""
        whole, *others = [meter for meter in meters if meter._batches]
        in_turn = zip_longest(whole._batches, *(meter._batches for meter in others))
        whole._batches = [batch for turn in in_turn for batch in turn if batch is not None]
        for choice, top in whole._top.items():
            for meter in others:
                top.merge(meter._top[choice])
        return whole

    def result(self) -> Validation:
        """The figures of all rows, at least one."""
        metric, sizes = self._metric, self._sizes()
        heads = dict.fromkeys(choice.head for choice in self._top)
        if metric.fixed_size:  # K of its sets, which are not of K on average
            sizes = [k for k in sizes if k in _REPORTED_K]
        return Validation(
            metric=metric,
            values={
                choice: float(shares.mean()) for choice, shares in self._shares(metric.k).items()
            },
            accuracy={
                choice: {k: float(self._hits(choice, k).mean()) for k in sizes}
                for choice in self._top
            },
            top_1={head: int((self._of("rank", head) == 0).sum()) / self._rows for head in heads},
            log_loss={head: float(self._of("log_loss", head).mean()) for head in heads},
        )

    def hits(self) -> dict[_ScoreChoice, Floats]:
        """How often the sets of each row hold its class, over the reported K and the metric's.

        Shares of shape ``(rows,)``, in the order of the rows. In a ``macro`` metric they are
        weighted by class, so that the mean over rows is that over classes.
        """
        by_k = [self._shares(k) for k in self._sizes()]
        return {choice: np.mean([shares[choice] for shares in by_k], axis=0) for choice in by_k[0]}

    def _of(self, *key: object) -> NDArray[Any]:
        """What is kept of each row, by its name, or its name and a head, or a choice."""
        name = key if len(key) > 1 else key[0]
        return np.concatenate([batch[name] for batch in self._batches])

    def _sizes(self) -> list[float]:
        """The reported K that there are classes for, and that of the metric."""
        return sorted({*(k for k in _REPORTED_K if k <= self._largest_k), self._metric.k})

    def _shares(self, k: float) -> dict[_ScoreChoice, Floats]:
        """The share of each row in the metric at K."""
        labels, shares = self._of("label"), dict[_ScoreChoice, Floats]()
        weights = _class_weights(labels) if self._metric.macro else np.ones(len(labels))
        for choice in self._top:
            if not self._metric.fixed_size:
                shares[choice] = weights * self._hits(choice, k)
            # One kind for all: they rank the classes alike, and a fixed size needs no more.
            elif choice.score_kind == SCORE_KINDS[0]:
                shares[choice] = weights * (self._of("rank", choice.head) < k)
        return shares

    def _hits(self, choice: _ScoreChoice, average_k: float) -> Floats:
        """The share of each row in the accuracy at a mean set size of exactly K, in [0, 1].

        Of the scores that tie at the threshold, only the share that fits counts. Otherwise equal
        scores, those of a network that has hardly learned, would give larger sets and more hits.
        """
        top, true = self._top[choice], self._of(choice)
        threshold = top.threshold(average_k)
        lambda_val = threshold.lambda_val
        inside = (true >= lambda_val).astype(np.float64)
        if threshold.ties:
            tied = top.reaching(lambda_val) - top.reaching(next_above(lambda_val))
            inside[true == lambda_val] -= threshold.ties / tied
        return inside


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


Row = dict[str, float | str]
CHOICE: Final = "chosen"
"""Column of the rows of heads: 1 for the weight decay that is taken, 0 for others."""


def epoch_row(position: Position, validation: Validation, **how: float) -> Row:
    """The figures of the epoch that just ended, by column name.

    ``how`` it was trained is a column too: ``learning_rate``; or ``weight_decay``, for the solution
    of a head, which counts as an epoch, and what chooses among these.
    """
    row: Row = {
        "epoch": position.epoch,
        "step": position.step,
        "seconds": round(position.seconds, 3),
        **how,
        "train_loss": position.loss_sum / max(1, position.examples),
        validation.metric.column: validation.metric.k,
        "val_score": validation.score,
        "val_best_head": validation.best.head,
        "val_best_score_kind": validation.best.score_kind,
    }
    if position.classes_taught:
        row["train_set_size"] = position.classes_taught / max(1, position.examples)
    for head in validation.log_loss:
        row[f"val_log_loss_{head}"] = validation.log_loss[head]
        row[f"val_top_1_{head}"] = validation.top_1[head]
    for choice, by_k in validation.accuracy.items():
        for k, value in by_k.items():
            row[f"val_average_{k:g}_{choice.head}_{choice.score_kind}"] = value
    for choice, value in validation.values.items():
        row[validation.metric.column_of(choice.head, choice.score_kind)] = value
    return row


def merit(row: Mapping[str, Any]) -> tuple[float, float, float]:
    """What orders the rows of a run: the weights of the best are kept, the first of several.

    Its value of the metric is the largest; in a tie, as where all of few photos are right, its
    log-loss is the smallest. A row may be marked as chosen by more than that.
    """
    log_loss = row.get(f"val_log_loss_{row.get('val_best_head')}", 0.0)
    return float(row.get(CHOICE, 0)), float(row["val_score"]), -float(log_loss)


@contextmanager
def events(folder: Path, epoch: int) -> Iterator[Callable[[Row], None]]:
    """Open the TensorBoard events in a folder; yields a function that appends an epoch.

    Events of epochs after ``epoch``, from before a resume, are discarded.
    """
    with SummaryWriter(str(folder), purge_step=epoch + 1) as writer:

        def append(row: Row) -> None:
            for name, value in row.items():
                if isinstance(value, int | float) and name not in ("epoch", "step"):
                    tag = re.sub("^(train|val)_", r"\1/", name)
                    writer.add_scalar(tag, value, int(row["epoch"]))
            writer.flush()

        yield append


def epoch_line(row: Row, *, epochs: int, better: bool) -> str:
    """The line shown to the user after an epoch."""
    mark = "  best so far" if better else ""
    name = f"epoch {row['epoch']}/{epochs}"
    if "weight_decay" in row:
        name = f"weight decay {row['weight_decay']:<4g}"
    return (
        f"{name}  loss {row['train_loss']:.4f}  "
        f"{float(row['val_score']) * 100:.2f} % of sets right on val (size {Metric.of(row).sets})  "
        f"{row['seconds']:.0f} s{mark}"
    )
