"""Which entries of a batch carry a label, and what sums over them are divided by."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch import distributed as dist

from training.losses.base import check_weight
from training.losses.inputs import check_batch, whole, working


@dataclass(frozen=True, kw_only=True)
class LabelledEntries:
    """The entries that carry a label, and the counts that the sums are divided by."""

    entries: Tensor  # flat positions, int64 (labels,)
    shares: Tensor  # weight of each entry's terms, (labels,)
    ignored: Tensor  # rows that count for nothing, int64 (ignored rows,)
    divisor: Tensor  # scalar, over all ranks
    rows: int  # counted rows of all ranks
    unlabelled: int  # entries of the counted rows that carry no label, over all ranks


def read_labels(
    logits: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int, ranks: int
) -> LabelledEntries:
    """Find the labelled entries of this rank and count those of all ranks.

    Raises:
        ValueError: Labels or weights that do not fit the logits.
    """
    check_weight(weight, logits)
    labels = whole(labels)
    classes = logits.shape[-1]
    if labels.is_floating_point():
        check_batch(logits, labels)
        ignored = labels.new_empty(0, dtype=torch.int64)
        entries = (labels.flatten() > 0).nonzero().flatten()
        shares = working(labels).flatten()[entries]
    else:
        left_out = labels == ignore_index
        check_batch(logits, labels.masked_fill(left_out, 0))
        ignored, kept = left_out.nonzero().flatten(), (~left_out).nonzero().flatten()
        entries = kept * classes + labels[kept]
        shares = torch.ones_like(kept, dtype=working(logits).dtype)
    if weight is not None:
        shares = shares * weight.to(shares)[entries % classes]
    rows = labels.shape[0] - ignored.numel()
    divisor = shares.new_tensor(rows) if labels.is_floating_point() else shares.sum()
    divisor, rows, labelled = _over_ranks(divisor, rows, entries.numel(), ranks)
    return LabelledEntries(
        entries=entries,
        shares=shares,
        ignored=ignored,
        divisor=divisor,
        rows=rows,
        unlabelled=rows * classes - labelled,
    )


def _over_ranks(divisor: Tensor, rows: int, labelled: int, ranks: int) -> tuple[Tensor, int, int]:
    """The three counts summed over all ranks: one message of three float64."""
    if ranks == 1:
        return divisor, rows, labelled
    counts = torch.stack([divisor.double(), *divisor.new_tensor([rows, labelled]).double()])
    dist.all_reduce(counts)
    return counts[0].to(divisor.dtype), int(counts[1]), int(counts[2])
