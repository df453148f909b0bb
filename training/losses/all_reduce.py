"""Sums over the processes that train together, for losses that are not means over rows."""

from typing import Any, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

Value = TypeVar("Value")


def ranks() -> int:
    """How many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def over_ranks(value: Tensor) -> Tensor:
    """The sum of ``value`` over all processes; ``value`` itself in a single one.

    Its gradient with respect to ``value`` is the number of processes instead of 1: averaged over
    the processes afterwards, gradients become those of the sum.
    """
    total: Tensor = value if ranks() == 1 else _OverRanks.apply(value)
    return total


def from_ranks(value: Value) -> list[Value]:
    """The values of all processes, in the order of the ranks."""
    received: list[Any] = [value] * ranks()
    if ranks() > 1:
        dist.all_gather_object(received, value)
    return received


class _OverRanks(torch.autograd.Function):
    @staticmethod
    def forward(_ctx: Any, value: Tensor) -> Tensor:
        total = value.clone()
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(_ctx: Any, grad: Tensor) -> Tensor:
        return grad * ranks()
