"""ROLE as a function: a classifier and the estimated labels of its images teach each other."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from training.losses.base import divide
from training.losses.derivatives import first_derivative_only
from training.losses.inputs import check_at_least, working
from training.losses.positives import SOFTPLUS_LIMIT, label_term, surplus


def role(
    logits: Tensor,
    labels: Tensor,
    *,
    estimates: Tensor,
    average_k: float = 5.0,
    reg_weight: float = 1.0,
    weight: Tensor | None = None,
    ignore_index: int = -100,
) -> Tensor:
    r"""ROLE (regularised online label estimation): classifier and estimates teach each other.

    With :math:`\theta` the estimates of this batch's images and :math:`\bar\sigma` a
    probability taken as given:

    .. math::
        \ell &= \tfrac12 \big(h(z, \theta) + h(\theta, z)\big) \\
        h(a, b) &= \frac{1}{|B|} \sum_i \Big(-\log \sigma(a_{i y_i})
            + \sum_j \mathrm{BCE}\big(a_{ij}; \bar\sigma(b_{ij})\big)\Big)
            + \frac{\lambda}{L} \Big(\frac{1}{|B|} \sum_{i,j} \sigma(a_{ij}) - K\Big)^2

    Each half is ``expected_positive`` plus the wish to agree with the other one. It needs a
    number per image and class; ``two_head_average_k`` makes pseudo-labels from the batch.

    Args:
        logits: Raw class scores :math:`z`, shape ``(batch, classes)``, floating point.
        labels: True class indices, int64 ``(batch,)``, or soft targets ``(batch, classes)``.
        estimates: Logits :math:`\theta` of the estimated labels, ``(batch, classes)``.
        average_k: Wanted mean number of positive classes, ``1 <= average_k <= classes``.
        reg_weight: :math:`\lambda`, at least 0.
        weight: Class weights ``(classes,)`` of the terms of the label.
        ignore_index: Rows with this label count for nothing.

    Returns:
        A scalar with gradients to both ``logits`` and ``estimates``; a second derivative is
        refused. A masked class (``-inf``) makes it infinite: the two sides never agree there.

    Raises:
        ValueError: A parameter out of range, or tensors that do not fit.

    References:
        Cole et al., "Multi-label learning from single positive labels", CVPR 2021, eq. 10 and
        11, times the number of classes, so that ``reg_weight=1`` is the default beta of
        ``expected_positive``; [A] section 4.6. The ``lambda`` that [S] tunes for this loss is
        not defined there; we read it as ``reg_weight``.

    Example:
        >>> import torch
        >>> zeros = torch.zeros(2, 4)
        >>> role(zeros, torch.tensor([0, 1]), estimates=zeros, average_k=2)
        tensor(3.4657)
    """
    check_parameters(average_k, reg_weight)
    if estimates.shape != logits.shape:
        raise ValueError(
            f"estimates must have the shape of the logits {tuple(logits.shape)}, "
            f"got {tuple(estimates.shape)}"
        )
    settings = (labels, average_k, reg_weight, weight, ignore_index)
    ours, theirs = working(logits), working(estimates)
    p, q = torch.sigmoid(ours.detach()), torch.sigmoid(theirs.detach())
    return (half(ours, p, q.to(p), *settings) + half(theirs, q, p.to(q), *settings)) / 2


def half(
    scores: Tensor,
    own: Tensor,
    taught: Tensor,
    labels: Tensor,
    average_k: float,
    reg_weight: float,
    weight: Tensor | None,
    ignore_index: int,
) -> Tensor:
    """What one side learns while the other is taken as given, a scalar.

    Args:
        scores: The logits that learn.
        own: Their sigmoid.
        taught: Probabilities of the other side.
    """
    observed, kept = label_term(scores, labels, weight, ignore_index)
    entropy, positives = _Agreement.apply(scores, own, taught)
    agreement = divide(entropy.where(kept > 0, 0.0).sum(), kept.sum())
    excess = surplus(positives, kept, average_k, scores.shape[1])
    result: Tensor = observed + agreement + reg_weight / scores.shape[1] * excess.square()
    return result


class _Agreement(torch.autograd.Function):
    """Per row, the binary cross-entropy to the taught probabilities and the sum of the own."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, own: Tensor, taught: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(own, taught)
        entropy = F.softplus(scores, threshold=SOFTPLUS_LIMIT).sum(1)
        return entropy - (taught * scores).sum(1), own.sum(1)  # vecdot would round to bfloat16

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, of_entropy: Tensor, of_sum: Tensor) -> tuple[Tensor, None, None]:
        own, taught = ctx.saved_tensors
        gradient = torch.addcmul(own, own, own, value=-1).mul_(of_sum.unsqueeze(1))
        return gradient.addcmul_(own - taught, of_entropy.unsqueeze(1)), None, None


def check_parameters(average_k: float, reg_weight: float) -> None:
    """Refuse a mean set size below one and a negative weight."""
    check_at_least("average_k", average_k, 1)
    check_at_least("reg_weight", reg_weight, 0)
