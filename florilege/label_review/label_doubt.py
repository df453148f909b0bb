r"""How much a network doubts the label of each photo, from photos that it did not learn from.

Linear discriminants learn on the features of four fifths of the photos, labels as they are, and
give the probability of each label of the last fifth. With the means :math:`\mu_c` of the classes
and their common covariance :math:`\Sigma`, shrunk towards a multiple of the identity, the logit of
class :math:`c` with the share :math:`\pi_c` of photos is

.. math:: x^T \Sigma^{-1} \mu_c - \tfrac12 \mu_c^T \Sigma^{-1} \mu_c + \log \pi_c

Wrong labels move all means alike, which is why a discriminant bears them well. That photos with a
small probability are the wrongly labelled ones is the idea of Northcutt, Jiang and Chuang,
"Confident learning: estimating uncertainty in dataset labels", JAIR 2021.
"""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.nested_cross_validation import FOLDS, folds_of
from florilege.calibration.validation import Bools, Floats, Ints

SHRINKAGES: Final = (0.1, 0.3, 0.6, 0.9)  # share of the identity in the covariance
# In many dimensions a discriminant is far too sure: the logits are divided by one of these.
TEMPERATURES: Final = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
_ROWS_AT_ONCE: Final = 4096


def label_probabilities(
    features: ArrayLike, labels: ArrayLike, *, plants: ArrayLike | None = None, seed: int = 0
) -> Floats:
    """The probability of the label of each photo, from heads that did not learn from its plant.

    Shrinkage and temperature are those under which the labels are most probable.

    Args:
        features: Shape ``(photos, dimensions)``, finite.
        labels: Class indices, shape ``(photos,)``, some of them perhaps wrong.
        plants: The plant of each photo, shape ``(photos,)``; None where photos are independent.
        seed: Draws the five folds.

    Returns:
        float64, shape ``(photos,)``; NaN where no photo of another fold has the label.

    Raises:
        ValueError: The shapes do not fit, or there is no photo.
    """
    values, classes = np.asarray(features, dtype=np.float32), np.asarray(labels, dtype=np.int64)
    if values.ndim != 2 or len(values) == 0 or classes.shape != (len(values),):
        raise ValueError(
            "features must have shape (photos, dimensions) and labels (photos,), with a photo at "
            f"least, got {values.shape} and {classes.shape}"
        )
    deviation = values.std(axis=0)
    values = (values - values.mean(axis=0)) / np.where(deviation > 0, deviation, 1)
    grid = np.full((len(SHRINKAGES), len(TEMPERATURES), len(values)), np.nan)
    for fold in folds_of(len(values), plants, FOLDS, seed):
        grid[..., fold] = _log_probabilities(values, classes, fold)
    judgeable = ~np.isnan(grid[0, 0])
    if not judgeable.any():
        return np.full(len(values), np.nan)
    likelihood = grid[..., judgeable].mean(axis=-1)
    best = np.unravel_index(likelihood.argmax(), likelihood.shape)
    probabilities: Floats = np.exp(grid[best])
    return probabilities


def _log_probabilities(values: NDArray[np.float32], labels: Ints, fold: Bools) -> Floats:
    """Of the labels of a fold by the other photos, ``(shrinkages, temperatures, fold)``."""
    counts = np.bincount(labels[~fold], minlength=labels.max() + 1)
    result = np.full((len(SHRINKAGES), len(TEMPERATURES), int(fold.sum())), np.nan)
    if not counts.any():
        return result
    classes = np.flatnonzero(counts)
    place = np.full(len(counts), -1)
    place[classes] = np.arange(len(classes))
    own, rows = place[labels[fold]], np.flatnonzero(fold)
    means, covariance = _moments(values[~fold], place[labels[~fold]], counts[classes])
    scale = np.trace(covariance) / len(covariance) or 1.0
    for index, shrinkage in enumerate(SHRINKAGES):
        shrunk = (1 - shrinkage) * covariance + shrinkage * scale * np.eye(len(covariance))
        weights = np.linalg.solve(shrunk, means.T)  # (dimensions, classes)
        bias = np.log(counts[classes] / counts.sum()) - (means * weights.T).sum(axis=1) / 2
        for start in range(0, len(rows), _ROWS_AT_ONCE):
            block = slice(start, start + _ROWS_AT_ONCE)
            logits = values[rows[block]] @ weights + bias
            for at, temperature in enumerate(TEMPERATURES):
                result[index, at, block] = _of_labels(logits / temperature, own[block])
    return result


def _moments(values: NDArray[np.float32], labels: Ints, counts: Ints) -> tuple[Floats, Floats]:
    """Mean of each class, ``(classes, dimensions)``, and the covariance within classes."""
    sums = np.zeros((len(counts), values.shape[1]))
    products = np.zeros((values.shape[1], values.shape[1]))
    for start in range(0, len(values), _ROWS_AT_ONCE):
        block = values[start : start + _ROWS_AT_ONCE].astype(np.float64)
        np.add.at(sums, labels[start : start + _ROWS_AT_ONCE], block)
        products += block.T @ block
    means = sums / counts[:, np.newaxis]
    return means, (products - sums.T @ means) / len(values)


def _of_labels(logits: Floats, labels: Ints) -> Floats:
    """Log-probability of each row's label; NaN where it is -1."""
    largest = logits.max(axis=1)
    total = np.log(np.exp(logits - largest[:, np.newaxis]).sum(axis=1)) + largest
    result: Floats = np.where(labels < 0, np.nan, logits[np.arange(len(labels)), labels] - total)
    return result
