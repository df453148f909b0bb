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
