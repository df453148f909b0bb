"""The k-th largest score averaged over noise, one sample at a time."""

from typing import Any, Final, Literal, NamedTuple, TypeAlias

import torch
from torch import Generator, Tensor

from training.losses.derivatives import first_derivative_only
from training.losses.inputs import check_matrix, check_positive, is_integer, working

Sharing: TypeAlias = Literal["per_sample", "shared"]
SAMPLES: Final = 5
"""Noise vectors where nothing is said."""


def noised_kth_largest(
    scores: Tensor,
    *,
    k: int,
    epsilon: float,
    noise_samples: int = SAMPLES,
    sharing: Sharing = "per_sample",
    generator: Generator | None = None,
    noise: Tensor | None = None,
) -> Tensor:
    r"""Mean k-th largest score under noise, the operator :math:`\widehat{top}_{k,\epsilon,B}`.

    The k-th score itself: with k = 2 it is the worked example of [N], whereas the losses with
    k = 2 use ``k=3`` here.

    Args:
        scores: Shape ``(batch, classes)``, floating point.
        k: Rank, ``1 <= k <= classes``.
        epsilon: Size of the noise, positive.
        noise_samples: Noise vectors, at least 1.
        sharing: ``"per_sample"`` or ``"shared"``.
        generator: Source of the noise.
        noise: ``(samples, batch, classes)`` or ``(samples, 1, classes)``, finite; nothing is
            drawn then, and a ``noise_samples`` other than the default must be their number.

    Returns:
        Shape ``(batch,)``; float32 for half-precision scores. Its gradient is the share of
        samples in which a class came k-th; a second derivative is refused.

    Raises:
        ValueError: A parameter out of range, or tensors that do not fit.

    References:
        [N] section 3.2.
    """
    rank = Rank(k, epsilon, noise_samples, sharing, generator, noise)
    classes = check_matrix(scores)
    if not is_integer(k) or not 1 <= k <= classes:
        raise ValueError(f"k must be an integer in [1, {classes}], got {k}")
    return kth_largest(working(scores), None, rank)


class Rank(NamedTuple):
    """Which score is wanted, and under which noise."""

    k: int
    epsilon: float
    noise_samples: int
    sharing: Sharing
    generator: Generator | None
    noise: Tensor | None


def kth_largest(scores: Tensor, labels: Tensor | None, rank: Rank) -> Tensor:
    """Mean k-th largest score under noise, less the score of the label where there is one."""
    check_noise(rank.epsilon, rank.noise_samples, rank.sharing)
    samples, noise = rank.noise_samples, rank.noise
    if noise is not None:
        _check_given_noise(noise, scores, samples)
        samples = noise.shape[0]
    shared = rank.sharing == "shared"
    result: Tensor = _NoisedKthLargest.apply(
        scores, labels, rank.k, rank.epsilon, samples, shared, rank.generator, noise
    )
    return result


class _NoisedKthLargest(torch.autograd.Function):
    """One sample at a time, and only wins are counted: memory does not grow with B.

    The score of the label is taken off in here, which saves a second dense gradient.
    """

    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        labels: Tensor | None,
        k: int,
        epsilon: float,
        noise_samples: int,
        shared: bool,
        generator: Generator | None,
        noise: Tensor | None,
    ) -> Tensor:
        total, wins = torch.zeros_like(scores[:, 0]), torch.zeros_like(scores)
        one = torch.ones_like(scores[:, :1])
        # filled in the order of memory: with other strides a seed would give other noise
        moved = torch.empty_like(scores, memory_format=torch.contiguous_format)
        for sample in range(noise_samples):
            if noise is not None:
                torch.add(scores, noise[sample].to(scores), alpha=epsilon, out=moved)
            elif shared:
                drawn = torch.empty_like(scores[:1]).normal_(generator=generator)
                torch.add(scores, drawn, alpha=epsilon, out=moved)
            else:
                moved.normal_(generator=generator).mul_(epsilon).add_(scores)
            top = moved.topk(k)
            total += top.values[:, -1]
            wins.scatter_add_(1, top.indices[:, -1:], one)
        mean = total / noise_samples
        if labels is not None:
            mean -= scores.gather(1, labels.unsqueeze(1)).squeeze(1)
            wins.scatter_add_(1, labels.unsqueeze(1), -noise_samples * one)
        ctx.save_for_backward(wins)
        ctx.noise_samples = noise_samples
        return mean

    @staticmethod
    @first_derivative_only
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        (wins,) = ctx.saved_tensors  # how often each class came k-th
        return wins * (grad / ctx.noise_samples).unsqueeze(1), *[None] * 7


def check_noise(epsilon: float, noise_samples: int, sharing: str) -> None:
    """Refuse noise without size, samples or a known way of sharing."""
    check_positive("epsilon", epsilon)
    if not is_integer(noise_samples) or noise_samples < 1:
        raise ValueError(f"noise_samples must be an integer of at least 1, got {noise_samples}")
    if sharing not in ("per_sample", "shared"):
        raise ValueError(f"sharing must be 'per_sample' or 'shared', got {sharing!r}")


def _check_given_noise(noise: Tensor, scores: Tensor, samples: int) -> None:
    rows, classes = scores.shape
    if noise.dim() != 3 or not len(noise) or noise.shape[1:] not in ((rows, classes), (1, classes)):
        raise ValueError(
            f"noise must have shape (noise_samples, {rows}, {classes}) with at least one sample, "
            f"got {tuple(noise.shape)}"
        )
    if samples not in (SAMPLES, noise.shape[0]):
        raise ValueError(
            f"noise_samples must be {noise.shape[0]}, as many as noise holds, or left out, "
            f"got {samples}"
        )
    readable = noise.device.type == "cpu" and not torch.compiler.is_compiling()
    if readable and not bool(torch.isfinite(noise).all()):
        raise ValueError("noise must be finite, got NaN or infinity")
