"""SGD with the learning rate and weight decay that each group of parameters gets."""

from typing import Any

import torch
from torch import nn

from training.config import OptimiserConfig


def make_optimiser(
    network: nn.Module, loss_fn: nn.Module, config: OptimiserConfig
) -> torch.optim.SGD:
    """SGD over the network and whatever the loss itself learns.

    Every group carries ``multiplier``, its share of the learning rate; :func:`set_rate` applies
    it. Biases and normalisation weights (all tensors of one dimension) are not decayed unless
    ``decay_all``, parameters of the loss never.
    """
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in network.named_parameters():
        decay = config.weight_decay if config.decay_all or parameter.ndim > 1 else 0.0
        multiplier = config.multi_label_rate if name.startswith("head.multi_label.") else 1.0
        groups.setdefault((decay, multiplier), []).append(parameter)
    for parameter in loss_fn.parameters():
        multiplier = float(getattr(loss_fn, "rate_multiplier", 1.0))
        groups.setdefault((0.0, multiplier), []).append(parameter)
    described: list[dict[str, Any]] = [
        {"params": members, "weight_decay": decay, "multiplier": multiplier}
        for (decay, multiplier), members in groups.items()
    ]
    return torch.optim.SGD(
        described,
        lr=config.learning_rate,
        momentum=config.momentum,
        nesterov=config.nesterov,
    )


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Give every group its share of the learning rate ``rate``."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["multiplier"]
