r"""Sums over all k-subsets of the classes, exact at any temperature.

With :math:`e_j = \exp(\mathrm{rate} \cdot s_j)`, the elementary symmetric polynomial
:math:`\sigma_k = \sum_{|A| = k} \prod_{j \in A} e_j` is a coefficient of
:math:`\prod_j (1 + e_j t)`. Written out it overflows, and its logarithm by divide and conquer
(Berrada et al.) loses the gradient. Here the k largest scores are factored out instead: with
:math:`e` measured from the k-th largest score, each of those becomes :math:`u + t`,
:math:`u = 1/e \le 1`, and every other class stays :math:`1 + e t`, :math:`e \le 1`. Then
:math:`\sigma_k = c_k \prod_{j \le k} e_j` at any temperature, underflow does not matter, and a
masked class (``-inf``) vanishes.

What is left is the number of subsets: 10^340 for k = 100 of 100,000 classes that tie. So :math:`t`
becomes :math:`x t` and every factor is divided by its sum: a class is in the subset with
probability :math:`e x / (1 + e x)`, independently of the others, and the coefficients are the
probabilities of i classes. With :math:`x` such that about k are expected, those of k and k - 1 are
at least :math:`e^{-k}`, well within the range of float64 up to ``LARGEST_K``. Whatever is smaller
by as much as that range is no part of any sum that matters.

The 2k largest scores (the head) are multiplied out one by one in float64. All others (the tail)
enter through their power sums and Newton's identities; the cancellation there is harmless,
because the head dominates whatever it loses.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from florilege.training.losses.arguments import on_host

BLOCK_BYTES = 1 << 19  # blocks of rows that stay in a core's cache are twice as fast
LARGEST_K = 600  # e^-600 = 10^-261


@dataclass(frozen=True, kw_only=True)
class _Subsets:
    """Coefficients of the generating polynomial, and what inclusion probabilities need.

    ``anchor``: the k-th largest score, ``(rows,)``. ``coefficients``: :math:`c_i x^i` for i from 0
    to k, float64 ``(rows, k + 1)``, up to a factor for each row.
    """

    anchor: Tensor
    coefficients: Tensor
    tilts: Tensor  # powers 1 to k of x, float64 (rows, k)
    tail: Tensor  # e of the tail, 0 at the head, (rows, classes)
    head: Tensor  # positions of the 2k largest, int64 (rows, head)
    included: Tensor  # factor of t of each head class, float64 (head, rows)
    before: Tensor  # product of the tail and the factors before each, (head, rows, k + 1)
    after: Tensor  # product of the factors after each, (head, rows, k + 1)

    def log_ratio(self) -> Tensor:
        """``log c_k - log c_(k-1)``, float64 ``(rows,)``."""
        return (self.coefficients[:, -1] / (self.coefficients[:, -2] * self.tilts[:, 0])).log()

    def inclusion_less(self) -> Tensor:
        """``p^(k) - p^(k-1)`` for every class, ``(rows, classes)``.

        ``p^(i)`` is the probability that a class belongs to an i-subset drawn in proportion
        to its product; they sum to ``i``.
        """
        k = self.coefficients.shape[1] - 1
        scale = self.coefficients.new_tensor([1.0, -1.0]) / self.coefficients[:, [k, k - 1]]
        result = self._tail_inclusion(scale)
        with_k = self.included * _convolve(self.before, self.after, k - 1)
        with_fewer = self.included * _convolve(self.before, self.after, k - 2)
        at_head = with_k * scale[:, 0] + with_fewer * scale[:, 1]  # (head, rows)
        return result.scatter_(1, self.head, at_head.T.to(result.dtype))

    def _tail_inclusion(self, scale: Tensor) -> Tensor:
        """Leave-one-out by synthetic division, as a polynomial in e.

        Stable for the tail: a class beyond rank 2k is in a k-subset with probability below
        1/2, so each division shrinks the error of the one before.
        """
        lower = self.coefficients[:, :-1]
        powers = self.tilts.clone()
        powers[:, 1::2] *= -1
        of_k = lower.flip(1) * scale[:, :1]  # c_(k-1) ... c_0
        of_fewer = torch.zeros_like(of_k)
        of_fewer[:, :-1] = lower[:, :-1].flip(1) * scale[:, 1:]  # c_(k-2) ... c_0, 0
        terms = powers * (of_k + of_fewer)
        # beyond 1e30, e to the power of the term is below 1e-30, but 0 times infinity would be NaN
        return _horner(terms.clamp_(-1e30, 1e30).to(self.tail.dtype), self.tail)


def subsets(scores: Tensor, k: int, rate: float) -> _Subsets:
    """Expand the generating polynomial of every row; ``rate`` multiplies scores in the exponent.

    ``-inf`` leaves a class out. A row with fewer than k finite scores has a meaningless result,
    though still free of NaN.
    """
    top, head = scores.topk(min(2 * k, scores.shape[1]))
    anchor = top[:, k - 1]
    centre = anchor.where(anchor > -torch.inf, 0.0)
    gaps = (top.double() - centre.unsqueeze(1).double()) * rate
    left_out = gaps.neg().clamp_max_(0).exp_()
    included = gaps.clamp_max_(0).exp_()
    included[:, :k] = 1  # also where the k-th largest is -inf
    tail = (scores - centre.unsqueeze(1)).mul_(rate).scatter_(1, head, -torch.inf).exp_()
    power_sums = _power_sums(tail, k)
    rest = included[:, k:].sum(1, keepdim=True) + power_sums[:, :1]  # of e, without the k largest
    # k classes are expected if all tie, or if the k largest are far above the rest or the others
    tilt = ((k - 0.5) / (rest + 0.5)).clamp_max_(1.0)
    tilts = tilt.expand(-1, k).cumprod(1)
    included *= tilt
    total = left_out + included
    left_out /= total
    included /= total
    start = _newton(power_sums * tilts)
    before, after = _expand(start, left_out.T.contiguous(), included.T.contiguous())
    return _Subsets(
        anchor=anchor,
        coefficients=before[-1],
        tilts=tilts,
        tail=tail,
        head=head,
        included=included.T,
        before=before[:-1],
        after=after[:-1].flip(0),
    )


def _expand(start: Tensor, left_out: Tensor, included: Tensor) -> tuple[Tensor, Tensor]:
    """Products of the factors ``left_out + included t`` from the front and from the back.

    Products from both sides avoid dividing a factor out again: that division loses the gradient
    for classes that are almost surely in the subset.

    Returns:
        Both ``(head + 1, rows, k + 1)``: entry i is the product of the first, or last, i
        factors; the one from the front starts with ``start``.
    """
    one = torch.zeros_like(start)
    one[:, 0] = 1
    products = [torch.stack([start, one])]  # (2, rows, k + 1)
    constant = torch.stack([left_out, left_out.flip(0)], dim=1).unsqueeze(3)  # (head, 2, rows, 1)
    linear = torch.stack([included, included.flip(0)], dim=1).unsqueeze(3)
    for c, t in zip(constant.unbind(), linear.unbind(), strict=True):
        product = products[-1] * c
        product[..., 1:].addcmul_(products[-1][..., :-1], t)
        products.append(product)
    both = torch.stack(products)
    return both[:, 0], both[:, 1]


def _convolve(before: Tensor, after: Tensor, degree: int) -> Tensor:
    """Coefficient of ``t ** degree`` in the product of two polynomials."""
    terms = degree + 1
    return (before[..., :terms] * after[..., :terms].flip(-1)).sum(-1)


def _newton(power_sums: Tensor) -> Tensor:
    """Elementary symmetric polynomials 0 to k from the power sums 1 to k, float64."""
    signed = power_sums.clone()
    signed[:, 1::2] *= -1
    elementary = torch.zeros_like(torch.nn.functional.pad(signed, (1, 0)))
    elementary[:, 0] = 1
    for n in range(1, elementary.shape[1]):
        terms = signed[:, :n] * elementary[:, :n].flip(1)
        elementary[:, n] = terms.sum(1) / n
    return elementary.clamp_min(0)  # sums of non-negative products, negative only by rounding


def _power_sums(values: Tensor, k: int) -> Tensor:
    """Sums of the powers 1 to k of each row, float64 ``(rows, k)``."""
    blocks = []
    for block in _blocks(values):
        power, sums = block.clone(), [block.sum(1)]
        sums += [power.mul_(block).sum(1) for _ in range(k - 1)]
        blocks.append(torch.stack(sums, dim=1).double())
    return torch.cat(blocks)


def _horner(coefficients: Tensor, values: Tensor) -> Tensor:
    """``values * sum_i coefficients_i * values ** i``, a row of coefficients for each row."""
    result, start = torch.empty_like(values), 0
    for block in _blocks(values):
        rows = slice(start, start + len(block))
        start = rows.stop
        part = result[rows]
        *lower, highest = coefficients[rows].unsqueeze(2).unbind(1)  # each (rows, 1)
        part.copy_(highest.expand_as(block))
        for coefficient in reversed(lower):
            torch.addcmul(coefficient, block, part, out=part)
        part.mul_(block)
    return result


def _blocks(values: Tensor) -> tuple[Tensor, ...]:
    if not on_host(values):
        return (values,)
    rows = max(1, BLOCK_BYTES // max(1, values.shape[1] * values.element_size()))
    return torch.split(values, rows)
