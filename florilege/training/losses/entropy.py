"""Cross-entropies, of the softmax or of each class alone.

Of the softmax: easy examples or doubtful labels weigh less, or rare classes get larger margins.
Binary ones know one positive class; they differ in what they assume of the others.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from florilege.training.losses.arguments import (
    BatchLabels,
    ClassCounts,
    check_average_k,
    check_parameters,
    checked,
    count_classes,
    working,
)
from florilege.training.losses.base import (
    mean_over_ranks,
    mix,
    over_ranks,
    softplus,
    with_gradients,
)


def cross_entropy(
    logits: Tensor,
    labels: Tensor,
    *,
    label_smoothing: float = 0.0,
    weight: Tensor | None = None,
) -> Tensor:
    r"""Cross-entropy, the baseline; average-K thresholds the softmax of its logits.

    .. math:: \ell(s, y) = -\log \frac{e^{s_y}}{\sum_j e^{s_j}}

    Args:
        label_smoothing: Share of the target spread evenly over all classes, in ``[0, 1)``.
        weight: One weight per class, ``(classes,)``, as in ``torch.nn.CrossEntropyLoss``: the
            smoothed share of a label carries the weight of the class it is spread to.

    References:
        [A] eq. 3. Eq. 4 there prints the gradient of the softmax instead of this one's,
        which is ``softmax - onehot``.

    Example:
        >>> import torch
        >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2]))
        tensor([1.3863])
    """
    scores, labels = checked(logits, labels, label_smoothing=label_smoothing)
    return F.cross_entropy(
        scores,
        labels.to(scores.dtype) if labels.is_floating_point() else labels,
        weight=None if weight is None else weight.to(scores.dtype),
        reduction="none",
        label_smoothing=label_smoothing,
    )


def focal(logits: Tensor, labels: Tensor, *, gamma: float = 2.0) -> Tensor:
    r"""Focal loss: cross-entropy that down-weights examples the network is already sure of.

    .. math:: \ell(s, y) = (1 - p_y)^\gamma \, (-\log p_y), \quad p = \mathrm{softmax}(s)

    Use it when easy examples of frequent classes drown the others. Its twin ``ldam`` asks rare
    classes for a margin instead.

    Args:
        gamma: How strongly easy examples are down-weighted, at least 0; 0 is cross-entropy.

    References:
        Lin et al., "Focal loss for dense object detection", ICCV 2017. The row of [N] table 1
        prints :math:`(1 - \log \ell_{CE})^\gamma` and swaps the citations with LDAM's. Class
        weights stay outside p, unlike in the authors' code.

    Example:
        >>> import torch
        >>> focal(torch.zeros(1, 4), torch.tensor([2]))
        tensor([0.7798])
    """
    scores, labels = checked(logits, labels, gamma=gamma)
    if not labels.is_floating_point():
        return _fade(F.cross_entropy(scores, labels, reduction="none"), gamma)
    return mix(_fade(-F.log_softmax(scores, dim=1), gamma), labels)


def _fade(entropy: Tensor, gamma: float) -> Tensor:
    """``(1 - p) ** gamma * -log p`` from ``-log p``, with a finite slope where p rounds to 1.

    The upper bound gives the power of an infinite entropy slope 0; otherwise the gradient of an
    ignored row, 0, would become NaN.
    """
    limits = torch.finfo(entropy.dtype)
    entropy = entropy.clamp_min(limits.tiny)
    return (-torch.expm1(-entropy.clamp_max(limits.max))).pow(gamma) * entropy


def generalised_cross_entropy(logits: Tensor, labels: Tensor, *, q: float = 0.7) -> Tensor:
    r"""Generalised cross-entropy: down-weights examples whose label the network doubts.

    .. math:: \ell(s, y) = \frac{1 - p_y^q}{q}, \quad p = \mathrm{softmax}(s)

    Its gradient is :math:`p_y^q` times that of cross-entropy, and no label costs more than 1/q:
    use it when some labels are wrong. ``focal`` does the opposite.

    Args:
        q: How strongly doubtful labels are down-weighted, in ``(0, 1]``. Towards 0 it becomes
            cross-entropy; at 1 it is :math:`1 - p_y`, which tolerates most and learns slowest.

    References:
        Zhang and Sabuncu, "Generalized cross entropy loss for training deep neural networks
        with noisy labels", NeurIPS 2018, eq. 6; without the truncation of its section 3.4.

    Example:
        >>> import torch
        >>> generalised_cross_entropy(torch.zeros(1, 4), torch.tensor([2]), q=0.5)
        tensor([1.])
    """
    scores, labels = checked(logits, labels, q=q)
    if not labels.is_floating_point():
        return _bound(F.cross_entropy(scores, labels, reduction="none"), q)
    return mix(_bound(-F.log_softmax(scores, dim=1), q), labels)


def _bound(entropy: Tensor, q: float) -> Tensor:
    """``(1 - p ** q) / q`` from ``-log p``.

    ``expm1`` is exact where p is near 1 or q near 0. Its slope comes from its value plus 1, which
    rounds to 0 for the small p that ``exp`` keeps.
    """
    power = -q * entropy
    return torch.where(power > -1, -torch.expm1(power), 1 - torch.exp(power)) / q


# A class this far below the best adds less than 1e-30 to any sum.
FLOOR = -70.0


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
        class_counts: Training images of each class, ``(classes,)``, at least 1; a run counts them.
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
    # Exact for a label below the floor too: by how much the floor raised it is put back.
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
    # The softplus of -inf is 0, and so is its slope.
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
        weighted = labels if weight is None else labels.to(scores.dtype) * weight.to(scores.dtype)
        return mean_over_ranks(_positive(scores, weighted), shares), shares
    values = _positive(scores, labels).where(batch.counted, 0.0)
    return mean_over_ranks(shares * values, shares), batch.counted.to(scores.dtype)


def _surplus(positives: Tensor, counts: Tensor, average_k: float, classes: int) -> Tensor:
    """Mean number of positive classes over the counted rows, minus K; 0 without such rows."""
    check_average_k(average_k, classes)
    mean = mean_over_ranks(positives.where(counts > 0, 0.0), counts)
    total = over_ranks(counts.sum())
    # In the type of the mean: a bool would give torch's default type.
    return mean - average_k * (total > 0).to(mean.dtype)


def _positive(scores: Tensor, labels: Tensor) -> Tensor:
    if labels.is_floating_point():
        return mix(softplus(-scores), labels)
    return softplus(-scores.gather(1, labels.unsqueeze(1)).squeeze(1))
