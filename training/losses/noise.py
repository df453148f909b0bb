"""Hinge losses whose top-k score is averaged over noise, balanced and for long tails."""

from typing import ClassVar, Unpack

from torch import Generator, Tensor

from training.losses.base import ExampleLoss, Head, Options
from training.losses.hinges import hinge
from training.losses.inputs import (
    ClassCounts,
    check_at_least,
    check_batch,
    check_k,
    check_positive,
    count_classes,
    working,
)
from training.losses.margins import class_margins
from training.losses.perturbation import SAMPLES, Rank, Sharing, check_noise, kth_largest


def noised_top_k(
    logits: Tensor,
    labels: Tensor,
    *,
    k: int = 5,
    epsilon: float = 0.2,
    noise_samples: int = SAMPLES,
    sharing: Sharing = "per_sample",
    generator: Generator | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    r"""Noised top-k loss: the calibrated hinge with its (k+1)-th score averaged over noise.

    .. math::
        \ell(s, y) = \max\Big(0,\; 1 + \frac1B \sum_{b=1}^B (s + \epsilon Z_b)_{[k+1]}
            - s_y\Big), \quad Z_b \sim \mathcal N(0, I)

    Top-k calibrated, cheap whatever k is, and trainable where ``calibrated_top_k_hinge`` is
    not: the noise spreads the gradient over the classes near the cut. ``smooth_top_k`` reaches
    every class instead. For long-tailed data see ``imbalanced_noised_top_k``.

    Args:
        logits: Raw class scores, shape ``(batch, classes)``, floating point.
        labels: True class indices, int64 ``(batch,)``, or soft targets ``(batch, classes)``;
            all classes of a soft target see the same noise.
        k: Size of the set, ``1 <= k < classes``.
        epsilon: Size of the noise, positive, in units of the logits. [N] uses 0.2 on
            CIFAR-100, [N2] 0.5 on ImageNet, [S] 1.0 on Pl@ntNet-300K; below 0.01 nothing is
            learnt.
        noise_samples: :math:`B`, at least 1; 3 to 10 do ([N] section 4.2).
        sharing: ``"per_sample"`` draws noise for every row, as the authors' code does;
            ``"shared"`` draws B vectors for the whole batch, as the paper says: much cheaper.
        generator: Source of the noise, for reproducible runs.
        noise: The noise itself, ``(samples, batch, classes)``, finite; nothing is drawn then,
            and a ``noise_samples`` other than the default must be their number.

    Returns:
        One loss per example, shape ``(batch,)``; float32 for half-precision logits. A
        second derivative is refused: that of a sample is 0 and not that of the expectation.

    Raises:
        ValueError: A parameter out of range, or tensors that do not fit.

    References:
        [N] eq. 10; the gradient is eq. 12, which at fixed noise is the gradient of eq. 10. At
        a slack of exactly 0 the gradient is 0, where eq. 12 has an indicator with >=.

    Example:
        >>> import torch
        >>> logits, zero = torch.tensor([[3.0, 1.0, 0.5, -1.0]]), torch.zeros(1, 1, 4)
        >>> noised_top_k(logits, torch.tensor([1]), k=2, noise=zero)
        tensor([0.5000])
    """
    labels = check_batch(logits, labels)
    check_k(k, logits.shape[1])
    scores = working(logits)
    rank = Rank(k + 1, epsilon, noise_samples, sharing, generator, noise)
    return _noised_hinge(scores, labels, rank, 1.0)


def imbalanced_noised_top_k(
    logits: Tensor,
    labels: Tensor,
    *,
    class_counts: ClassCounts,
    k: int = 5,
    epsilon: float = 0.01,
    noise_samples: int = SAMPLES,
    max_margin: float = 0.2,
    scale: float = 60.0,
    sharing: Sharing = "per_sample",
    generator: Generator | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    r"""Noised top-k loss for long tails: a margin per class, larger for rare ones.

    .. math::
        \ell(s, y) = c \max\Big(0,\; m_y + \frac1B \sum_{b=1}^B (s + \epsilon Z_b)_{[k+1]}
            - s_y\Big), \quad m_y = m_{max} (n_{min} / n_y)^{1/4}

    For a cosine head. Its twin ``noised_top_k`` has margin 1 for every class and no scale.

    Args:
        logits: Scores of a cosine head, shape ``(batch, classes)``, floating point.
        labels: True class indices, int64 ``(batch,)``, or soft targets ``(batch, classes)``.
        class_counts: Training images per class, or the data set to count.
        k: Size of the set, ``1 <= k < classes``.
        epsilon: Size of the noise, positive, in units of the cosine.
        noise_samples: As in :func:`noised_top_k`.
        max_margin: Margin of the rarest class, at least 0; 0.2 on Pl@ntNet-300K.
        scale: :math:`c`, positive; 60 in [N], 50 as a default in [N2]. With a linear head
            take 1, and margin and epsilon in units of its logits.
        sharing: As in :func:`noised_top_k`.
        generator: As in :func:`noised_top_k`.
        noise: As in :func:`noised_top_k`.

    Returns:
        One loss per example, shape ``(batch,)``; float32 for half-precision logits.

    Raises:
        ValueError: A parameter out of range, a class without images, tensors that do not fit.

    References:
        [N] eq. 13. Where the paper multiplies the scores by the scale, the authors' code
        multiplies the whole hinge, margin and noise included; so does this.

    Example:
        >>> import torch
        >>> logits, zero = torch.tensor([[0.5, 0.1, 0.0]]), torch.zeros(1, 1, 3)
        >>> imbalanced_noised_top_k(
        ...     logits, torch.tensor([1]), class_counts=[16, 1, 16], k=1, noise=zero)
        tensor([12.])
    """
    labels = check_batch(logits, labels)
    check_k(k, logits.shape[1])
    check_at_least("max_margin", max_margin, 0)
    check_positive("scale", scale)
    scores = working(logits)
    margins = class_margins(count_classes(class_counts), max_margin, scores)
    rank = Rank(k + 1, epsilon, noise_samples, sharing, generator, noise)
    return scale * _noised_hinge(scores, labels, rank, margins)


def _noised_hinge(scores: Tensor, labels: Tensor, rank: Rank, margins: Tensor | float) -> Tensor:
    if labels.is_floating_point():
        return hinge(scores, labels, kth_largest(scores, None, rank), margins)
    margin = margins[labels] if isinstance(margins, Tensor) else margins
    return (margin + kth_largest(scores, labels, rank)).clamp_min(0)


class NoisedTopK(ExampleLoss):
    """Module of :func:`noised_top_k`."""

    def __init__(
        self,
        *,
        k: int = 5,
        epsilon: float = 0.2,
        noise_samples: int = SAMPLES,
        sharing: Sharing = "per_sample",
        generator: Generator | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(**options)
        check_k(k)
        check_noise(epsilon, noise_samples, sharing)
        if not isinstance(generator, Generator | None):
            raise ValueError(f"generator must be a torch.Generator, got {generator!r}")
        self.k = k
        self.epsilon = epsilon
        self.noise_samples = noise_samples
        self.sharing: Sharing = sharing
        self.generator = generator

    def per_example(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Values of :func:`noised_top_k`, with new noise at each call."""
        return noised_top_k(
            logits,
            labels,
            k=self.k,
            epsilon=self.epsilon,
            noise_samples=self.noise_samples,
            sharing=self.sharing,
            generator=self.generator,
        )


class ImbalancedNoisedTopK(NoisedTopK):
    """Module of :func:`imbalanced_noised_top_k`."""

    head: ClassVar[Head] = "cosine"

    class_counts: Tensor

    def __init__(
        self,
        *,
        class_counts: ClassCounts,
        k: int = 5,
        epsilon: float = 0.01,
        noise_samples: int = SAMPLES,
        max_margin: float = 0.2,
        scale: float = 60.0,
        sharing: Sharing = "per_sample",
        generator: Generator | None = None,
        **options: Unpack[Options],
    ) -> None:
        super().__init__(
            k=k,
            epsilon=epsilon,
            noise_samples=noise_samples,
            sharing=sharing,
            generator=generator,
            **options,
        )
        check_at_least("max_margin", max_margin, 0)
        check_positive("scale", scale)
        self.register_buffer("class_counts", count_classes(class_counts))
        self.max_margin = max_margin
        self.scale = scale

    def per_example(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Values of :func:`imbalanced_noised_top_k`, with new noise at each call."""
        return imbalanced_noised_top_k(
            logits,
            labels,
            class_counts=self.class_counts,
            k=self.k,
            epsilon=self.epsilon,
            noise_samples=self.noise_samples,
            max_margin=self.max_margin,
            scale=self.scale,
            sharing=self.sharing,
            generator=self.generator,
        )
