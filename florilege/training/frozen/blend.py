"""Blend two linear heads with the discriminant of the features they were trained on.

Heads trained with different losses err on different photos, so their average is right more often.
The discriminant depends only on the class means and one covariance, which wrong labels hardly
change; a trained head fits wrong labels too. The blend is one linear layer.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from torch import Tensor, nn

from florilege.models.backbones import Network
from florilege.models.backbones.weights import read_weights
from florilege.models.heads import build_head
from florilege.training.config import TrainConfig
from florilege.training.frozen.feature_store import CONSTANT, Features
from florilege.training.frozen.head_solver import decays_of, train_head
from florilege.training.loop.checkpoint import save_weights
from florilege.training.loop.evaluation import REPORTED_K, ScoreChoice, ValidationMeter
from florilege.training.objective import make_objective
from florilege.training.optimiser_settings import OptimiserConfig
from florilege.training.validation_metric import Metric

NOTE: Final = "blend"
"""Key of the description of a blend in the header of a weights file."""
PARTNER: Final = "assume_negative"
SHRINKAGE: Final = 0.4
SHARE: Final = 0.25
"""Share of the discriminant in the blend."""
SHARPNESS: Final = (1.0, 1.5, 2.0, 3.0)


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
    # The variance of a dimension that never varies is a rounding error, perhaps negative, whose
    # inverse would outweigh all others; its scale in place of it leaves the logits in range.
    scale = np.diag(squares) / len(features)
    constant = np.diag(covariance) <= CONSTANT**2 * scale
    covariance[constant] = covariance[:, constant] = 0
    variances = np.where(constant, np.where(scale > 0, scale, 1), np.diag(covariance))
    shrunk = (1 - shrinkage) * covariance + shrinkage * np.diag(variances)
    weight = np.linalg.solve(shrunk, means.T).T  # (classes, dimensions)
    log_prior = np.log(np.maximum(counts, 0.5) / len(features))
    bias = log_prior - (weight * means).sum(1) / 2
    return Linear(torch.from_numpy(weight).float(), torch.from_numpy(bias).float())


def candidates(own: Linear, other: Linear, train: Features) -> Iterator[tuple[Linear, float]]:
    r"""Blends of two heads with the discriminant of ``train``, and the sharpness of each.

    .. math:: z = \tau\, \Bigl((1 - \rho) \frac{z_1 + z_2}{2}
        + \rho\, \frac{\sigma_1 + \sigma_2}{2 \sigma_d} z_d\Bigr)

    with logits :math:`z_1` of ``own``, :math:`z_2` of ``other`` and :math:`z_d` of the
    discriminant, :math:`\sigma` the root mean square on ``train`` of such logits around the mean of
    their photo, :math:`\rho` a quarter, and :math:`\tau` a sharpness: a head trained on wrong
    labels is underconfident.
    """
    third = discriminant(train, len(own.bias), SHRINKAGE)
    level = (_spread(own, train) + _spread(other, train)) / 2
    spread = _spread(third, train)  # 0 if no feature varies: then it adds nothing
    scaled = third.times(SHARE * level / spread if spread else 0.0)
    heads = own.times((1 - SHARE) / 2).plus(other, (1 - SHARE) / 2)
    for sharpness in SHARPNESS:
        yield heads.plus(scaled, 1.0).times(sharpness), sharpness


def blend(weights: Path, train: Features, val: Features, config: TrainConfig) -> str:
    """Blend the head in a weights file once, with the sharpness that is best for sets on ``val``.

    Returns the description of this blend, or of an earlier one, for the user.
    """
    if (before := note_of(weights)) is not None:
        return before
    state = read_weights(weights)
    head = Linear(state["head.weight"], state["head.bias"])
    other, weight_decay = partner(train, val, len(head.bias), config)
    blends = candidates(head, other, train)
    measured = [(accuracy(blend, val), blend, sharpness) for blend, sharpness in blends]
    after, best, sharpness = max(measured, key=lambda item: item[0])  # in a tie the first
    other_by = f"{PARTNER} (weight decay {weight_decay:g})"
    note = (
        f"the head is averaged with one trained by {other_by} and with a linear discriminant "
        f"({SHARE:g}), its logits times {sharpness:g}: right sets on val, over several mean "
        f"sizes, are {100 * accuracy(head, val):.2f} % before and {100 * after:.2f} % after"
    )
    state |= {"head.weight": best.weight, "head.bias": best.bias}
    save_weights(weights, state, {NOTE: note})
    return note


def note_without(config: TrainConfig, head: str) -> str | None:
    """Why the head on frozen features is not blended; None if it is, or none is trained so."""
    if not config.freeze or (config.blend and head == "linear"):
        return None
    if config.blend:
        return f"a {head} head is not blended; the head is that of {config.loss_name} alone"
    return f"the head is that of {config.loss_name} alone; --set blend=true averages it with others"


def note_of(weights: Path) -> str | None:
    """The description that :func:`blend` left in a weights file; None if it is not blended."""
    with safe_open(weights, "pt") as file:
        return (file.metadata() or {}).get(NOTE)


def partner(
    train: Features, val: Features, classes: int, config: TrainConfig
) -> tuple[Linear, float]:
    """A head with the settings of the run, but solved for ``assume_negative``; its weight decay."""
    settings = {"optimiser": partners_optimiser(config), "loss": {"name": PARTNER}}
    config = config.model_copy(update=settings)
    torch.manual_seed(config.seed)
    layer = build_head("linear", train.values.shape[1], classes)
    network = Network(nn.Identity(), layer, head_name="linear")
    counts = np.bincount(train.split.labels, minlength=classes).tolist()
    state, decay = train_head(config, network, make_objective(config, counts), train, val)
    return Linear(state["head.weight"], state["head.bias"]), decay


def partners_optimiser(config: TrainConfig) -> OptimiserConfig:
    """How the second head is trained: like the first if that is solved for, else by default."""
    solved_for = config.optimiser.name == "lbfgs"
    return config.optimiser if solved_for else OptimiserConfig(name="lbfgs")


def possible_blends(config: TrainConfig) -> int:
    """How many blends of one head were possible, for promises to allow for."""
    partners = len(decays_of(partners_optimiser(config)))
    if config.optimiser.name != "lbfgs":  # older versions trained the second head in epochs as well
        partners = max(partners, config.epochs)
    return partners * (1 + len(SHARPNESS))


def accuracy(head: Linear, val: Features) -> float:
    """Mean average-K accuracy over the reported K, by softmax."""
    figures = ValidationMeter(rows=len(val), metric=Metric(name="average_k", k=REPORTED_K[-1]))
    for features, labels in val.blocks():
        figures.update({"linear": head.logits(torch.from_numpy(features))}, labels)
    by_k = figures.result().accuracy[ScoreChoice(head="linear", score_kind="softmax")]
    return float(np.mean(list(by_k.values())))


def _spread(layer: Linear, train: Features) -> float:
    """Root mean square of the logits around the mean of their photo."""
    squares = 0.0
    for features, _ in train.blocks():
        logits = layer.logits(torch.from_numpy(features))
        squares += float(logits.var(axis=1, dtype=np.float64).sum())
    return float(np.sqrt(squares / len(train)))
