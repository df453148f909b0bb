"""Top-k hinge losses: three that compare the true class with different scores, and two that average
the k-th largest score over noise."""

from typing import Any, Final, Literal, NamedTuple, TypeAlias

import torch
from torch import Generator, Tensor

from florilege.training.losses.arguments import ClassCounts, check_parameters, checked, on_host
from florilege.training.losses.base import refuse_second_derivative
from florilege.training.losses.entropy import class_margins

Sharing: TypeAlias = Literal["per_sample", "shared"]
_SAMPLES: Final = 5
"""The default number of noise vectors."""
MOST_NUMBERS: Final = 2**26  # of noise at once: 256 MiB


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
        # A class among the k largest has the (k+1)-th as its k-th rival, another one the k-th.
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
    return _hinge(scores, labels, scores.topk(k + 1).values[:, -1])


def _hinge(scores: Tensor, labels: Tensor, rival: Tensor, margins: Tensor | float = 1.0) -> Tensor:
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
    # On detached views, so that autograd records the last product alone, whose slope is the share.
    # A masked class has an infinite slack, and 0 times that is NaN.
    slack.detach().masked_fill_(targets == 0, 0.0)
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


class _Rank(NamedTuple):
    """The rank of a score and the noise to average over."""

    k: int
    epsilon: float
    noise_samples: int
    sharing: Sharing
    generator: Generator | None
    noise: Tensor | None


