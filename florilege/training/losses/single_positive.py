"""Binary losses for one observed positive; they differ in what they assume of other classes."""

import torch
from torch import Tensor

from florilege.training.losses.arguments import (
    BatchLabels,
    check_average_k,
    check_parameters,
    checked,
    working,
)
from florilege.training.losses.base import (
    mean_over_ranks,
    mix,
    over_ranks,
    softplus,
)


def assume_negative(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Assume negative: the label is positive, every other class negative with less weight.

    .. math::
        \ell(z, y) = -\log \sigma(z_y) - \frac{1}{L-1} \sum_{j \ne y} \log(1 - \sigma(z_j))

    The simplest multi-label loss. It assumes that no image looks like several classes;
    ``expected_positive`` and ``two_head_average_k`` do not.

    References:
        [A] eq. 5, the weighted form ("WAN") of Cole et al., "Multi-label learning from single
        positive labels", CVPR 2021, times the number of classes.

    Example:
        >>> import torch
        >>> assume_negative(torch.zeros(1, 4), torch.tensor([2]))
        tensor([1.3863])
    """
    scores, labels = checked(logits, labels)
    negatives = max(1, scores.shape[1] - 1)
    if labels.is_floating_point():
        targets = labels.to(scores.dtype)
        refusals = (targets.sum(1, keepdim=True) - targets) / negatives
        return mix(softplus(-scores), targets) + (refusals * softplus(scores)).sum(1)
    others = scores.scatter(1, labels.unsqueeze(1), -torch.inf)
    return _positive(scores, labels) + softplus(others).sum(1) / negatives


def positive_bce(logits: Tensor, labels: Tensor) -> Tensor:
    r"""Binary cross-entropy of the label alone; it says nothing about the other classes.

    .. math:: \ell(z, y) = -\log \sigma(z_y)

    On its own it is minimal when every class is positive: it is a part of other losses, and a
    lower bound in comparisons.

    References:
        [A] eq. 6.

    Example:
        >>> import torch
        >>> positive_bce(torch.zeros(1, 4), torch.tensor([2]))
        tensor([0.6931])
    """
    return _positive(*checked(logits, labels))


def expected_positive(
    logits: Tensor,
    labels: Tensor,
    *,
    average_k: float = 5.0,
    beta: float | None = None,
    weight: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    r"""Expected positive regularisation: K classes are positive on average over the batch.

    .. math::
        \ell = -\frac{1}{|B|} \sum_i \log \sigma(z_{i y_i}) + \beta (\hat K - K)^2,
        \quad \hat K = \frac{1}{|B|} \sum_{i,j} \sigma(z_{ij})

    The loss does not say which classes are positive, so mass may spread evenly over all of them;
    ``two_head_average_k`` selects them.

    Args:
        average_k: Wanted mean number of positive classes, ``1 <= average_k <= classes``, may
            be fractional.
        beta: Weight of the constraint, at least 0; None is one over the number of classes, as
            [S] reports: 0.01 on CIFAR-100, 0.001 on Pl@ntNet-300K.

    Returns:
        A scalar; float32 for half-precision logits. Under ``torch.distributed`` the batch is that
        of all ranks: each gets the whole loss, and the mean of their gradients is its gradient.

    References:
        [A] eq. 8. With the default beta it is the loss of Cole et al., CVPR 2021, times the
        number of classes.

    Example:
        >>> import torch
        >>> expected_positive(torch.zeros(2, 4), torch.tensor([0, 1]), average_k=3, beta=0.5)
        tensor(1.1931)
    """
    check_parameters(average_k=average_k, beta=0 if beta is None else beta)
    scores = working(logits)
    observed, counts = _label_term(logits, labels, weight, ignore_index)
    excess = _surplus(torch.sigmoid(scores).sum(1), counts, average_k, scores.shape[1])
    strength = 1 / scores.shape[1] if beta is None else beta
    return observed + strength * excess.square()


def _label_term(
    logits: Tensor, labels: Tensor, weight: Tensor | None, ignore_index: int
) -> tuple[Tensor, Tensor]:
    """Weighted mean of ``positive_bce``, a scalar, and 1 for each counted row, ``(batch,)``."""
    batch = BatchLabels.of(logits, labels, weight, ignore_index)
    scores = working(logits)
    labels, shares = batch.labels, batch.shares(weight, scores.dtype).to(scores.dtype)
    if labels.is_floating_point():
        weighted = labels if weight is None else labels * weight.to(labels)
        return mean_over_ranks(_positive(scores, weighted), shares), shares
    values = _positive(scores, labels).where(batch.counted, 0.0)
    return mean_over_ranks(shares * values, shares), batch.counted.to(scores.dtype)


def _surplus(positives: Tensor, counts: Tensor, average_k: float, classes: int) -> Tensor:
    """Mean number of positive classes over the counted rows, minus K; 0 without such rows."""
    check_average_k(average_k, classes)
    mean = mean_over_ranks(positives.where(counts > 0, 0.0), counts)
    total = over_ranks(counts.sum())
    return mean - average_k * (total > 0).to(mean.dtype)  # a bool would give the default type


def _positive(scores: Tensor, labels: Tensor) -> Tensor:
    if labels.is_floating_point():
        return mix(softplus(-scores), labels)
    return softplus(-scores.gather(1, labels.unsqueeze(1)).squeeze(1))
