"""Linear discriminant analysis of stored features.

A trained head fits wrong labels too; the discriminant depends only on the class means and one
covariance, which wrong labels hardly change.
"""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from florilege.training.frozen.feature_store import Features


@dataclass(frozen=True)
class Linear:
    """A linear layer: logits are ``features @ weight.T + bias``."""

    weight: Tensor  # (classes, dimensions)
    bias: Tensor  # (classes,)

    def logits(self, features: Tensor) -> NDArray[np.float32]:
        """Logits of ``features``, ``(batch, dimensions)``."""
        logits: NDArray[np.float32] = (features @ self.weight.T + self.bias).numpy()
        return logits

    def plus(self, other: "Linear", share: float) -> "Linear":
        """The sum of this layer and a share of another."""
        return Linear(self.weight + share * other.weight, self.bias + share * other.bias)

    def times(self, factor: float) -> "Linear":
        """This layer with its logits multiplied."""
        return Linear(factor * self.weight, factor * self.bias)


def discriminant(features: Features, classes: int, shrinkage: float) -> Linear:
    r"""The Gaussian classifier with a mean for each class and one covariance for all, float32.

    .. math:: \log p(c \mid x) = \mu_c^T \Sigma^{-1} x - \mu_c^T \Sigma^{-1} \mu_c / 2
              + \log \pi_c + \text{const}

    Args:
        features: Features of the training pictures.
        classes: Number of classes. A class without pictures gets the mean of all and counts as half
            a picture.
        shrinkage: Share of the covariance replaced by that of independent features, in (0, 1].

    References:
        Hastie, Tibshirani and Friedman, "The elements of statistical learning", 4.3.
    """
    labels, dimensions = features.split.labels, features.values.shape[1]
    counts = np.bincount(labels, minlength=classes).astype(np.float64)
    sums, squares = np.zeros((classes, dimensions)), np.zeros((dimensions, dimensions))
    for block, block_labels in features.blocks():
        values = block.astype(np.float64)
        np.add.at(sums, block_labels, values)
        squares += values.T @ values
    overall = sums.sum(0) / len(features)
    means = np.where(counts[:, None] > 0, sums / np.maximum(counts, 1)[:, None], overall)
    covariance = (squares - (means * counts[:, None]).T @ means) / len(features)
    variances = np.maximum(np.diag(covariance), 1e-12)
    shrunk = (1 - shrinkage) * covariance + shrinkage * np.diag(variances)
    weight = np.linalg.solve(shrunk, means.T).T  # (classes, dimensions)
    log_prior = np.log(np.maximum(counts, 0.5) / len(features))
    bias = log_prior - (weight * means).sum(1) / 2
    return Linear(torch.from_numpy(weight).float(), torch.from_numpy(bias).float())
