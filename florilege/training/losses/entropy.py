"""Cross-entropy, and variants that down-weight easy examples or doubtful labels."""

import torch
from torch import Tensor
from torch.nn import functional as F

from florilege.training.losses.arguments import checked
from florilege.training.losses.base import ExampleLoss, mix, module_of


def cross_entropy(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    r"""Cross-entropy, the baseline; average-K thresholds the softmax of its logits.

    .. math:: \ell(s, y) = -\log \frac{e^{s_y}}{\sum_j e^{s_j}}

    Args:
        label_smoothing: Share of the target spread evenly over all classes, in ``[0, 1)``.

    References:
        [A] eq. 3. Eq. 4 there prints the gradient of the softmax instead of this one's,
        which is ``softmax - onehot``.

    Example:
        >>> import torch
        >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2]))
        tensor([1.3863])
    """
    scores, labels = checked(logits, labels, label_smoothing=label_smoothing)
    targets = labels.to(scores.dtype) if labels.is_floating_point() else labels
    return F.cross_entropy(scores, targets, reduction="none", label_smoothing=label_smoothing)


class CrossEntropy(ExampleLoss, function=cross_entropy):
    """Module of :func:`cross_entropy`; the options work as in ``torch.nn.CrossEntropyLoss``."""

    label_smoothing: float

    def weighted(self, logits: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        """The smoothed share of a label carries the weight of the class it is spread to."""
        scores, labels = checked(logits, labels)
        return F.cross_entropy(
            scores,
            labels.to(scores.dtype) if labels.is_floating_point() else labels,
            weight=None if weight is None else weight.to(scores.dtype),
            reduction="none",
            label_smoothing=self.label_smoothing,
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


Focal = module_of(focal)


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


GeneralisedCrossEntropy = module_of(generalised_cross_entropy)
