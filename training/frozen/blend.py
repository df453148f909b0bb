"""A linear head blended of two and of the discriminant of the features they were trained on.

Heads that different losses have trained err on different photos, and the discriminant follows wrong
labels least of all; what they have in common is right more often. Together they are one layer.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import torch
from safetensors import safe_open
from torch import nn

from florilege.models.backbones import Network
from florilege.models.backbones.weights import read_weights
from florilege.models.heads import build_head
from florilege.training.config import TrainConfig
from florilege.training.frozen.discriminant import Discriminant, Linear
from florilege.training.frozen.feature_store import Features
from florilege.training.frozen.head import train_head
from florilege.training.loop.checkpoint import save_weights
from florilege.training.loop.evaluation import REPORTED_K, ValidationMeter
from florilege.training.objective import make_objective
from florilege.training.validation_metric import Metric

NOTE: Final = "blend"
"""What the header of a file of weights says of a blend that they hold."""
PARTNER: Final = "assume_negative"
PARTNERS_DECAY: Final = 0.005
SHRINKAGE: Final = 0.4
SHARE: Final = 0.25
"""Of the discriminant."""
SHARPNESS: Final = (1.0, 1.5, 2.0, 3.0)


class _Candidate(NamedTuple):
    """A blend."""

    head: Linear
    sharpness: float  # what the logits are multiplied by


def candidates(own: Linear, other: Linear, train: Features) -> Iterator[_Candidate]:
    r"""The mean of two heads with the discriminant of ``train``, the first to prefer in a tie.

    .. math:: z = \tau\, \Bigl((1 - \rho) \frac{z_1 + z_2}{2}
        + \rho\, \frac{\sigma_1 + \sigma_2}{2 \sigma_d} z_d\Bigr)

    for logits :math:`z_1` of ``own``, :math:`z_2` of ``other`` and :math:`z_d` of the discriminant,
    :math:`\sigma` the root mean square on ``train`` of such logits around the mean of their photo,
    :math:`\rho` a quarter, and :math:`\tau` a sharpness: a head that wrong labels have taught to
    doubt is too little sure of photos as they are.

    Args:
        own: Trained on ``train``, for features as they are kept.
        other: Its partner, of another loss.
        train: With the labels that trained both.
    """
    discriminant = Discriminant(train, len(own.bias)).layer(SHRINKAGE)
    level = (_spread(own, train) + _spread(other, train)) / 2
    scaled = discriminant.times(SHARE * level / _spread(discriminant, train))
    heads = own.times((1 - SHARE) / 2).plus(other, (1 - SHARE) / 2)
    for sharpness in SHARPNESS:
        yield _Candidate(heads.plus(scaled, 1.0).times(sharpness), sharpness)


def blend(weights: Path, train: Features, val: Features, config: TrainConfig) -> str:
    """Blend the head in a file of weights, once, with the sharpness best for the sets on ``val``.

    Returns:
        What was done, now or before, for the user.
    """
    if (before := note_of(weights)) is not None:
        return before
    state = read_weights(weights)
    head = Linear(state["head.weight"], state["head.bias"])
    measured = [
        (accuracy(each.head, val), each)
        for each in candidates(head, partner(train, val, len(head.bias), config), train)
    ]
    after, best = max(measured, key=lambda one: one[0])
    note = (
        f"the head is averaged with one of {PARTNER} and a linear discriminant ({SHARE:g}), "
        f"sharpness {best.sharpness:g}: average-K accuracy on val, mean over K, "
        f"{100 * accuracy(head, val):.2f} % before and {100 * after:.2f} % after"
    )
    state |= {"head.weight": best.head.weight, "head.bias": best.head.bias}
    save_weights(weights, state, {NOTE: note})
    return note


def note_of(weights: Path) -> str | None:
    """What :func:`blend` did to a file of weights; None for nothing."""
    with safe_open(weights, "pt") as file:
        return (file.metadata() or {}).get(NOTE)


def partner(train: Features, val: Features, classes: int, config: TrainConfig) -> Linear:
    """A head that ``assume_negative`` trains as the run trained its own, with its own weight decay.

    Args:
        train: What the run was trained on.
        val: What chose its epoch.
        classes: How many there are.
        config: Of the run.
    """
    settings = config.optimiser.model_copy(update={"weight_decay": PARTNERS_DECAY})
    torch.manual_seed(config.seed)
    layer = build_head("linear", train.values.shape[1], classes)
    network = Network(nn.Identity(), layer, head_name="linear")
    objective = make_objective(
        PARTNER,
        {},
        head="linear",
        class_counts=np.bincount(train.split.labels, minlength=classes).tolist(),
        class_weight_power=config.class_weight_power,
        accumulate=config.accumulate,
        mixup=config.mixup > 0,
    )
    same = config.model_copy(update={"optimiser": settings, "loss": {"name": PARTNER}})
    state = train_head(same, network, objective, train, val)
    return Linear(state["head.weight"], state["head.bias"])


def accuracy(head: Linear, val: Features) -> float:
    """Mean average-K accuracy over the reported K, by softmax."""
    figures = ValidationMeter(rows=len(val), metric=Metric(name="average_k", k=REPORTED_K[-1]))
    for features, labels in val.blocks():
        figures.update({"linear": head.logits(torch.from_numpy(features))}, labels)
    by_choice = figures.result().accuracy
    return next(
        float(np.mean(list(by_k.values())))
        for served, by_k in by_choice.items()
        if served.score_kind == "softmax"
    )


def _spread(layer: Linear, train: Features) -> float:
    """Root mean square of logits around the mean of their photo."""
    squares = 0.0
    for features, _ in train.blocks():
        logits = layer.logits(torch.from_numpy(features))
        squares += float(logits.var(axis=1, dtype=np.float64).sum())
    return float(np.sqrt(squares / len(train)))
