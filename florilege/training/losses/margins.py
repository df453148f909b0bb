"""Margins that are larger for rarer classes, and cross-entropy with them."""

import torch
from torch import Tensor

from florilege.training.losses.arguments import ClassCounts, checked, count_classes
from florilege.training.losses.base import mix, module_of, softplus, with_gradients

FLOOR = -70.0  # a class this far below the best adds less than 1e-30 to any sum


def class_margins(class_counts: ClassCounts, max_margin: float, scores: Tensor) -> Tensor:
    r"""Margins :math:`m_y = C / n_y^{1/4}`, ``max_margin`` for the rarest class, ``(classes,)``.

    They have the precision of ``scores``, which is why losses keep counts and not margins.
    """
    counts = count_classes(class_counts)
    if counts.shape != scores.shape[-1:]:
        raise ValueError(
            f"class_counts must have one entry for each of {scores.shape[-1]} classes, "
            f"got {counts.numel()}"
        )
    rarity = counts.amin() / counts.to(scores.device, scores.dtype)
    return max_margin * rarity.pow(0.25)


def ldam(
    logits: Tensor,
    labels: Tensor,
    *,
    class_counts: ClassCounts,
    max_margin: float = 0.5,
    scale: float = 30.0,
) -> Tensor:
    r"""LDAM (label-distribution-aware margin): cross-entropy with margins for rare classes.

    .. math::
        \ell(s, y) = -\log \frac{e^{c (s_y - m_y)}}{e^{c (s_y - m_y)} + \sum_{j \ne y} e^{c s_j}},
        \quad m_y = m_{max} (n_{min} / n_y)^{1/4}

    For long-tailed data with a cosine head, whose scores lie in [-1, 1]. Its twin
    ``imbalanced_noised_top_k`` has the same margins in a top-k hinge. With integer labels a second
    derivative is refused.

    Args:
        class_counts: Training images per class, or the data set to count.
        max_margin: Margin of the rarest class, at least 0, in units of the cosine. [N] finds
            0.2 on Pl@ntNet-300K; the authors use 0.5 on small data and 0.3 on iNaturalist.
        scale: :math:`c`, positive; multiplies the scores and the margin. 30 is robust; [N]
            tuned it to 40. With a linear head, whose scores are already wide, take 1.

    References:
        Cao et al., "Learning imbalanced datasets with label-distribution-aware margin loss",
        NeurIPS 2019; [N] table 1, where the scale of the authors' code is missing.

    Example:
        >>> import torch
        >>> ldam(torch.zeros(1, 2), torch.tensor([0]), class_counts=[1, 16], scale=1)
        tensor([0.9741])
    """
    scores, labels = checked(logits, labels, max_margin=max_margin, scale=scale)
    shifts = class_margins(class_counts, -max_margin * scale, scores)  # of the scaled label
    if labels.is_floating_point():
        return _mixture(scores * scale, labels.to(scores.dtype), shifts)
    entropy, gradient = _margin_entropy(scores, labels.unsqueeze(1), shifts, scale)
    return with_gradients(entropy, (scores, gradient), factor=scale)


@torch.no_grad()
def _margin_entropy(
    scores: Tensor, index: Tensor, shifts: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Cross-entropy of scaled scores, that of the label shifted.

    The second result times ``scale`` is the gradient. Written out because scores scaled by 30
    give probabilities below 1e-38, and processors are ten times slower on those denormal
    numbers; here none is below ``exp(FLOOR)`` over the number of classes.
    """
    work = scores * scale
    work.scatter_add_(1, index, shifts[index])
    best = work.amax(1, keepdim=True)
    own = work.gather(1, index) - best
    gradient = torch.maximum(work, best + FLOOR, out=work).softmax(1)
    entropy = own.clamp_min(FLOOR) - own - gradient.gather(1, index).log_()
    return entropy.squeeze(1), gradient.scatter_(1, index, -1.0, reduce="add")


def _mixture(scores: Tensor, targets: Tensor, shifts: Tensor) -> Tensor:
    """``sum_c t_c ldam(., c)`` in one pass: the sum over the others is the whole sum less c.

    For the largest class that difference would cancel, so its sum is taken without it.
    """
    log_sum = scores.logsumexp(1, keepdim=True)
    best = scores.argmax(1, keepdim=True)
    share = (scores - log_sum).exp().scatter(1, best, 0.0)
    without_best = scores.scatter(1, best, -torch.inf).logsumexp(1, keepdim=True)
    others = (log_sum + torch.log1p(-share)).scatter(1, best, without_best)
    values = softplus(others - scores - shifts)
    return mix(values, targets)


Ldam = module_of(ldam, head="cosine")
