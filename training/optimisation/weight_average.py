"""The moving average of the weights, validated and saved in place of the last ones."""

import copy
from itertools import chain

import torch
from torch import Tensor, nn


class WeightAverage(nn.Module):
    """A copy of a network that holds the exponential moving average of its weights.

    The statistics of batch norm are averaged too: they belong to the weights. Counters are copied.
    ``torch.optim.swa_utils.AveragedModel`` computes the same, but sends the number of steps to the
    device and waits for it, at every step; here that number stays on the host.

    Args:
        network: The network that is trained.
        decay: Share of the average that a late step keeps, in (0, 1).
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
        if ours:
            torch._foreach_lerp_(ours, theirs, 1 - _share_kept(self.decay, steps))
        self.n_averaged += 1


def _tensors(network: nn.Module) -> chain[Tensor]:
    """Parameters and buffers."""
    return chain(network.parameters(), network.buffers())


def _share_kept(decay: float, steps: int) -> float:
    """The share of an average over ``steps`` steps that the next one keeps.

    Example:
        >>> _share_kept(0.999, 1), _share_kept(0.999, 90), _share_kept(0.999, 10**6)
        (0.18181818181818182, 0.91, 0.999)
    """
    return min(decay, (1 + steps) / (10 + steps))
