"""SGD and AdamW, the learning rate of each parameter and step, and the average of the weights."""

import copy
import math
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from florilege.models.backbones import depths, not_decayed
from florilege.training.config import OptimiserConfig, ScheduleConfig


def make_optimiser(network: nn.Module, config: OptimiserConfig) -> torch.optim.Optimizer:
    """The optimiser over the trainable parameters of the network; no loss has any.

    Every group carries ``multiplier``, its share of the learning rate; :func:`set_rate` applies
    it. Biases and normalisation weights (all tensors of one dimension), class tokens, position
    embeddings and bias tables are not decayed unless ``decay_all``. ``layer_decay`` is the ratio of
    the rate of the last block of the backbone to that of the head, and of each block to the one
    above it. On a GPU a step is one kernel. That of ``lbfgs`` holds no state: a head is solved for
    anew for each weight decay.
    """
    if config.name == "lbfgs":
        return torch.optim.LBFGS(network.parameters())
    groups, rate = _parameter_groups(network, config), config.peak_rate
    on_gpu = all(
        parameter.device.type == "cuda" for group in groups for parameter in group["params"]
    )
    fused = True if on_gpu else None  # None is torch's default code on a CPU
    if config.name == "adamw":
        return torch.optim.AdamW(groups, lr=rate, fused=fused)
    return torch.optim.SGD(
        groups,
        lr=rate,
        momentum=config.momentum or 0.0,
        nesterov=bool(config.nesterov),
        fused=fused,
    )


def _parameter_groups(network: nn.Module, config: OptimiserConfig) -> list[dict[str, Any]]:
    """Trainable parameters by weight decay and share of the learning rate."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    depth_of, exempt = dict[str, int](), set[str]()
    if isinstance(backbone := getattr(network, "backbone", None), nn.Module):
        depth_of = {f"backbone.{name}": depth for name, depth in depths(backbone).items()}
        exempt = {f"backbone.{name}" for name in not_decayed(backbone)}
    for name, parameter in network.named_parameters():
        if not parameter.requires_grad:
            continue
        decay = config.l2 * (config.decay_all or (parameter.ndim > 1 and name not in exempt))
        multiplier = config.multi_label_rate if name.startswith("head.multi_label.") else 1.0
        multiplier *= config.layer_decay ** depth_of.get(name, 0)
        groups.setdefault((decay, multiplier), []).append(parameter)
    return [
        {"params": parameters, "weight_decay": decay, "multiplier": multiplier}
        for (decay, multiplier), parameters in groups.items()
    ]


def restore(optimiser: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Load the ``state_dict`` of an optimiser that may have been on another kind of device."""
    for group, ours in zip(state["param_groups"], optimiser.param_groups, strict=True):
        if "fused" in ours:
            group["fused"] = ours["fused"]  # it decides on which device the moments are
    optimiser.load_state_dict(state)


def set_rate(optimiser: torch.optim.Optimizer, rate: float) -> None:
    """Give every group its share of the learning rate ``rate``."""
    for group in optimiser.param_groups:
        group["lr"] = rate * group["multiplier"]


def rate_share(schedule: ScheduleConfig, *, step: int, steps_per_epoch: int, epochs: int) -> float:
    """The factor on the peak learning rate, in [0, 1], during step ``step``, counted from 0.

    ``cosine`` falls along half a cosine from the end of the warm-up to the last step, ``step``
    is multiplied by ``factor`` at each milestone, ``constant`` stays at 1. The warm-up rises
    linearly and reaches 1 at its last step.

    Example:
        >>> halving = ScheduleConfig(name="step", milestones=(1.0, 2.0), factor=0.5)
        >>> [rate_share(halving, step=s, steps_per_epoch=2, epochs=3) for s in range(6)]
        [1.0, 1.0, 0.5, 0.5, 0.25, 0.25]
    """
    warmup = round(schedule.warmup_epochs * steps_per_epoch)
    if step < warmup:
        return (step + 1) / warmup
    match schedule.name:
        case "step":
            passed = sum(step >= round(at * steps_per_epoch) for at in schedule.milestones)
            return float(schedule.factor**passed)
        case "cosine":
            falling_steps = max(1, epochs * steps_per_epoch - warmup)
            progress = min(1.0, (step - warmup) / falling_steps)
            return schedule.final + (1 - schedule.final) * (1 + math.cos(math.pi * progress)) / 2
        case _:
            return 1.0


class WeightAverage(nn.Module):
    """A copy of a network that holds the exponential moving average of its weights.

    The statistics of batch norm are averaged too: they belong to the weights. Counters are copied.
    ``torch.optim.swa_utils.AveragedModel`` computes the same, but sends the number of steps to the
    device and waits for it, at every step; here that number stays on the host.

    ``decay`` is the share of the average that a late step keeps, in (0, 1).
    """

    n_averaged: Tensor

    def __init__(self, network: nn.Module, decay: float) -> None:
        super().__init__()
        self.module, self.decay = copy.deepcopy(network), decay
        self.register_buffer("n_averaged", torch.tensor(0))

    @torch.no_grad()
    def update_parameters(self, network: nn.Module) -> None:
        """Add the weights of ``network`` after a step.

        The first time they are copied; the step after ``t`` others keeps the share
        ``min(decay, (1 + t) / (10 + t))`` of the average, so that a short run forgets its initial
        weights.
        """
        steps = int(self.n_averaged)
        ours, theirs = list[Tensor](), list[Tensor]()
        for average, current in zip(_tensors(self.module), _tensors(network), strict=True):
            if steps and average.is_floating_point():
                ours.append(average)
                theirs.append(current)
            else:
                average.copy_(current)
        share = min(self.decay, (1 + steps) / (10 + steps))
        if ours:
            torch._foreach_lerp_(ours, theirs, 1 - share)
        self.n_averaged += 1


def _tensors(network: nn.Module) -> chain[Tensor]:
    """Parameters and buffers."""
    return chain(network.parameters(), network.buffers())
