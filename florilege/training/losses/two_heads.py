"""The two-head average-K loss: one head proposes candidate classes, the other learns the sets.

A fixed number of entries of a batch become pseudo-labels: the largest of all ranks. Only values
decide and no gradient flows, so under ``torch.distributed`` each rank sends just the few values
that may be among the largest, never a row. The shapes of all tensors follow from those of the
batch: a mask marks the chosen entries, and no step waits for a GPU.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from florilege.training.losses.arguments import (
    BatchLabels,
    check_average_k,
    check_parameters,
    on_host,
    working,
)
from florilege.training.losses.base import Head, Loss, over_ranks, ranks, softplus, with_gradients

_MILLION = 1_000_000
Rows = TypeVar("Rows", int, Tensor)


@dataclass(frozen=True, kw_only=True)
class _Candidates:
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


def _candidate_count(average_k: float, rows: Rows) -> Rows:
    """``(K - 1) * rows`` rounded half up, exact for a K of six decimals.

    Example:
        >>> _candidate_count(2.3, 5), (2.3 - 1) * 5
        (7, 6.499999999999999)
    """
    # whole numbers: compiled for any batch, K and ``rows`` are symbols, which no Fraction takes
    beside = int((average_k - 1) * _MILLION + 0.5)
    if beside % _MILLION == 0:
        return beside // _MILLION * rows
    return (2 * beside * rows + _MILLION) // (2 * _MILLION)


def _select(
    keys: Tensor, count: Tensor, at_most: int, *, ranks: int = 1, recent: Sequence[Tensor] = ()
) -> _Candidates:
    """Choose the ``count`` largest of all keys, with ties by batch, rank and position.

    ``-inf`` is never chosen; ``at_most`` is a number that ``count`` does not exceed. ``recent``,
    the largest values of earlier batches, oldest first, compete, but are not chosen.
    """
    indices, values = _largest(keys, at_most)
    groups, own = [values], 0
    if ranks > 1:
        indices, own = indices[:at_most], dist.get_rank()
        groups = _gather(values[:at_most], at_most, ranks)
    masks = _choose([*recent, *groups], count)[len(recent) :]
    return _Candidates(
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
    lengths = [len(group) for group in groups]
    return [is_chosen] if len(groups) == 1 else torch.split(is_chosen, lengths)


def _largest(keys: Tensor, count: int) -> tuple[Tensor, Tensor]:
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
    chunk = keys.numel() // width
    maxima = keys.unfold(0, chunk, chunk).amax(0)
    return torch.where(keys >= maxima.topk(count, sorted=False).values.amin())[0]


def _nearby(keys: Tensor, count: int) -> Tensor:
    """Positions of at least the ``count`` largest values, in order; their number is fixed.

    They lie within the ``count`` chunks whose maxima are largest, the first ones in a tie, or after
    the last whole chunk.
    """
    # The maxima of numel / width chunks and then count * width values are sorted: fewest at this
    # width.
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

    def forward(  # type: ignore[override]  # it has two heads
        self, multi_label_logits: Tensor, sccp_logits: Tensor, labels: Tensor
    ) -> Tensor:
        """Loss of the batch; shapes and errors as in :func:`two_head_average_k`."""
        entries = _read_entries(sccp_logits, labels, self.weight, self.ignore_index)
        window = tuple(self._recent) if self.training else ()
        logits = (multi_label_logits, sccp_logits)
        loss, selection = _evaluate(*logits, entries, self.average_k, self.alpha, window)
        if self.recent_batches and self.training:
            self._recent.append(_Recent(entries.rows, entries.batch, selection.largest()))
        taught = 1 + selection.total / entries.rows
        self.mean_set_size = torch.where(entries.rows > 0, taught, self.mean_set_size)
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
    shares: Tensor  # weight of each entry's terms, over all ranks they sum to 1, (labels,)
    row_shares: Tensor  # the same, summed by row, (batch, 1)
    ceiling: Tensor  # -inf for rows that do not count, else inf, (batch, 1)
    rows: Tensor  # counted rows of all ranks, int64
    unlabelled: Tensor  # entries of the counted rows that carry no label, over all ranks, int64
    batch: int  # rows of all ranks


def _read_entries(
    logits: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int
) -> _LabelledEntries:
    """Find the labelled entries of this rank and count those of all ranks.

    Of soft targets a CPU lists the positive entries; elsewhere, where reading their number would
    stall the device, a mask marks them among all. On a GPU this waits for the device if there are
    several ranks.
    """
    label_batch, dtype = BatchLabels.of(logits, labels, weight, ignore_index), working(logits).dtype
    labels, rows_counted = label_batch
    batch, classes = logits.shape
    rows, shares = rows_counted.sum(), label_batch.shares(weight, dtype)
    divisor = shares.sum(dtype=dtype)
    if labels.is_floating_point():
        weighted = labels.clamp_min(0).to(dtype)
        weighted = weighted if weight is None else weighted * weight.to(dtype)
        is_label = labels.flatten() > 0
        every = torch.arange(labels.numel(), device=labels.device)
        entries = is_label.nonzero().flatten() if on_host(labels) else every
        is_counted = is_label[entries]
        row_shares, shares = weighted.sum(1), weighted.flatten()[entries]
        unlabelled = rows * classes - is_counted.sum()
    else:
        entries = torch.arange(0, labels.numel() * classes, classes, device=labels.device) + labels
        is_counted = row_shares = rows_counted
        unlabelled = rows * (classes - 1)
    counts = [divisor, rows, unlabelled]
    if ranks() > 1:  # one message of float64
        numbers = [*counts, divisor.new_tensor(batch)]
        sums = over_ranks(torch.stack([values.double() for values in numbers]))
        counts = [total.to(count.dtype) for total, count in zip(sums, counts, strict=False)]
        batch = int(sums[-1])
    divisor, rows, unlabelled = counts
    divisor = divisor.clamp_min(TINY)
    shares = shares / divisor
    row_shares = row_shares / divisor if labels.is_floating_point() else shares
    return _LabelledEntries(
        entries=entries,
        counted=is_counted,
        shares=shares,
        row_shares=row_shares.unsqueeze(1),
        ceiling=torch.where(rows_counted, torch.inf, -torch.inf).to(dtype).unsqueeze(1),
        rows=rows,
        unlabelled=unlabelled,
        batch=batch,
    )


def _evaluate(
    multi_label_logits: Tensor,
    sccp_logits: Tensor,
    entries: _LabelledEntries,
    average_k: float,
    alpha: float,
    window: Sequence[_Recent] = (),
) -> tuple[Tensor, _Candidates]:
    """The loss, with this rank's share of the terms, and the candidates; ``window`` competes."""
    check_average_k(average_k, sccp_logits.shape[-1])
    if multi_label_logits.shape != sccp_logits.shape:
        raise ValueError(
            f"both heads must have the same shape, got {tuple(multi_label_logits.shape)} "
            f"and {tuple(sccp_logits.shape)}"
        )
    scores, proposals = working(multi_label_logits), working(sccp_logits)
    with torch.no_grad():
        log_p = F.log_softmax(proposals.contiguous(), dim=1)
        count = _candidate_count(average_k, sum((entry.rows for entry in window), entries.rows))
        at_most = _candidate_count(average_k, sum((entry.batch for entry in window), entries.batch))
        recent = [entry.values.to(log_p) for entry in window]
        selection = _select(_keys(log_p, entries), count, at_most, ranks=ranks(), recent=recent)
        likelihood, of_proposals = _log_likelihood(log_p, entries)
        taught, of_scores = _multi_label(scores, entries, selection, alpha)
        value = taught - likelihood
    heads = ((scores, of_scores), (proposals, of_proposals))
    return with_gradients(
        value * ranks() if ranks() > 1 else value, *heads, factor=ranks()
    ), selection