def noised_top_k(
    logits: Tensor,
    labels: Tensor,
    *,
    k: int = 5,
    epsilon: float = 0.2,
    noise_samples: int = _SAMPLES,
    sharing: Sharing = "per_sample",
    generator: Generator | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    r"""Noised top-k loss: the calibrated hinge with its (k+1)-th score averaged over noise.

    .. math::
        \ell(s, y) = \max\Big(0,\; 1 + \frac1B \sum_{b=1}^B (s + \epsilon Z_b)_{[k+1]}
            - s_y\Big), \quad Z_b \sim \mathcal N(0, I)

    Top-k calibrated, cheap for any k, and trainable where ``calibrated_top_k_hinge`` is
    not: the noise spreads the gradient over the classes near the cut. ``smooth_top_k`` reaches
    every class instead. For long-tailed data see ``imbalanced_noised_top_k``. A second derivative
    is refused: that of a sample is 0, unlike that of the expectation.

    Args:
        labels: All classes of a soft target see the same noise.
        k: Size of the set, ``1 <= k < classes``.
        epsilon: Size of the noise, positive, in units of the logits. [N] uses 0.2 on
            CIFAR-100, [N2] 0.5 on ImageNet, [S] 1.0 on Pl@ntNet-300K; below 0.01 nothing is
            learnt.
        noise_samples: :math:`B`, at least 1; 3 to 10 are enough ([N] section 4.2).
        sharing: ``"per_sample"`` draws noise for every row, as the authors' code does;
            ``"shared"`` draws B vectors for the whole batch, as the paper says: much cheaper.
        generator: Source of the noise, for reproducible runs.
        noise: The noise itself, ``(samples, batch, classes)``, finite. Then nothing is drawn, and
            ``noise_samples`` must be left out or be the number of samples given.

    References:
        [N] eq. 10; the gradient is eq. 12, which at fixed noise is the gradient of eq. 10. At
        a slack of exactly 0 the gradient is 0, where eq. 12 has an indicator with >=.

    Example:
        >>> import torch
        >>> logits, zero = torch.tensor([[3.0, 1.0, 0.5, -1.0]]), torch.zeros(1, 1, 4)
        >>> noised_top_k(logits, torch.tensor([1]), k=2, noise=zero)
        tensor([0.5000])
    """
    scores, labels = checked(logits, labels, k=k)
    rank = _Rank(k + 1, epsilon, noise_samples, sharing, generator, noise)
    return _noised_hinge(scores, labels, rank, 1.0)


def imbalanced_noised_top_k(
    logits: Tensor,
    labels: Tensor,
    *,
    class_counts: ClassCounts,
    k: int = 5,
    epsilon: float = 0.01,
    noise_samples: int = _SAMPLES,
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
        class_counts: Training images of each class, ``(classes,)``, at least 1; a run counts them.
        k: Size of the set, ``1 <= k < classes``.
        epsilon: Size of the noise, positive, in units of the cosine.
        max_margin: Margin of the rarest class, at least 0; 0.2 on Pl@ntNet-300K.
        scale: :math:`c`, positive; 60 in [N], 50 as a default in [N2]. With a linear head
            take 1, and margin and epsilon in units of its logits.
        noise_samples, sharing, generator, noise: As in :func:`noised_top_k`.

    References:
        [N] eq. 13. The paper multiplies the scores by the scale; the authors' code, like this,
        multiplies the whole hinge, margin and noise included.

    Example:
        >>> import torch
        >>> logits, zero = torch.tensor([[0.5, 0.1, 0.0]]), torch.zeros(1, 1, 3)
        >>> imbalanced_noised_top_k(
        ...     logits, torch.tensor([1]), class_counts=[16, 1, 16], k=1, noise=zero)
        tensor([12.])
    """
    scores, labels = checked(logits, labels, k=k, max_margin=max_margin, scale=scale)
    margins = class_margins(class_counts, max_margin, scores)
    rank = _Rank(k + 1, epsilon, noise_samples, sharing, generator, noise)
    return scale * _noised_hinge(scores, labels, rank, margins)


def _noised_hinge(scores: Tensor, labels: Tensor, rank: _Rank, margins: Tensor | float) -> Tensor:
    if labels.is_floating_point():
        return _hinge(scores, labels, _kth_largest(scores, None, rank), margins)
    margin = margins[labels] if isinstance(margins, Tensor) else margins
    return (margin + _kth_largest(scores, labels, rank)).clamp_min(0)


def _kth_largest(scores: Tensor, labels: Tensor | None, rank: _Rank) -> Tensor:
    """Mean k-th largest score under noise, less the score of the label if labels are given."""
    check_parameters(epsilon=rank.epsilon, noise_samples=rank.noise_samples, sharing=rank.sharing)
    if rank.noise is not None:
        _check_given_noise(rank.noise, scores, rank.noise_samples)
        rank = rank._replace(noise_samples=rank.noise.shape[0])
    result: Tensor = _NoisedKthLargest.apply(scores, labels, rank)
    return result


class _NoisedKthLargest(torch.autograd.Function):
    """All samples in one draw and one ``topk``, or in several where they would fill the memory.

    Only counts of wins are kept for the backward pass. The score of the label is subtracted here,
    which saves a second dense gradient.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, labels: Tensor | None, rank: _Rank) -> Tensor:
        total, wins = torch.zeros_like(scores[:, 0]), torch.zeros_like(scores)
        at_once = max(1, MOST_NUMBERS // scores.numel()) if scores.numel() else 1
        for start in range(0, rank.noise_samples, at_once):
            top = _noisy(scores, rank, start, min(at_once, rank.noise_samples - start)).topk(rank.k)
            total += top.values[..., -1].sum(0)
            winners = top.indices[..., -1].T  # (batch, samples)
            wins.scatter_add_(1, winners, wins.new_ones(()).expand(winners.shape))
        mean = total / rank.noise_samples
        if labels is not None:
            own = labels.unsqueeze(1)
            mean -= scores.gather(1, own).squeeze(1)
            wins.scatter_add_(1, own, wins.new_full((), -rank.noise_samples).expand(own.shape))
        ctx.save_for_backward(wins)
        ctx.noise_samples = rank.noise_samples
        return mean

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative()
        (wins,) = ctx.saved_tensors  # how often each class came k-th
        return wins * (grad / ctx.noise_samples).unsqueeze(1), None, None


def _noisy(scores: Tensor, rank: _Rank, start: int, samples: int) -> Tensor:
    """Scores with noise, ``(samples, batch, classes)``."""
    if rank.noise is not None:
        draws = rank.noise[start : start + samples].to(scores)
        return torch.add(scores, draws, alpha=rank.epsilon)
    rows = 1 if rank.sharing == "shared" else len(scores)
    # contiguous, whatever the strides of the scores: with others a seed would give other noise
    noise = scores.new_empty((samples, rows, scores.shape[1])).normal_(generator=rank.generator)
    if rows == len(scores):
        return noise.mul_(rank.epsilon).add_(scores)
    return torch.add(scores, noise, alpha=rank.epsilon)


def _check_given_noise(noise: Tensor, scores: Tensor, samples: int) -> None:
    rows, classes = scores.shape
    if noise.dim() != 3 or not len(noise) or noise.shape[1:] not in ((rows, classes), (1, classes)):
        raise ValueError(
            f"noise must have shape (noise_samples, {rows}, {classes}) with at least one sample, "
            f"got {tuple(noise.shape)}"
        )
    if samples not in (_SAMPLES, noise.shape[0]):
        raise ValueError(
            f"noise_samples must be {noise.shape[0]}, as many as noise holds, or left out, "
            f"got {samples}"
        )
    if on_host(noise) and not bool(torch.isfinite(noise).all()):
        raise ValueError("noise must be finite, got NaN or infinity")
