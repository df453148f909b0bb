"""The smooth top-k loss of Berrada et al."""

import torch
from torch import Tensor

from florilege.training.losses.arguments import checked
from florilege.training.losses.base import module_of, softplus, with_gradient
from florilege.training.losses.symmetric_polynomials import subsets

MIXTURE_ROWS = 1024  # (row, class) pairs of soft targets evaluated together


def smooth_top_k(
    logits: Tensor, labels: Tensor, *, k: int = 5, tau: float = 1.0, margin: float = 1.0
) -> Tensor:
    r"""Smooth top-k loss: the top-k hinge with both maxima softened at temperature tau.

    .. math::
        \ell(s, y) = \tau \log \sum_{|A| = k} e^{\left(\alpha [y \notin A]
            + \frac1k \sum_{j \in A} s_j\right) / \tau}
          - \tau \log \sum_{|A| = k,\, A \ni y} e^{\frac{1}{k\tau} \sum_{j \in A} s_j}

    Computed as :math:`\tau\,\mathrm{softplus}\big((\alpha + (s_{[k]} - s_y)/k)/\tau
    + \log c_k - \log c_{k-1}\big)` with :math:`s_{[k]}` the k-th largest *other* score: the
    first bracket is the hard hinge; the logarithms, of ``symmetric_polynomials``, soften it.

    Use it when images carry wrong or ambiguous labels and k is fixed; the gradient reaches
    every class. Its twin ``noised_top_k`` softens a calibrated hinge and touches few classes.
    A second derivative is refused. Half-precision logits near 20 are spaced 0.02 (float16) or
    0.125 (bfloat16): below tau = 0.1 that rounding dominates.

    Args:
        logits: ``-inf`` masks a class; a row with fewer than k finite others gives 0.
        labels: Soft targets cost one evaluation per positive target and receive no gradient.
        k: Size of the set, ``1 <= k < classes``.
        tau: Temperature, positive. [B] uses 1.0 on CIFAR-100 and 0.1 on ImageNet.
        margin: :math:`\alpha`, at least 0; k = 1, tau = 1, margin = 0 is cross-entropy.

    References:
        [B] eq. 9 and 10. Eq. 8, not [N] eq. 4, is the limit tau to 0: scores divided by k, the
        margin not. The row for this loss in [N] table 1 lacks :math:`A \ni y` in its second
        sum. The authors' code switches to the hard hinge far from the margin; this does not.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[3.0, 1.0, 0.5, -1.0]])
        >>> smooth_top_k(logits, torch.tensor([1]), k=2, tau=0.01)
        tensor([0.7500])
    """
    scores, labels = checked(logits, labels, k=k, tau=tau, margin=margin)
    evaluate = _mixture if labels.is_floating_point() else _value_and_gradient
    values, gradient = evaluate(scores, labels, k, tau, margin)
    return with_gradient(scores, values, gradient)


SmoothTopK = module_of(smooth_top_k)


@torch.no_grad()
def _value_and_gradient(
    scores: Tensor, labels: Tensor, k: int, tau: float, margin: float
) -> tuple[Tensor, Tensor]:
    """Losses ``(rows,)`` and their gradients ``(rows, classes)``, from the same expansion.

    The argument of the softplus is a small difference of large numbers when tau is small, so
    whatever has one value per row is computed in float64.
    """
    index = labels.unsqueeze(1)
    others = subsets(scores.scatter(1, index, -torch.inf), k, 1 / (k * tau))
    lead = others.anchor.double() - scores.gather(1, index).squeeze(1).double()
    argument = (margin + lead / k) / tau + others.log_ratio()
    pull = (torch.sigmoid(argument) / k).to(scores.dtype).unsqueeze(1)
    gradient = others.inclusion_less().mul_(pull).scatter_(1, index, -pull)
    values = tau * softplus(argument)
    return values.to(scores.dtype), gradient


@torch.no_grad()
def _mixture(
    scores: Tensor, targets: Tensor, k: int, tau: float, margin: float
) -> tuple[Tensor, Tensor]:
    """``sum_c t_c loss(., c)`` over the positive targets, a bounded number at a time."""
    values, gradient = torch.zeros_like(scores[:, 0]), torch.zeros_like(scores)
    for pairs in torch.split((targets != 0).nonzero(), MIXTURE_ROWS):
        rows, labels = pairs.unbind(1)
        share = targets[rows, labels].to(scores.dtype)
        value, slope = _value_and_gradient(scores[rows], labels, k, tau, margin)
        values.index_add_(0, rows, share * value)
        gradient.index_add_(0, rows, slope.mul_(share.unsqueeze(1)))
    return values, gradient
