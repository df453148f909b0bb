r"""Sums over all k-subsets of the classes, exact at any temperature.

With :math:`e_j = \exp(\mathrm{rate} \cdot s_j)`, the elementary symmetric polynomial
:math:`\sigma_k = \sum_{|A| = k} \prod_{j \in A} e_j` is a coefficient of
:math:`\prod_j (1 + e_j t)`. Written out it overflows, and its logarithm by divide and conquer
(Berrada et al.) loses the gradient. Here :math:`t` becomes :math:`x t` and every factor is divided
by its sum: class j is in a random set with probability :math:`p_j = e_j x / (1 + e_j x)`,
independently of the others, and the coefficients are the probabilities of sets of i classes. With
:math:`x` such that about k - 1/2 classes are expected, sets of k and of k - 1 are both likely
(Darroch 1964: the likeliest size is within 1 of the mean). So neither overflow nor underflow
matters, whatever the temperature and up to ``LARGEST_K``, and an error of 1e-16 of a probability is
one of 1e-15 of what is asked for.

The 2k largest scores (the head) are evaluated at the M-th roots of unity, where a product of
polynomials is a product of numbers and one factor can be divided out again; a Fourier transform
brings the coefficients back. All others (the tail) enter through their power sums and Newton's
identities; the cancellation there is harmless, because the head dominates whatever it loses.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from florilege.training.losses.arguments import on_host

BLOCK_BYTES = 1 << 20  # blocks of rows stay in the cache of a core
LARGEST_K = 600  # tested up to here; memory grows with the square


@dataclass(frozen=True, kw_only=True)
class _Subsets:
    """Sums over the subsets of k and of k - 1 classes, seen from one score beside them."""

    log_ratio: Tensor  # log(sigma_k / sigma_(k-1)) less rate times that score, float64 (rows, 1)
    head: Tensor  # positions of the 2k largest, int64 (rows, head)
    at_head: Tensor  # what `inclusion_less` is there, float64 (rows, head)
    terms: Tensor  # what it is elsewhere: a polynomial in `tail`, highest power first, (rows, k)
    tail: Tensor  # minus e x of the tail, 0 at the head, (rows, classes)

    def inclusion_less(self) -> Tensor:
        """``p^(k) - p^(k-1)`` for every class, ``(rows, classes)``; it takes the place of ``tail``.

        ``p^(i)`` is the probability that a class belongs to an i-subset drawn in proportion
        to its product; they sum to ``i``.
        """
        _horner(self.terms, self.tail)
        return self.tail.scatter_(1, self.head, self.at_head.to(self.tail.dtype))


def subsets(scores: Tensor, beside: Tensor, k: int, rate: float) -> _Subsets:
    """Expand the generating polynomial of every row; ``rate`` multiplies scores in the exponent.

    ``-inf`` leaves a class out. A row with fewer than k finite scores has a meaningless result,
    though still free of NaN, and a ``log_ratio`` that is hugely negative. ``beside`` is one more
    score for each row, ``(rows, 1)``, which belongs to no subset. Writes into ``scores``.
    """
    top, head = scores.topk(min(2 * k, scores.shape[1]))
    centre = top[:, k - 1 : k].clamp_min(torch.finfo(scores.dtype).min)
    gaps = (torch.cat([top, beside], 1).double() - centre) * rate
    tail = scores.sub_(centre).mul_(rate).scatter_(1, head, -torch.inf).exp_()
    rest = tail.sum(1, keepdim=True)
    tilt = _tilt(gaps[:, :-1], rest, k, scores.shape[1])
    tilted = tilt.exp().neg_().to(tail.dtype)
    tail.mul_(tilted)
    logits, own = torch.split(gaps + tilt, [head.shape[1], 1], 1)
    points = _points(k)
    p = torch.sigmoid(logits)
    # 1 - p + p t at the roots: 1 - p needs no digits of its own, what it leaves is a probability
    beyond = torch.fft.rfft(torch.linspace(-1, 1, 2, dtype=p.dtype, device=p.device), points)
    factors = (p.unsqueeze(2) * beyond).add_(1)  # (rows, head, points / 2 + 1)
    product = factors.prod(1) * torch.fft.rfft(
        _newton(_power_sums(tail, rest.mul_(tilted), k)), points
    )
    fewer, exactly = torch.fft.irfft(product, points)[:, k - 1 : k + 1].split(1, 1)
    # coefficient k - 1 of this without a class is c_(k-2) / c_(k-1) - c_(k-1) / c_k without it
    weighted = product * torch.fft.rfft(torch.cat([-exactly, fewer], 1).reciprocal(), points)
    torch.div(weighted.unsqueeze(1), factors, out=factors)
    without = torch.fft.irfft(factors, points)[:, :, k - 1]
    return _Subsets(
        log_ratio=(exactly / fewer).clamp_min(torch.finfo(torch.float64).tiny).log() - own,
        head=head,
        at_head=-p * without,
        # there 1 + e x t is divided out as a series in -e x: stable, since p is below 1/2
        terms=torch.fft.irfft(weighted, points)[:, :k].to(tail.dtype),
        tail=tail,
    )


def _points(k: int) -> int:
    """As many as the product has coefficients, or fewer where the last are below 1e-17.

    That many or more classes are in the set with a probability of at most
    ``exp(-d**2 / 2 / (k + d / 3))``, d beyond their mean (Bernstein), which ``_tilt`` misses by two
    deviations at most. An odd number has no root at -1, where the factor of a class with p = 1/2 is
    0 and cannot be divided out.
    """
    return min(3 * k + 2, int(k + 2 * k**0.5 + 14 + (180 + 80 * k) ** 0.5)) | 1


def _tilt(gaps: Tensor, rest: Tensor, k: int, classes: int) -> Tensor:
    """``log x`` for which about k - 1/2 classes are expected, float64 ``(rows, 1)``.

    It lies between -log(2 classes), where all others add at most 1/2 to k - 1, and log(2k), where
    the k largest alone are k - 1/2. As many steps as hold the error well within the deviation of
    the size, which is at most the root of k.
    """
    low, high, steps = -math.log(2 * classes), math.log(2 * k), 2 + int(4 * k**0.5)
    width = (high - low) / (steps - 1)
    shifts = torch.linspace(low, high, steps, dtype=torch.float32, device=gaps.device)
    sizes = (gaps.float().unsqueeze(2) + shifts).sigmoid_().sum(1)  # (rows, steps)
    sizes = torch.addcmul(sizes, rest, shifts.exp())  # e x itself in the tail, where it is small
    return (sizes < k - 0.5).sum(1, keepdim=True, dtype=gaps.dtype) * width + (low - width / 2)


def _newton(power_sums: Tensor) -> Tensor:
    """Elementary symmetric polynomials 0 to k of e from power sums 1 to k of -e, float64.

    Newton's identities, ``n c_n + sum_i q_i c_(n-i) = 0``, as one triangular system.
    """
    k = power_sums.shape[1]
    system = F.pad(power_sums, (k, -1)).unfold(1, k, 1).flip(2)  # q_(n-m) below the diagonal
    system.diagonal(dim1=1, dim2=2).copy_(torch.arange(1, k + 1, device=system.device))
    elementary = torch.linalg.solve_triangular(system, -power_sums.unsqueeze(2), upper=False)
    return F.pad(elementary.squeeze(2), (1, 0), value=1.0)


def _power_sums(values: Tensor, total: Tensor, k: int) -> Tensor:
    """Sums of the powers 1 to k of each row, float64 ``(rows, k)``; ``total`` is the first."""
    blocks = []
    for block in _blocks(values):
        power = block.clone() if k > 1 else block
        sums = [power.mul_(block).sum(1, keepdim=True) for _ in range(k - 1)]
        blocks.append(torch.cat(sums, 1) if sums else block[:, :0])
    return torch.cat([total, torch.cat(blocks)], 1).double()


def _horner(coefficients: Tensor, values: Tensor) -> None:
    """Replace values by ``sum_i coefficients_(k-i) * values ** i`` for i from 1 to k."""
    start = 0
    for block in _blocks(values):
        highest, *lower = coefficients[start : start + len(block)].unsqueeze(2).unbind(1)
        start += len(block)
        part = highest.expand_as(block).clone()  # two operands of one column are not vectorised
        for coefficient in lower:
            torch.addcmul(coefficient, block, part, out=part)
        block.mul_(part)


def _blocks(values: Tensor) -> tuple[Tensor, ...]:
    if not on_host(values):
        return (values,)
    rows = max(1, BLOCK_BYTES // max(1, values.shape[1] * values.element_size()))
    return (values,) if rows >= len(values) else torch.split(values, rows)
