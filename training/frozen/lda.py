"""Linear discriminant analysis of kept features, added to the head that was trained on them.

The head of a loss follows the labels it has seen; the discriminant knows the classes by their means
and one covariance alone, which wrong labels hardly move. Their sum is still one linear layer.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor

from models.backbones.weights import read_weights
from training.checkpoint import save_weights
from training.evaluation import REPORTED_K, ValidationOf
from training.frozen.store import Features
from training.metric import Metric

NOTE: Final = "lda"
"""What the header of a file of weights says of a discriminant that is part of them."""
SHRINKAGES: Final = (0.1, 0.4)
SHARES: Final = (0.01, 0.03, 0.1, 0.3)
ROWS_AT_ONCE: Final = 4096


@dataclass(frozen=True)
class Linear:
    """A linear layer: logits are ``features @ weight.T + bias``."""

    weight: Tensor  # (classes, dimensions)
    bias: Tensor  # (classes,)

    def logits(self, features: Tensor) -> NDArray[np.float32]:
        """Logits of ``features``, ``(batch, dimensions)``."""
        found: NDArray[np.float32] = (features @ self.weight.T + self.bias).numpy()
        return found

    def plus(self, other: "Linear", share: float) -> "Linear":
        """The sum of this layer and a share of another."""
        return Linear(self.weight + share * other.weight, self.bias + share * other.bias)

    def times(self, factor: float) -> "Linear":
        """This layer with its logits multiplied."""
        return Linear(factor * self.weight, factor * self.bias)


@dataclass(frozen=True)
class Added:
    """A head with a share of the discriminant added, and what that changed on validation."""

    head: Linear
    share: float
    shrinkage: float
    before: float  # mean over the reported K of average-K accuracy
    after: float


class Discriminant:
    r"""The Gaussian classifier with a mean for each class and one covariance for all.

    .. math:: \log p(c \mid x) = \mu_c^T \Sigma^{-1} x - \mu_c^T \Sigma^{-1} \mu_c / 2
              + \log \pi_c + \text{const}

    Args:
        features: Of the training pictures.
        classes: How many there are. One without a picture has the mean of all and half a picture.

    References:
        Hastie, Tibshirani and Friedman, "The elements of statistical learning", 4.3.
    """

    def __init__(self, features: Features, classes: int) -> None:
        labels, dimensions = features.split.labels, features.values.shape[1]
        counts = np.bincount(labels, minlength=classes).astype(np.float64)
        sums, squares = np.zeros((classes, dimensions)), np.zeros((dimensions, dimensions))
        for rows in _blocks(len(features)):
            values = features.values[features.rows[rows]].astype(np.float64)
            np.add.at(sums, labels[rows], values)
            squares += values.T @ values
        overall = sums.sum(0) / len(features)
        self.means = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], overall)
        between = (self.means * counts[:, None]).T @ self.means
        self.covariance = (squares - between) / len(features)
        self.log_prior = np.log(np.maximum(counts, 0.5) / len(features))

    def layer(self, shrinkage: float) -> Linear:
        """The classifier as a linear layer, float32.

        Args:
            shrinkage: Share of the covariance replaced by that of independent features, in (0, 1].
        """
        variances = np.maximum(np.diag(self.covariance), 1e-12)
        shrunk = (1 - shrinkage) * self.covariance + shrinkage * np.diag(variances)
        weight = np.linalg.solve(shrunk, self.means.T).T  # (classes, dimensions)
        bias = self.log_prior - (weight * self.means).sum(1) / 2
        return Linear(torch.from_numpy(weight).float(), torch.from_numpy(bias).float())


def add_discriminant(weights: Path, train: Features, val: Features) -> str | None:
    """Add a discriminant to the head in a file of weights, once, if it helps on ``val``.

    Returns:
        What was done, now or before, for the user; None if no share helps.
    """
    if (before := note_of(weights)) is not None:
        return before
    state = read_weights(weights)
    added = with_discriminant(Linear(state["head.weight"], state["head.bias"]), train, val)
    if added is None:
        return None
    done = (
        f"{added.share:g} of a linear discriminant (shrinkage {added.shrinkage:g}) is part of the "
        f"head: average-K accuracy on val, mean over K, {100 * added.before:.2f} % without and "
        f"{100 * added.after:.2f} % with it"
    )
    state |= {"head.weight": added.head.weight, "head.bias": added.head.bias}
    save_weights(weights, state, {NOTE: done})
    return done


def note_of(weights: Path) -> str | None:
    """What :func:`add_discriminant` did to a file of weights; None for nothing."""
    with safe_open(weights, "pt") as file:
        return (file.metadata() or {}).get(NOTE)


def with_discriminant(head: Linear, train: Features, val: Features) -> Added | None:
    """Add the share of the discriminant that does most for the sets on ``val``.

    Args:
        head: Trained on ``train``, for features as they are kept.
        train: Their means and covariance make the discriminant.
        val: Their mean average-K accuracy over the reported K chooses share and shrinkage.

    Returns:
        The sum; None if no share is better than none.
    """
    discriminant = Discriminant(train, len(head.bias))
    before = _accuracy(head, val)
    tried = [
        Added(head.plus(layer, share), share, shrinkage, before, 0.0)
        for shrinkage in SHRINKAGES
        for layer in [discriminant.layer(shrinkage)]
        for share in SHARES
    ]
    best = max((replace(one, after=_accuracy(one.head, val)) for one in tried), key=_after)
    return best if best.after > before else None


def _after(added: Added) -> float:
    return added.after


def _accuracy(head: Linear, val: Features) -> float:
    """Mean average-K accuracy over the reported K, for the better kind of score."""
    gathered = ValidationOf(rows=len(val), metric=Metric(name="average_k", k=REPORTED_K[-1]))
    for rows in _blocks(len(val)):
        features = torch.from_numpy(val.values[val.rows[rows]])
        gathered.update({"linear": head.logits(features)}, val.split.labels[rows])
    by_choice = gathered.result().accuracy.values()
    return max(float(np.mean(list(by_k.values()))) for by_k in by_choice)


def _blocks(rows: int) -> list[NDArray[np.int64]]:
    return np.split(np.arange(rows), range(ROWS_AT_ONCE, rows, ROWS_AT_ONCE))