def _keys(log_p: Tensor, entries: _LabelledEntries) -> Tensor:
    """What ranks the candidates, flat; a masked class stays above the ``-inf`` of labels."""
    keys = log_p.clamp_min(torch.finfo(log_p.dtype).min)
    torch.minimum(keys, entries.ceiling, out=keys)
    flat = keys.view(-1)
    # Every entry is listed, labelled or not, where the number of labels could not be read.
    if len(entries.entries) == len(flat):
        return flat.masked_fill_(entries.counted, -torch.inf)
    return flat.index_fill_(0, entries.entries, -torch.inf)


def _log_likelihood(log_p: Tensor, entries: _LabelledEntries) -> tuple[Tensor, Tensor]:
    """The weighted mean of ``log_p`` of the labels; minus its gradient, which takes its place."""
    flat = log_p.view(-1)
    at_label = torch.where(entries.counted, flat[entries.entries], 0.0)
    # Not a matrix product, which autocast would round.
    value = torch.dot(at_label, entries.shares)
    gradient = log_p.exp_().mul_(entries.row_shares)
    flat.index_add_(0, entries.entries, entries.shares, alpha=-1)
    return value, gradient


def _multi_label(
    scores: Tensor, entries: _LabelledEntries, selection: _Candidates, alpha: float
) -> tuple[Tensor, Tensor]:
    """The three terms of the multi-label head with their gradient, in one pass over the scores.

    Labels, candidates and ignored rows are set to ``-inf``, where the softplus and its slope are
    0, so that only negatives remain: exact, unlike a sum over all minus those few.
    """
    negatives = scores.contiguous().minimum(entries.ceiling)
    flat = negatives.view(-1)
    positions = torch.cat([entries.entries, selection.indices])
    is_positive = torch.cat([entries.counted, selection.mask])
    terms = torch.stack([selection.total, entries.unlabelled - selection.total]).clamp_min(1)
    of_chosen, of_negative = (alpha / terms).unbind()
    shares = torch.cat([entries.shares, selection.mask * of_chosen])
    at = flat[positions]
    # by the smallest: what is not chosen stays a negative, unless it is a label
    flat.scatter_reduce_(0, positions, torch.where(is_positive, -torch.inf, at), "amin")
    log_sigmoid = F.logsigmoid(torch.where(is_positive, at, 0.0))
    value = softplus(negatives).sum() * of_negative - torch.dot(log_sigmoid, shares)
    negatives.sigmoid_().mul_(of_negative)
    # expm1 of it is minus the sigmoid of minus the score
    flat.index_add_(0, positions, log_sigmoid.expm1_().mul_(shares))
    return value, negatives
