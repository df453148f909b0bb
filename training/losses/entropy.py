"""Cross-entropy and its variant that looks away from easy examples."""

from typing import Unpack

import torch
from torch import Tensor
from torch.nn import functional as F

from training.losses.base import ExampleLoss, Options, mix
from training.losses.inputs import check_at_least, check_batch, check_number, working


def cross_entropy(logits: Tensor, labels: Tensor, *, label_smoothing: float = 0.0) -> Tensor:
    r"""Cross-entropy, the baseline; the softmax of its logits is what average-K thresholds.

    .. math:: \ell(s, y) = -\log \frac{e^{s_y}}{\sum_j e^{s_j}}

    Args:
        logits: Raw class scores, shape ``(batch, classes)``, floating point.
        labels: True class indices, int64 ``(batch,)``, or soft targets ``(batch, classes)``.
        label_smoothing: Share of the target spread evenly over all classes, in ``[0, 1)``.

    Returns:
        One loss per example, shape ``(batch,)``; float32 for half-precision logits.

    Raises:
        ValueError: ``label_smoothing`` outside its range, or tensors that do not fit.

    References:
        [A] eq. 3. Eq. 4 there prints the gradient of the softmax instead of this one's,
        which is ``softmax - onehot``.

    Example:
        >>> import torch
        >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2]))
        tensor([1.3863])
    """
    labels = check_batch(logits, labels)
    _check_smoothing(label_smoothing)
    scores = working(logits)
    targets = labels.to(scores.dtype) if labels.is_floating_point() else labels
    return F.cross_entropy(scores, targets, reduction="none", label_smoothing=label_smoothing)


class CrossEntropy(ExampleLoss):
    """Module of :func:`cross_entropy`; the options behave as in ``torch.nn.CrossEntropyLoss``."""

    def __init__(
        self,
        *,
        label_smoothing: float = 0.0,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        _check_smoothing(label_smoothing)
        self.label_smoothing = label_smoothing

    def weighted(self, logits: Tensor, labels: Tensor, weight: Tensor | None) -> Tensor:
        """The spread share of a smoothed label carries the weight of the class it goes to."""
        scores = working(logits)
        return F.cross_entropy(
            scores,
            labels.to(scores.dtype) if labels.is_floating_point() else labels,
            weight=None if weight is None else weight.to(scores.dtype),
            reduction="none",
            label_smoothing=self.label_smoothing,
        )


def _check_smoothing(label_smoothing: float) -> None:
    check_number("label_smoothing", label_smoothing)
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must be in [0, 1), got {label_smoothing}")


def focal(logits: Tensor, labels: Tensor, *, gamma: float = 2.0) -> Tensor:
    r"""Focal loss: cross-entropy that counts an example less the surer it already is.

    .. math:: \ell(s, y) = (1 - p_y)^\gamma \, (-\log p_y), \quad p = \mathrm{softmax}(s)

    Use it when easy examples of frequent classes drown the others. Its twin ``ldam`` asks rare
    classes for a margin instead.

    Args:
        logits: Raw class scores, shape ``(batch, classes)``, floating point.
        labels: True class indices, int64 ``(batch,)``, or soft targets ``(batch, classes)``.
        gamma: How much sure examples fade, at least 0; 0 is cross-entropy.

    Returns:
        One loss per example, shape ``(batch,)``; float32 for half-precision logits.

    Raises:
        ValueError: ``gamma`` out of range, or tensors that do not fit.

    References:
        Lin et al., "Focal loss for dense object detection", ICCV 2017. The row of [N] table 1
        prints :math:`(1 - \log \ell_{CE})^\gamma` and swaps the citations with LDAM's. Class
        weights stay outside of p, unlike in the authors' code.

    Example:
        >>> import torch
        >>> focal(torch.zeros(1, 4), torch.tensor([2]))
        tensor([0.7798])
    """
    labels = check_batch(logits, labels)
    check_at_least("gamma", gamma, 0)
    scores = working(logits)
    if not labels.is_floating_point():
        return _fade(F.cross_entropy(scores, labels, reduction="none"), gamma)
    return mix(_fade(-F.log_softmax(scores, dim=1), gamma), labels)


def _fade(entropy: Tensor, gamma: float) -> Tensor:
    """``(1 - p) ** gamma * -log p`` from ``-log p``, with a finite slope where p rounds to 1.

    The power of an infinite entropy has slope 0 by the upper bound: an ignored row's gradient
    of 0 would become NaN in it.
    """
    limits = torch.finfo(entropy.dtype)
    entropy = entropy.clamp_min(limits.tiny)
    return (-torch.expm1(-entropy.clamp_max(limits.max))).pow(gamma) * entropy


class Focal(ExampleLoss):
    """Module of :func:`focal`."""

    def __init__(self, *, gamma: float = 2.0, **options: Unpack[Options]) -> None:
        super().__init__(**options)
        check_at_least("gamma", gamma, 0)
        self.gamma = gamma

    def per_example(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Values of :func:`focal`."""
        return focal(logits, labels, gamma=self.gamma)
