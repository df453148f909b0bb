"""Three top-k hinge losses that compare the true class with different scores."""

import torch
from torch import Tensor

from florilege.training.losses.arguments import checked
from florilege.training.losses.base import module_of


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


TopKHinge = module_of(top_k_hinge)
ConvexTopKHinge = module_of(convex_top_k_hinge)
CalibratedTopKHinge = module_of(calibrated_top_k_hinge)
