"""The average of the weights over the steps, validated and kept in place of the last ones."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn


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
    return AveragedModel(network, multi_avg_fn=_average(decay), use_buffers=True)


def share_kept(decay: float, steps: int) -> float:
    """The share of an average over ``steps`` steps that the next one keeps.

    Example:
        >>> share_kept(0.999, 1), share_kept(0.999, 90), share_kept(0.999, 10**6)
        (0.18181818181818182, 0.91, 0.999)
    """
    return min(decay, (1 + steps) / (10 + steps))


def _average(decay: float) -> Callable[..., None]:
    @torch.no_grad()
    def update(average: list[Tensor], current: list[Tensor], steps: Any) -> None:
        if torch.is_floating_point(average[0]):
            ema = get_ema_multi_avg_fn(share_kept(decay, int(steps)))  # type: ignore[no-untyped-call]  # torch's own
            ema(average, current, steps)
        else:
            for ours, theirs in zip(average, current, strict=True):
                ours.copy_(theirs)

    return update
