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

MILLION = 1_000_000
Rows = TypeVar("Rows", int, Tensor)


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The chosen entries of this rank, and how many all ranks chose together."""

    indices: Tensor  # flat positions in this rank's keys that might be chosen, int64, in order
    mask: Tensor  # whether each is chosen, bool
    total: Tensor  # entries chosen by all ranks, int64
    largest: Tensor  # the largest values of all ranks, for a window of recent batches


def candidate_count(average_k: float, rows: Rows) -> Rows:
    """``(K - 1) * rows`` rounded half up, exact for a K of six decimals.

    Example:
        >>> candidate_count(2.3, 5), (2.3 - 1) * 5
        (7, 6.499999999999999)
    """
    # whole numbers: compiled for any batch, K and ``rows`` are symbols, which no Fraction takes
    beside = int((average_k - 1) * MILLION + 0.5)
    return (2 * beside * rows + MILLION) // (2 * MILLION)


def select(
    keys: Tensor, count: Tensor, at_most: int, *, ranks: int = 1, recent: Sequence[Tensor] = ()
) -> Candidates:
    """Choose the ``count`` largest of all keys, with ties by batch, rank and position.

    ``-inf`` is never chosen; ``at_most`` is a number that ``count`` does not exceed. ``recent``,
    the largest values of earlier batches, oldest first, compete, but are not chosen.
    """
    indices = largest(keys, at_most)
    values = keys[indices]
    by_rank = _gather(values, at_most, ranks) if ranks > 1 else [values]
    own = len(recent) + (dist.get_rank() if ranks > 1 else 0)
    bound, above, ties = _share([*recent, *by_rank], count)
    mask = (values > bound) | _first(values == bound, ties[own])
    total = (above + ties)[len(recent) :].sum()
    # as many as one rank with the whole batch would keep for the next ones
    largest_values = torch.cat(by_rank).sort(descending=True).values[:at_most]
    return Candidates(indices=indices, mask=mask, total=total, largest=largest_values)


def _share(groups: Sequence[Tensor], count: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A bound for the ``count`` largest of all groups, earlier groups first in a tie.

    Then for each group how many of its values are kept above it, and how many of those that equal
    it, int64 ``(groups,)``. ``-inf`` is never kept.
    """
    pool = torch.cat([*groups, groups[0].new_full((1,), -torch.inf)])
    count = torch.minimum(count, (pool > -torch.inf).sum())
    # if nothing is to be chosen, the bound is above everything
    ranked = torch.cat([pool.new_full((1,), torch.inf), pool.sort(descending=True).values])
    bound = ranked.gather(0, count[None])
    above = torch.stack([(group > bound).sum() for group in groups])
    ties = torch.stack([(group == bound).sum() for group in groups])
    before = above.sum() + ties.cumsum(0) - ties
    return bound, above, torch.minimum(ties, (count - before).clamp_min(0))


def largest(keys: Tensor, count: int) -> Tensor:
    """Positions of the ``count`` largest values in order of position; the first in a tie.

    All of ``keys`` if they are no more than ``count``. Only a few are ranked: on a CPU those that
    reach a bound; elsewhere, where reading their number would stall the device, a fixed number.
    """
    count = min(count, keys.numel())
    few = _reaching(keys, count) if on_host(keys) else _nearby(keys, count)
    return few[_largest(keys[few], count)]


def _reaching(keys: Tensor, count: int) -> Tensor:
    """Positions of at least the ``count`` largest values, in order: all that reach a bound.

    At least ``count`` strided chunks have a maximum there. NaN counts as reaching any bound, and
    everything reaches a bound of NaN.
    """
    width = keys.numel() // (4 * count) if count else 0
    if width < 2:
        return torch.arange(keys.numel())
    maxima = keys[: keys.numel() // width * width].view(width, -1).amax(0)
    below = keys < maxima.topk(count, sorted=False).values.amin()
    return below.logical_not_().nonzero().flatten()


def _nearby(keys: Tensor, count: int) -> Tensor:
    """Positions of at least the ``count`` largest values, in order; their number is fixed.

    They lie within the ``count`` chunks whose maxima are largest, or after the last whole chunk.
    """
    width = int((keys.numel() / max(1, count)) ** 0.5)
    positions = torch.arange(keys.numel(), device=keys.device)
    if width < 2:
        return positions
    chunks = positions[: keys.numel() // width * width].view(-1, width)
    best = _largest(keys[: chunks.numel()].view_as(chunks).amax(1), count)
    return torch.cat([chunks[best].flatten(), positions[chunks.numel() :]])


def _largest(keys: Tensor, count: int) -> Tensor:
    if not count:
        return torch.empty(0, dtype=torch.int64, device=keys.device)
    bound = keys.topk(count, sorted=False).values.amin()
    above = keys > bound
    rank = (above | _first(keys == bound, count - above.sum())).cumsum(0)
    ranks = torch.arange(1, count + 1, device=keys.device)
    return torch.searchsorted(rank, ranks).clamp_max(keys.numel() - 1)  # past the end for NaN


def _first(mask: Tensor, count: Tensor) -> Tensor:
    """The first ``count`` true entries of ``mask``, as a mask; bool, one dimension."""
    return mask & (mask.cumsum(0) <= count)


def _gather(values: Tensor, count: int, ranks: int) -> list[Tensor]:
    """Every rank's largest values in the order of the ranks; short lists end in ``-inf``."""
    padded = values.new_full((count,), -torch.inf)
    padded[: values.numel()] = values
    received = [torch.empty_like(padded) for _ in range(ranks)]
    if count:
        dist.all_gather(received, padded)
    return received
