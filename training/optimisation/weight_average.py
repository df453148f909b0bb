"""The average of the weights over the steps, validated and kept in place of the last ones."""

from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

Tensors: TypeAlias = tuple[Tensor, ...] | list[Tensor]


def averaged(network: nn.Module, decay: float) -> AveragedModel:
    """A copy of ``network`` whose weights are an exponential moving average of its own.

    ``update_parameters(network)`` after each step: the first copies the weights, the one after
    ``t`` others keeps the share ``min(decay, (1 + t) / (10 + t))`` of the average, so that a short
    run forgets where it began. The statistics of batch norm are averaged too: they belong to the
    weights. Counters are copied.

    Args:
        network: What is trained.
        decay: Share of the average that a late step keeps, in (0, 1).
    """

    @torch.no_grad()
    def update(average: Tensors, current: Tensors, _: Tensor | int) -> None:
        if torch.is_floating_point(average[0]):
            # counted on the host: a GPU would have to finish its work before it tells the number
            kept = share_kept(decay, int(model.n_averaged))
            torch._foreach_lerp_(average, current, 1 - kept)
        else:
            for ours, theirs in zip(average, current, strict=True):
                ours.copy_(theirs)

    model = AveragedModel(network, multi_avg_fn=update, use_buffers=True)
    return model


def share_kept(decay: float, steps: int) -> float:
    """The share of an average over ``steps`` steps that the next one keeps.

    Example:
        >>> share_kept(0.999, 1), share_kept(0.999, 90), share_kept(0.999, 10**6)
        (0.18181818181818182, 0.91, 0.999)
    """
    return min(decay, (1 + steps) / (10 + steps))
