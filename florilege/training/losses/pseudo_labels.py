"""Which entries of a batch become pseudo-labels: a fixed number, the largest of all ranks.

Only values decide and no gradient flows, so under ``torch.distributed`` each rank sends just the
few values that may be among the largest, never a row. The shapes of all tensors follow from those
of the batch: a mask marks the chosen entries, and no step waits for a GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch import distributed as dist

from florilege.training.losses.arguments import on_host

_MILLION = 1_000_000
Rows = TypeVar("Rows", int, Tensor)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The chosen entries of this rank, and how many all ranks chose together."""

    indices: Tensor  # flat positions in this rank's keys that might be chosen, int64, largest first
    mask: Tensor  # whether each is chosen, bool
    total: Tensor  # entries chosen by all ranks, in the type of the keys
    groups: Sequence[Tensor]  # the largest values of each rank, at least ``at_most``, descending
    at_most: int

    def largest(self) -> Tensor:
        """The largest values of all ranks, as many as one rank with the whole batch would keep."""
        values = torch.cat([*self.groups]).sort(descending=True).values
        return values[: self.at_most]


def candidate_count(average_k: float, rows: Rows) -> Rows:
    """``(K - 1) * rows`` rounded half up, exact for a K of six decimals.

    Example:
        >>> candidate_count(2.3, 5), (2.3 - 1) * 5
        (7, 6.499999999999999)
    """
    # whole numbers: compiled for any batch, K and ``rows`` are symbols, which no Fraction takes
    beside = int((average_k - 1) * _MILLION + 0.5)
    if beside % _MILLION == 0:
        return beside // _MILLION * rows
    return (2 * beside * rows + _MILLION) // (2 * _MILLION)


def select(
    keys: Tensor, count: Tensor, at_most: int, *, ranks: int = 1, recent: Sequence[Tensor] = ()
) -> Candidates:
    """Choose the ``count`` largest of all keys, with ties by batch, rank and position.

    ``-inf`` is never chosen; ``at_most`` is a number that ``count`` does not exceed. ``recent``,
    the largest values of earlier batches, oldest first, compete, but are not chosen.
    """
    indices, values = largest(keys, at_most)
    groups, own = [values], 0
    if ranks > 1:
        indices, own = indices[:at_most], dist.get_rank()
        groups = _gather(values[:at_most], at_most, ranks)
    masks = _choose([*recent, *groups], count)[len(recent) :]
    return Candidates(
        indices=indices,
        mask=masks[own] if ranks == 1 else masks[own][: len(indices)],
        total=(masks[0] if ranks == 1 else torch.cat([*masks])).sum(dtype=keys.dtype),
        groups=groups,
        at_most=at_most,
    )


def _choose(groups: Sequence[Tensor], count: Tensor) -> Sequence[Tensor]:
    """For each group, in descending order, which of its values are among the ``count`` largest.

    In a tie earlier groups come first.
    """
    pool = groups[0] if len(groups) == 1 else torch.cat([*groups])
    places = torch.arange(len(pool), device=pool.device)
    if len(groups) > 1:
        order = pool.sort(descending=True, stable=True).indices
        places = torch.empty_like(places).scatter_(0, order, places)
    is_chosen = (places < count) & (pool > -torch.inf)
    return (
        [is_chosen] if len(groups) == 1 else torch.split(is_chosen, [len(each) for each in groups])
    )


def largest(keys: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Positions of at least the ``count`` largest values, and those values, in descending order.

    The first comes first in a tie. Only a few are sorted: on a CPU those that reach a bound;
    elsewhere, where reading their number would stall the device, a fixed number.
    """
    count = min(count, keys.numel())
    few = _reaching(keys, count) if on_host(keys) else _nearby(keys, count)
    values, order = keys[few].sort(descending=True, stable=True)
    return few[order], values


def _reaching(keys: Tensor, count: int) -> Tensor:
    """Positions of at least the ``count`` largest values, in order: all that reach a bound.

    At least ``count`` strided chunks have a maximum there. If a chunk holds NaN there may be fewer:
    the loss is NaN then whatever is chosen.
    """
    width = keys.numel() // (4 * count) if count else 0
    if width < 2:
        return torch.arange(keys.numel())
    each = keys.numel() // width
    maxima = keys.unfold(0, each, each).amax(0)
    return torch.where(keys >= maxima.topk(count, sorted=False).values.amin())[0]


def _nearby(keys: Tensor, count: int) -> Tensor:
    """Positions of at least the ``count`` largest values, in order; their number is fixed.

    They lie within the ``count`` chunks whose maxima are largest, the first ones in a tie, or after
    the last whole chunk.
    """
    width = int((keys.numel() / max(1, count)) ** 0.5)
    positions = torch.arange(keys.numel(), device=keys.device)
    if width < 2:
        return positions
    chunks = positions.unfold(0, width, width)
    maxima = keys.unfold(0, width, width).amax(1)
    best = maxima.sort(descending=True, stable=True).indices[:count].sort().values
    return torch.cat([chunks[best].flatten(), positions[chunks.numel() :]])


def _gather(values: Tensor, count: int, ranks: int) -> list[Tensor]:
    """Every rank's largest values in the order of the ranks; short lists end in ``-inf``."""
    padded = values.new_full((count,), -torch.inf)
    padded[: values.numel()] = values
    received = [torch.empty_like(padded) for _ in range(ranks)]
    if count:
        dist.all_gather(received, padded)
    return received
