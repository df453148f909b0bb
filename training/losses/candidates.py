"""Which entries of a batch become pseudo-labels: a fixed number, the largest of all ranks.

Only values decide and no gradient flows, so under ``torch.distributed`` each rank sends just the
few values that may be among the largest, never a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal, TypeAlias

import torch
from torch import Tensor
from torch import distributed as dist

Scope: TypeAlias = Literal["global", "local"]


@dataclass(frozen=True, kw_only=True)
class Candidates:
    """The chosen entries of this rank, and how many all ranks chose together."""

    indices: Tensor
    """Flat positions in this rank's keys, int64 ``(chosen here,)``."""

    total: int
    """Entries chosen by all ranks."""

    sent: Tensor
    """The largest values of all ranks, for a window of recent batches."""


def candidate_count(average_k: float, rows: int) -> int:
    """``(K - 1) * rows`` rounded half up, in exact decimal arithmetic.

    Example:
        >>> candidate_count(2.3, 5), (2.3 - 1) * 5
        (7, 6.499999999999999)
    """
    beside = Fraction(str(average_k)) - 1
    # whole numbers only: compiled for any batch, ``rows`` is a symbol that no fraction takes
    return (2 * beside.numerator * rows + beside.denominator) // (2 * beside.denominator)


def world_size(scope: Scope) -> int:
    """How many ranks choose together: 1 without a process group or with local candidates."""
    together = scope == "global" and dist.is_available() and dist.is_initialized()
    return dist.get_world_size() if together else 1


def select(
    keys: Tensor, count: int, *, ranks: int = 1, recent: Sequence[Tensor] = ()
) -> Candidates:
    """Choose the ``count`` largest of all keys, with ties by batch, rank and position.

    Args:
        keys: Flat values of this rank; ``-inf`` is never chosen.
        count: Entries to choose over all ranks and recent batches together.
        ranks: Size of the process group that chooses together.
        recent: The largest values of earlier batches, oldest first: they compete, but only
            entries of ``keys`` are chosen.
    """
    indices = largest(keys, count)
    values = keys[indices]
    gathered = _gather(values, count, ranks) if ranks > 1 else [values]
    own = dist.get_rank() if ranks > 1 else 0
    taken = share(list(recent) + gathered, count)[len(recent) :]
    return Candidates(indices=indices[: taken[own]], total=sum(taken), sent=torch.cat(gathered))


def share(groups: Sequence[Tensor], count: int) -> list[int]:
    """How many of its largest values each group may keep so that ``count`` are kept in all."""
    pool = torch.cat([group[group > -torch.inf] for group in groups])
    count = min(count, pool.numel())
    if count == 0:
        return [0] * len(groups)
    threshold = pool.topk(count, sorted=False).values.amin()
    above = [int((group > threshold).sum()) for group in groups]
    left = count - sum(above)
    taken = []
    for group, more in zip(groups, above, strict=True):
        ties = min(left, int((group == threshold).sum()))
        left -= ties
        taken.append(more + ties)
    return taken


def largest(keys: Tensor, count: int) -> Tensor:
    """Positions of the ``count`` largest values above ``-inf``, largest first, ties by position.

    The maxima of small chunks give a bound that few other entries reach, so only those few are
    sorted: five times faster on a CPU than ``topk`` over the whole batch.
    """
    bound = _lower_bound(keys, count).clamp_min(torch.finfo(keys.dtype).min)
    passed = (keys >= bound).nonzero().flatten()
    order = keys[passed].sort(descending=True, stable=True).indices
    return passed[order[:count]]


def _lower_bound(keys: Tensor, count: int) -> Tensor:
    """A value that at least ``count`` keys reach: that many chunks have a maximum there."""
    width = keys.numel() // (4 * count) if count else 0
    if width < 2:
        return keys.new_full((), -torch.inf)
    whole = keys[: keys.numel() // width * width].view(width, -1)
    return whole.amax(0).topk(count, sorted=False).values.amin()


def _gather(values: Tensor, count: int, ranks: int) -> list[Tensor]:
    """Every rank's largest values in the order of the ranks; short lists end in ``-inf``."""
    padded = values.new_full((count,), -torch.inf)
    padded[: values.numel()] = values
    received = [torch.empty_like(padded) for _ in range(ranks)]
    if count:
        dist.all_gather(received, padded)
    return received
