"""Three top-k hinge losses that compare the true class with different scores, and a smooth one."""

import torch
from torch import Tensor

from florilege.training.losses.arguments import checked
from florilege.training.losses.base import module_of, softplus, with_gradients
from florilege.training.losses.symmetric_polynomials import LARGEST_K, subsets

MIXTURE_ROWS = 1024  # (row, class) pairs of soft targets evaluated together


def top_k_hinge(logits: Tensor, labels: Tensor, *, k: int = 5) -> Tensor:
    r"""Top-k hinge loss: the true class against the k-th largest *other* score.

    .. math:: \ell(s, y) = \max(0,\; 1 + (s_{\setminus y})_{[k]} - s_y)

    A baseline: neither convex nor top-k calibrated, and at most two entries of its gradient
    are not zero. A deep network learns with it only with a cosine head and small steps, which keep
    the logits near the margin. ``calibrated_top_k_hinge`` compares with the (k+1)-th score of *all*
    classes instead.

    Args:
        k: Size of the set, ``1 <= k < classes``.

    References:
        Lapin et al., "Top-k multiclass SVM", NeurIPS 2015; [N] eq. 4, [B] eq. 6. [B] eq. 8
        divides the scores by k but not the margin: that one is the limit of ``smooth_top_k``.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[3.0, 1.0, 0.5, -1.0], [0.0, 2.0, 1.0, 4.0]])
        >>> top_k_hinge(logits, torch.tensor([0, 0]), k=2)
        tensor([0., 3.])
    """
    scores, labels = checked(logits, labels, k=k)
    if labels.is_floating_point():
        top = scores.topk(k + 1)
        in_set = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, top.indices[:, :k], True)
        rivals = top.values[:, k:].where(in_set, top.values[:, k - 1 : k])
        return _mixture(rivals - scores + 1, labels)
    others = scores.scatter(1, labels.unsqueeze(1), -torch.inf)
    return (1 + others.topk(k).values[:, -1] - _true(scores, labels)).clamp_min(0)


def convex_top_k_hinge(logits: Tensor, labels: Tensor, *, k: int = 5) -> Tensor:
    r"""Convex top-k hinge loss: the true class against the mean of the k largest scores.

    .. math::
        \ell(s, y) = \max\Big(0,\; \frac1k \sum_{i=1}^k (s + \mathbf 1 - \delta_y)_{[i]}
            - s_y\Big)

    A convex upper bound of ``top_k_hinge``; not top-k calibrated either.

    Args:
        k: Size of the set, ``1 <= k < classes``.

    References:
        Lapin et al., "Top-k multiclass SVM", NeurIPS 2015; [N] table 1.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[3.0, 1.0, 0.5, -1.0], [0.0, 2.0, 1.0, 4.0]])
        >>> convex_top_k_hinge(logits, torch.tensor([0, 0]), k=2)
        tensor([0., 4.])
    """
    scores, labels = checked(logits, labels, k=k)
    if labels.is_floating_point():
        return _mixture(_means_for_each_class(scores, k) - scores, labels)
    index = labels.unsqueeze(1)
    raised = (scores + 1).scatter_add(1, index, scores.new_full(index.shape, -1.0))
    return (raised.topk(k).values.mean(1) - _true(scores, labels)).clamp_min(0)


def calibrated_top_k_hinge(logits: Tensor, labels: Tensor, *, k: int = 5) -> Tensor:
    r"""Calibrated top-k hinge loss: zero once the true class leads the (k+1)-th score by one.

    .. math:: \ell(s, y) = \max(0,\; 1 + s_{[k+1]} - s_y)

    Its minimiser ranks the k likeliest classes first, which ``top_k_hinge`` does not
    guarantee. A label that comes (k+1)-th is its own rival and gets no gradient, so a deep
    network learns with it only with a cosine head and a slow start; ``noised_top_k`` smooths it.

    Args:
        k: Size of the set, ``1 <= k < classes``.

    References:
        Yang and Koyejo, "On the consistency of top-k surrogate losses", ICML 2020; [N] eq. 5.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[3.0, 1.0, 0.5, -1.0], [0.0, 2.0, 1.0, 4.0]])
        >>> calibrated_top_k_hinge(logits, torch.tensor([0, 2]), k=2)
        tensor([0., 1.])
    """
    scores, labels = checked(logits, labels, k=k)
    return hinge(scores, labels, scores.topk(k + 1).values[:, -1])


