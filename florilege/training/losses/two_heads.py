"""The two-head average-K loss: one head proposes candidate classes, the other learns the sets."""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from florilege.training.losses.arguments import (
    check_average_k,
    check_parameters,
    read_labels,
    working,
)
from florilege.training.losses.base import Head, Loss, over_ranks, ranks, softplus, with_gradient
from florilege.training.losses.pseudo_labels import Candidates, candidate_count, select

TINY = 1e-30  # in place of a divisor of 0


def two_head_average_k(
    multi_label_logits: Tensor,
    sccp_logits: Tensor,
    labels: Tensor,
    *,
    average_k: float = 5.0,
    alpha: float = 1.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    r"""Two-head average-K loss: cross-entropy proposes classes, binary cross-entropy keeps them.

    The SCCP head (set candidate class proposal) learns by cross-entropy. Over the **whole
    batch**, the :math:`(K-1)|B|` largest entries of its softmax beside the labels become
    pseudo-positives :math:`\mathcal S_c` of the multi-label head, all other entries negatives
    :math:`\mathcal N`:

    .. math::
        \ell = \ell_{CE}(z', y)
          - \frac{1}{|B|} \sum_i \log \sigma(z_{i y_i})
          - \frac{\alpha}{|\mathcal S_c|} \sum_{(i,j) \in \mathcal S_c} \log \sigma(z_{ij})
          - \frac{\alpha}{|\mathcal N|} \sum_{(i,j) \in \mathcal N} \log (1 - \sigma(z_{ij}))

    So ambiguous images receive more pseudo-positives than clear ones, K classes on average with
    the label.

    Args:
        multi_label_logits: Scores of the multi-label head, ``(batch, classes)``, floating point.
        sccp_logits: Scores of the SCCP head, same shape.
        labels: Soft targets weight the terms of the label, and no class with a positive target
            is a candidate or a negative.
        average_k: Wanted mean size of a set, ``1 <= average_k <= classes``, may be fractional.
        alpha: Weight of the pseudo-labels relative to the labels, at least 0. [A] searches 0.1
            to 10; [S] reports 0.3 for CIFAR-100 and 5 for Pl@ntNet-300K.

    Returns:
        A scalar; float32 for half-precision logits. Under ``torch.distributed`` the entries of all
        ranks are ranked together, and it is this rank's part times the number of ranks, so that the
        mean over ranks, which ``DistributedDataParallel`` takes of the gradients, is the loss of
        the global batch. A second derivative is refused.

    References:
        [A] eq. 10-15. Departures from the paper: the sum of eq. 14 over
        :math:`j \notin \mathcal S_c` contains the label although its normaliser does not, so
        the label is not a negative here; sums are divided by the number of their terms, which
        allows a fractional K; at K = 1 there is no candidate and at K = classes no negative,
        and the term that would be 0/0 is dropped. Candidates are ranked on the log-softmax,
        which does not saturate, with ties by rank, row and class.

    Example:
        >>> import torch
        >>> scores = torch.zeros(2, 4)
        >>> two_head_average_k(scores, scores, torch.tensor([0, 1]), average_k=2)
        tensor(3.4657)
    """
    check_parameters(average_k=average_k, alpha=alpha)
    entries = _read_entries(sccp_logits, labels, weight, ignore_index)
    return _evaluate(multi_label_logits, sccp_logits, entries, average_k, alpha)[0]


class _Recent(NamedTuple):
    """What an earlier batch leaves for the next ones."""

    rows: Tensor  # counted rows of all ranks, int64
    batch: int  # rows of all ranks
    values: Tensor  # the largest of all ranks


class TwoHeadAverageK(Loss, function=two_head_average_k):
    """Module of :func:`two_head_average_k`, with an option for gradient accumulation.

    Args:
        recent_batches: Earlier batches whose largest values compete for the candidates while
            training. With gradient accumulation over ``n`` small batches, ``n - 1`` chooses
            about as one large batch would; the values are as old as those batches.
    """

    head: ClassVar[Head] = "two_head"
    coupled: ClassVar[bool] = True

    average_k: float
    alpha: float

    mean_set_size: Tensor
    """Classes per image, label included, that the last batch was taught; for the log."""

    def __init__(self, *, recent_batches: int = 0, **parameters: Any) -> None:
        super().__init__(**parameters)
        check_parameters(recent_batches=recent_batches)
        self.recent_batches = recent_batches
        self._recent: deque[_Recent] = deque(maxlen=recent_batches)
        self.register_buffer("mean_set_size", torch.tensor(0.0), persistent=False)

    def forward(self, multi_label_logits: Tensor, sccp_logits: Tensor, labels: Tensor) -> Tensor:
        """Loss of the batch; shapes and errors as in :func:`two_head_average_k`."""
        entries = _read_entries(sccp_logits, labels, self.weight, self.ignore_index)
        window = tuple(self._recent) if self.training else ()
        logits = (multi_label_logits, sccp_logits)
        loss, selection = _evaluate(*logits, entries, self.average_k, self.alpha, window)
        if self.recent_batches and self.training:
            self._recent.append(_Recent(entries.rows, entries.batch, selection.largest))
        taught = 1 + selection.total / entries.rows
        self.mean_set_size.copy_(torch.where(entries.rows > 0, taught, self.mean_set_size))
        return loss if self.reduction == "mean" else loss * entries.rows

    def get_extra_state(self) -> dict[str, Any]:
        """The recent values, so that a resumed run continues exactly."""
        return {"recent": [tuple(batch) for batch in self._recent]}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        recent = (_Recent(*numbers) for numbers in state["recent"])
        self._recent = deque(recent, maxlen=self.recent_batches)


@dataclass(frozen=True, kw_only=True)
class _LabelledEntries:
    """The entries that carry a label, and the counts that the sums are divided by."""

    entries: Tensor  # flat positions, int64 (labels,)
    counted: Tensor  # whether their rows count, bool (labels,)
    shares: Tensor  # weight of each entry's terms, (labels,)
    ceiling: Tensor  # -inf for rows that do not count, else inf, (batch, 1)
    divisor: Tensor  # scalar, over all ranks
    rows: Tensor  # counted rows of all ranks, int64
    unlabelled: Tensor  # entries of the counted rows that carry no label, over all ranks, int64
    batch: int  # rows of all ranks


def _read_entries(
    logits: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int
) -> _LabelledEntries:
    """Find the labelled entries of this rank and count those of all ranks.

    On a GPU this waits for the device if targets are soft or there are several ranks.
    """
    labels, rows_counted, shares = read_labels(logits, labels, weight, ignore_index)
    batch, classes = logits.shape
    rows, divisor = rows_counted.sum(), shares.sum()
    if labels.is_floating_point():
        entries = (labels.flatten() > 0).nonzero().flatten()
        is_counted = torch.ones_like(entries, dtype=torch.bool)
        shares = labels.flatten()[entries].to(shares.dtype)
        if weight is not None:
            shares = shares * weight.to(shares)[entries % classes]
    else:
        entries = torch.arange(batch, device=labels.device) * classes + labels
        is_counted = rows_counted
    counts = [divisor, rows, is_counted.sum()]
    if ranks() > 1:  # one message of float64
        numbers = [*counts, divisor.new_tensor(batch)]
        sums = over_ranks(torch.stack([values.double() for values in numbers]))
        counts = [total.to(count.dtype) for total, count in zip(sums, counts, strict=False)]
        batch = int(sums[-1])
    divisor, rows, labelled = counts
    return _LabelledEntries(
        entries=entries,
        counted=is_counted,
        shares=shares,
        ceiling=torch.where(rows_counted, torch.inf, -torch.inf).to(shares.dtype)[:, None],
        divisor=divisor,
        rows=rows,
        unlabelled=rows * classes - labelled,
        batch=batch,
    )


def _evaluate(
    multi_label_logits: Tensor,
    sccp_logits: Tensor,
    entries: _LabelledEntries,
    average_k: float,
    alpha: float,
    window: Sequence[_Recent] = (),
) -> tuple[Tensor, Candidates]:
    """The loss, with this rank's share of the terms, and the candidates; ``window`` competes."""
    check_average_k(average_k, sccp_logits.shape[-1])
    if multi_label_logits.shape != sccp_logits.shape:
        raise ValueError(
            f"both heads must have the same shape, got {tuple(multi_label_logits.shape)} "
            f"and {tuple(sccp_logits.shape)}"
        )
    log_p = F.log_softmax(working(sccp_logits), dim=1)
    # the keys that rank candidates; a masked class stays above the labels' -inf
    keys = log_p.detach().clamp_min(torch.finfo(log_p.dtype).min)
    torch.minimum(keys, entries.ceiling, out=keys)
    keys = keys.view(-1).index_fill_(0, entries.entries, -torch.inf)
    count = candidate_count(average_k, sum((entry.rows for entry in window), entries.rows))
    at_most = candidate_count(average_k, sum((entry.batch for entry in window), entries.batch))
    recent = [entry.values.to(keys) for entry in window]
    selection = select(keys, count, at_most, ranks=ranks(), recent=recent)
    scores = working(multi_label_logits)
    taught = with_gradient(scores, *_multi_label(scores, entries, selection, alpha))
    proposed = log_p.flatten().index_select(0, entries.entries).masked_fill(~entries.counted, 0)
    loss = taught - (entries.shares * proposed).sum() / entries.divisor.clamp_min(TINY)
    return loss * ranks(), selection


@torch.no_grad()
def _multi_label(
    scores: Tensor, entries: _LabelledEntries, selection: Candidates, alpha: float
) -> tuple[Tensor, Tensor]:
    """The three terms of the multi-label head with their gradient, in one pass over the scores.

    Labels, candidates and ignored rows are set to ``-inf``, where the softplus and its slope are
    0, so that only negatives remain: exact, unlike a sum over all minus those few.
    """
    mask, dtype = selection.mask, scores.dtype
    negative_scores = scores.contiguous().minimum(entries.ceiling)
    flat = negative_scores.view(-1)
    at_label = flat[entries.entries].masked_fill_(~entries.counted, 0)
    at_chosen = flat[selection.indices]
    label_share = entries.shares / entries.divisor.clamp_min(TINY)
    chosen_share = mask * (alpha / selection.total.clamp_min(1).to(dtype))
    negative_share = alpha / (entries.unlabelled - selection.total).clamp_min(1).to(dtype)
    # entries not chosen are written back unchanged and may be labels, so labels are masked next
    flat.index_copy_(0, selection.indices, at_chosen.masked_fill(mask, -torch.inf))
    flat.index_fill_(0, entries.entries, -torch.inf)
    at_chosen.masked_fill_(~mask, 0)
    positives = (label_share * softplus(-at_label)).sum()
    positives += (chosen_share * softplus(-at_chosen)).sum()
    negatives = softplus(negative_scores).sum()
    gradient = negative_scores.sigmoid_().mul_(negative_share)
    slope = -chosen_share * torch.sigmoid(-at_chosen)
    flat.index_copy_(0, selection.indices, torch.where(mask, slope, flat[selection.indices]))
    flat.index_copy_(0, entries.entries, -label_share * torch.sigmoid(-at_label))
    return positives + negative_share * negatives, gradient
