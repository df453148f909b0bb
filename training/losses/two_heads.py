"""The two-head average-K loss: one head proposes candidate classes, the other learns the sets."""

from collections import deque
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch import distributed as dist
from torch.nn import functional as F

from training.losses.base import Head, Loss, check_weight, with_gradient
from training.losses.candidates import Candidates, Scope, candidate_count, select, world_size
from training.losses.inputs import check_average_k, check_batch, check_parameters, whole, working
from training.losses.positives import SOFTPLUS_LIMIT

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
    candidates: Scope = "global",
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
        candidates: Under ``torch.distributed``, rank the entries of all ranks together
            (``"global"``) or those of each rank separately (``"local"``).

    Returns:
        A scalar; float32 for half-precision logits. Under ``torch.distributed`` with global
        candidates it is this rank's part times the number of ranks, so that the mean over
        ranks, which ``DistributedDataParallel`` takes of the gradients, is the loss of the
        global batch. A second derivative is refused.

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
    check_parameters(average_k=average_k, alpha=alpha, candidates=candidates)
    ranks = world_size(candidates)
    known = read_labels(sccp_logits, labels, weight, ignore_index, ranks)
    check_average_k(average_k, sccp_logits.shape[-1])
    count = candidate_count(average_k, known.rows)
    log_p = _log_softmax(sccp_logits)
    chosen = select(_keys(log_p, known), count, ranks=ranks)
    return _loss(multi_label_logits, log_p, known, chosen, alpha) * ranks


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
    candidates: Scope

    mean_set_size: Tensor
    """Classes per image, label included, that the last batch was taught; for the log."""

    def __init__(self, *, recent_batches: int = 0, **given: Any) -> None:
        super().__init__(**given)
        check_parameters(recent_batches=recent_batches)
        self.recent_batches = recent_batches
        self._recent: deque[tuple[int, Tensor]] = deque(maxlen=recent_batches)
        self.register_buffer("mean_set_size", torch.tensor(0.0), persistent=False)

    @property
    def spans_ranks(self) -> bool:
        """Not where each process chooses among its own candidates."""
        return self.candidates == "global"

    def forward(self, multi_label_logits: Tensor, sccp_logits: Tensor, labels: Tensor) -> Tensor:
        """Loss of the batch; shapes and errors as in :func:`two_head_average_k`."""
        ranks = world_size(self.candidates)
        known = read_labels(sccp_logits, labels, self.weight, self.ignore_index, ranks)
        log_p = _log_softmax(sccp_logits)
        check_average_k(self.average_k, sccp_logits.shape[-1])
        chosen = self._select(_keys(log_p, known), known.rows, ranks)
        if known.rows:
            self.mean_set_size.fill_(1 + chosen.total / known.rows)
        loss = _loss(multi_label_logits, log_p, known, chosen, self.alpha) * ranks
        return loss if self.reduction == "mean" else loss * known.rows

    def _select(self, keys: Tensor, rows: int, ranks: int) -> Candidates:
        if not (self.recent_batches and self.training):
            return select(keys, candidate_count(self.average_k, rows), ranks=ranks)
        window = rows + sum(rows for rows, _ in self._recent)
        recent = [values.to(keys) for _, values in self._recent]
        count = candidate_count(self.average_k, window)
        chosen = select(keys, count, ranks=ranks, recent=recent)
        self._recent.append((rows, chosen.sent))
        return chosen

    def get_extra_state(self) -> dict[str, Any]:
        """The recent values, so that a resumed run continues exactly."""
        return {"recent": list(self._recent)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Restore the recent values of a checkpoint."""
        self._recent = deque(state["recent"], maxlen=self.recent_batches)


@dataclass(frozen=True, kw_only=True)
class LabelledEntries:
    """The entries that carry a label, and the counts that the sums are divided by."""

    entries: Tensor  # flat positions, int64 (labels,)
    shares: Tensor  # weight of each entry's terms, (labels,)
    ignored: Tensor  # rows that do not count, int64 (ignored rows,)
    divisor: Tensor  # scalar, over all ranks
    rows: int  # counted rows of all ranks
    unlabelled: int  # entries of the counted rows that carry no label, over all ranks


def read_labels(
    logits: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int, ranks: int
) -> LabelledEntries:
    """Find the labelled entries of this rank and count those of all ranks."""
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


def _log_softmax(sccp_logits: Tensor) -> Tensor:
    return F.log_softmax(working(sccp_logits), dim=1)


def _keys(log_p: Tensor, known: LabelledEntries) -> Tensor:
    """What candidates are ranked by, flat; a masked class stays above the labels' ``-inf``."""
    keys = log_p.detach().clamp_min(torch.finfo(log_p.dtype).min)
    keys.index_fill_(0, known.ignored, -torch.inf)
    return keys.view(-1).index_fill_(0, known.entries, -torch.inf)


def _loss(
    multi_label_logits: Tensor,
    log_p: Tensor,
    known: LabelledEntries,
    chosen: Candidates,
    alpha: float,
) -> Tensor:
    """This rank's share of the four terms, each divided by its count over all ranks."""
    if multi_label_logits.shape != log_p.shape:
        raise ValueError(
            f"both heads must have the same shape, got {tuple(multi_label_logits.shape)} "
            f"and {tuple(log_p.shape)}"
        )
    scores = working(multi_label_logits)
    taught = with_gradient(scores, *_multi_label(scores, known, chosen, alpha))
    proposed = log_p.flatten().index_select(0, known.entries)
    return taught - (known.shares * proposed).sum() / known.divisor.clamp_min(TINY)


@torch.no_grad()
def _multi_label(
    scores: Tensor, known: LabelledEntries, chosen: Candidates, alpha: float
) -> tuple[Tensor, Tensor]:
    """The three terms of the multi-label head with their gradient, in one pass over the scores.

    Negatives are what is left when labels, candidates and ignored rows are set to ``-inf``,
    where the softplus and its slope are 0: exact, unlike a sum over all minus those few.
    """
    flat = scores.flatten()
    positive = torch.cat([known.entries, chosen.indices])
    label_share = known.shares / known.divisor.clamp_min(TINY)
    candidate_share = flat.new_full(chosen.indices.shape, alpha / max(1, chosen.total))
    share = torch.cat([label_share, candidate_share])
    at_positive = flat.index_select(0, positive)
    rest = flat.index_fill(0, positive, -torch.inf).view_as(scores)
    rest.index_fill_(0, known.ignored, -torch.inf)
    negative_share = alpha / max(1, known.unlabelled - chosen.total)
    negatives = F.softplus(rest, threshold=SOFTPLUS_LIMIT).sum()
    gradient = rest.sigmoid_().mul_(negative_share)
    gradient.view(-1).index_copy_(0, positive, -share * torch.sigmoid(-at_positive))
    positives = (share * F.softplus(-at_positive, threshold=SOFTPLUS_LIMIT)).sum()
    return positives + negative_share * negatives, gradient