def hinge(scores: Tensor, labels: Tensor, rival: Tensor, margins: Tensor | float = 1.0) -> Tensor:
    """``max(0, margin + rival - s_y)``, with a rival ``(batch,)`` that is the same for every label.

    There is one margin, or one per class, ``(classes,)``.
    """
    if labels.is_floating_point():
        return _mixture(margins + rival.unsqueeze(1) - scores, labels)
    margin = margins[labels] if isinstance(margins, Tensor) else margins
    return (margin + rival - _true(scores, labels)).clamp_min(0)


def _true(scores: Tensor, labels: Tensor) -> Tensor:
    return scores.gather(1, labels.unsqueeze(1)).squeeze(1)


def _mixture(slack: Tensor, targets: Tensor) -> Tensor:
    """``sum_c t_c max(0, slack_c)``, shape ``(batch,)``; writes into ``slack``."""
    slack.detach().masked_fill_(targets == 0, 0.0)  # a masked class has an infinite slack
    share = slack.detach().sign().clamp_min_(0).mul_(targets.to(slack.dtype))
    return slack.mul_(share).sum(1)


def _means_for_each_class(scores: Tensor, k: int) -> Tensor:
    """For every class c, the mean of the k largest of ``scores + 1``, with no + 1 for c itself.

    Class c is included or not, whichever makes the sum larger.
    """
    top = (scores + 1).topk(k + 1)
    in_set = torch.zeros_like(scores, dtype=torch.bool).scatter_(1, top.indices[:, :k], True)
    fewer = top.values[:, : k - 1].sum(1, keepdim=True)  # the k - 1 largest
    last, following = top.values[:, k - 1 : k], top.values[:, k:]
    without_own = (fewer + last - 1 - scores).where(in_set, fewer)  # k - 1 largest except c
    rival = following.where(in_set, last)  # the k-th largest except c
    return (without_own + rival.maximum(scores)) / k


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
        k: Size of the set, ``1 <= k < classes``, at most 600. Memory grows with its square.
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
    if k > LARGEST_K:
        raise ValueError(f"k must be at most {LARGEST_K} here, got {k}; noised_top_k takes any k")
    evaluate = _smooth_mixture if labels.is_floating_point() else _smooth_value_and_gradient
    values, gradient = evaluate(scores, labels, k, tau, margin)
    return with_gradients(values, (scores, gradient))


@torch.no_grad()
def _smooth_value_and_gradient(
    scores: Tensor, labels: Tensor, k: int, tau: float, margin: float
) -> tuple[Tensor, Tensor]:
    """Losses ``(rows,)`` and their gradients ``(rows, classes)``, from the same expansion.

    The argument of the softplus is a small difference of large numbers when tau is small, so
    whatever has one value per row is computed in float64.
    """
    index = labels.unsqueeze(1)
    own, others = scores.gather(1, index), scores.scatter(1, index, -torch.inf)
    result = subsets(others, own, k, 1 / (k * tau))
    argument = result.log_ratio + margin / tau
    pull = (torch.sigmoid(argument) / k).to(scores.dtype)
    gradient = result.inclusion_less().mul_(pull).scatter_(1, index, -pull)
    values = tau * softplus(argument)
    return values.squeeze(1).to(scores.dtype), gradient


@torch.no_grad()
def _smooth_mixture(
    scores: Tensor, targets: Tensor, k: int, tau: float, margin: float
) -> tuple[Tensor, Tensor]:
    """``sum_c t_c loss(., c)`` over the positive targets, a bounded number at a time."""
    values, gradient = torch.zeros_like(scores[:, 0]), torch.zeros_like(scores)
    for pairs in torch.split((targets != 0).nonzero(), MIXTURE_ROWS):
        rows, labels = pairs.unbind(1)
        share = targets[rows, labels].to(scores.dtype)
        value, slope = _smooth_value_and_gradient(scores[rows], labels, k, tau, margin)
        values.index_add_(0, rows, share * value)
        gradient.index_add_(0, rows, slope.mul_(share.unsqueeze(1)))
    return values, gradient


TopKHinge = module_of(top_k_hinge)
ConvexTopKHinge = module_of(convex_top_k_hinge)
CalibratedTopKHinge = module_of(calibrated_top_k_hinge)
SmoothTopK = module_of(smooth_top_k)
