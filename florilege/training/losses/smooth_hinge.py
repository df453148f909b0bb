r"""The top-k hinge loss with both maxima softened: it sums over all k-subsets of the classes.

With :math:`e_j = \exp(s_j / (k\tau))`, :math:`\sigma_k = \sum_{|A| = k} \prod_{j \in A} e_j` is a
coefficient of :math:`\prod_j (1 + e_j t)`. Written out it overflows, and its logarithm by divide
and conquer (Berrada et al.) loses the gradient. Here :math:`t` becomes :math:`x t` and every factor
is divided by its sum: class j is in a random set with probability
:math:`p_j = e_j x / (1 + e_j x)`, independently of the others, and the coefficients are the
probabilities of sets of i classes. With :math:`x` such that about k - 1/2 classes are expected,
sets of k and of k - 1 are both likely (Darroch 1964: the likeliest size is within 1 of the mean).
So neither overflow nor underflow matters, whatever the temperature and up to ``LARGEST_K``.

A coefficient is a sum over points of a circle, where a product of polynomials is a product of
numbers and one factor can be divided out again. The 3k - 1 largest scores (the head) are evaluated
there one by one. All others (the tail) have p below 0.4, so that the logarithm of their factors is
a series in their power sums that converges; its terms beyond the k-th do not reach the coefficients
that are asked for.

On a GPU each operator is a launch of some microseconds. So there are few: what no score changes is
kept from step to step, and the dimensions are in an order that needs no reshaping.
"""

import math
from functools import lru_cache, partial
from typing import NamedTuple

import torch
from torch import Tensor

from florilege.training.losses.arguments import check_parameters, checked, on_host
from florilege.training.losses.base import softplus, with_gradients

# Blocks of rows stay in the cache that the cores of a machine share.
BLOCK_BYTES = 1 << 23
# Tested up to here; memory grows with the square.
LARGEST_K = 600
MIXTURE_ROWS = 1024  # (row, class) pairs of soft targets evaluated together

# So many cost less than to look how many are needed.
_FEW_POWERS = 8
# The first column is the label, which belongs to no set. Divided by so large a factor, the product
# "without" it, which means nothing, vanishes beside the slope that is added there.
_LABEL_FACTOR = 1e20


def smooth_top_k(
    logits: Tensor,
    labels: Tensor,
    *,
    k: int = 5,
    tau: float = 1.0,
    margin: float = 1.0,
    positives: int | None = None,
) -> Tensor:
    r"""Smooth top-k loss: the top-k hinge with both maxima softened at temperature tau.

    .. math::
        \ell(s, y) = \tau \log \sum_{|A| = k} e^{\left(\alpha [y \notin A]
            + \frac1k \sum_{j \in A} s_j\right) / \tau}
          - \tau \log \sum_{|A| = k,\, A \ni y} e^{\frac{1}{k\tau} \sum_{j \in A} s_j}

    Computed as :math:`\tau\,\mathrm{softplus}\big((\alpha - s_y/k)/\tau
    + \log \sigma_k - \log \sigma_{k-1}\big)`, with :math:`\sigma_i` the sum over all i-subsets of
    the *other* classes that the docstring of this module explains.

    Use it when images carry wrong or ambiguous labels and k is fixed; the gradient reaches
    every class. Its twin ``noised_top_k`` softens a calibrated hinge and touches few classes.
    A second derivative is refused. Half-precision logits near 20 are spaced 0.02 (float16) or
    0.125 (bfloat16): below tau = 0.1 that rounding dominates.

    Args:
        logits: ``-inf`` masks a class; a row with fewer than k finite others gives 0.
        labels: Soft targets cost one evaluation per positive target and receive no gradient.
        k: Size of the set, ``1 <= k < classes``, at most 600. Memory grows with its square, and
            holds up to 5 times the logits for k = 5, 36 times for large k.
        tau: Temperature, positive. [B] uses 1.0 on CIFAR-100 and 0.1 on ImageNet.
        margin: :math:`\alpha`, at least 0; k = 1, tau = 1, margin = 0 is cross-entropy.
        positives: The most positive targets of a row, 2 for mixup. None counts them in each batch,
            which makes the host wait for a GPU. There a row with more gives NaN.

    References:
        [B] eq. 9 and 10. Eq. 8, not [N] eq. 4, is the limit tau to 0: scores divided by k, the
        margin not. The row for this loss in [N] table 1 lacks :math:`A \ni y` in its second
        sum. The authors' code switches to the hard hinge far from the margin; this does not.

    Example:
        >>> import torch
        >>> logits = torch.tensor([[3.0, 1.0, 0.5, -1.0]])
        >>> smooth_top_k(logits, torch.tensor([1]), k=2, tau=0.01)
        tensor([0.7500])
    """
    scores, labels = checked(logits, labels, k=k, tau=tau, margin=margin)
    if k > LARGEST_K:
        raise ValueError(f"k must be at most {LARGEST_K} here, got {k}; noised_top_k takes any k")
    if labels.is_floating_point():
        check_parameters(positives=1 if positives is None else positives)
        values, gradient = _mixture(scores, labels, positives, k, tau, margin)
    else:
        values, gradient = _values_and_gradients(scores, labels, k, tau, margin)
    return with_gradients(values, (scores, gradient))


@torch.no_grad()
def _values_and_gradients(
    scores: Tensor, labels: Tensor, k: int, tau: float, margin: float
) -> tuple[Tensor, Tensor]:
    """Losses ``(rows,)`` and their gradients ``(rows, classes)``, some rows at a time."""
    rows = _rows_at_once(scores, k) if on_host(scores) else len(scores)
    if rows >= len(scores):
        return _expand(scores, labels, k, tau, margin)
    blocks = zip(torch.split(scores, rows), torch.split(labels, rows), strict=True)
    values, gradients = zip(*(_expand(*block, k, tau, margin) for block in blocks), strict=True)
    return torch.cat(values), torch.cat(gradients)


def _rows_at_once(scores: Tensor, k: int) -> int:
    powers = min(k, _FEW_POWERS) * scores.shape[1] * scores.element_size()
    factors = 3 * k * _points(k) * 8
    return max(1, BLOCK_BYTES // (powers + factors))


@torch.no_grad()
def _mixture(
    scores: Tensor, targets: Tensor, positives: int | None, k: int, tau: float, margin: float
) -> tuple[Tensor, Tensor]:
    """``sum_c t_c loss(., c)`` over the positive targets, a bounded number at a time."""
    values, gradient = torch.zeros_like(scores[:, 0]), torch.zeros_like(scores)
    if positives is None or on_host(targets):
        pairs = (targets != 0).nonzero()
    else:  # as many of each row, some with a target of 0
        columns = targets.abs().topk(min(positives, targets.shape[1])).indices
        rows = torch.arange(len(targets), device=targets.device).unsqueeze(1)
        pairs = torch.stack([rows.expand_as(columns), columns], dim=2).flatten(0, 1)
    for block in torch.split(pairs, MIXTURE_ROWS):
        rows, labels = block.unbind(1)
        share = targets[rows, labels].to(scores.dtype)
        value, slope = _values_and_gradients(scores[rows], labels, k, tau, margin)
        values.index_add_(0, rows, share * value.where(share != 0, 0.0))
        gradient.index_add_(0, rows, slope.mul_(share.unsqueeze(1)))
    if positives is not None:
        _check_positives(targets, positives, values)
    return values, gradient


def _check_positives(targets: Tensor, most: int, values: Tensor) -> None:
    """Refuse rows with more than ``most`` positive targets; NaN takes the place of their values."""
    counts = (targets != 0).sum(1)
    if on_host(counts) and bool((counts > most).any()):
        raise ValueError(f"positives is {most}, but a row has {int(counts.max())} positive targets")
    values.masked_fill_(counts > most, torch.nan)


def _expand(
    scores: Tensor, labels: Tensor, k: int, tau: float, margin: float
) -> tuple[Tensor, Tensor]:
    """Losses and gradients of rows that are evaluated together.

    The argument of the softplus is a small difference of large numbers when tau is small, so
    whatever is not one value for each class is computed in float64. ``-inf`` leaves a class out; a
    row with fewer than k finite others has meaningless sums, though still free of NaN, and an
    argument that is hugely negative.
    """
    compiling, device = torch.compiler.is_compiling(), scores.device
    index, columns = labels.unsqueeze(1), min(3 * k, scores.shape[1])
    top, head = scores.scatter(1, index, torch.inf).topk(columns)  # the label comes first
    # With too few possible classes it would be -inf, and -inf less -inf is NaN.
    centre = top[:, k : k + 1].clamp_min(torch.finfo(scores.dtype).min)
    tail, rate = scores - centre, 1 / (k * tau)
    tilt = (_tilt if compiling else _kept_tilt)(
        k, scores.shape[1], columns, margin / tau, scores.dtype, device
    )
    logits = torch.add(tilt.lead, tail.gather(1, head), alpha=rate)  # float64 (rows, columns)
    tail.mul_(rate).scatter_(1, head, -torch.inf).exp_()

    # how many classes each x of the grid expects: e x itself in the tail, where it is small
    # single precision finds the step: the sums are as exact at the ones beside it
    expected = (logits.to(scores.dtype) + tilt.shifts).sigmoid_() @ tilt.counted  # (steps, rows, 1)
    expected = torch.addcmul(expected, tail.sum(1, keepdim=True), tilt.grid)
    step = (expected < k - 0.5).sum(0)  # (rows, 1)
    logits += tilt.logs[step]
    powers = _powers(tail, tilt.factors[:, step])  # (powers, rows, classes)
    circle = (_circle if compiling else _kept_circle)(k, columns, len(powers), device)

    p = torch.sigmoid(logits)
    factors = (p * circle.slope).add_(circle.start)  # (points, rows, columns)
    power_sums = powers.sum(2, keepdim=True).to(factors.dtype)
    product = factors.prod(2, keepdim=True) * torch.tensordot(circle.series, power_sums, 1).exp()
    sizes = torch.tensordot(circle.sizes, product, 1).real  # of k - 1 and of k, (2, rows, 1)
    sizes.clamp_min_(torch.finfo(sizes.dtype).tiny)
    argument = torch.tensordot(circle.contrast, sizes.log(), 1) - logits[:, :1]  # (rows, 1)
    pull = torch.sigmoid(argument)

    # class j is in a set of i with the probability p_j times coefficient i - 1 of the product
    # without it, over coefficient i: its slope is that for k less that for k - 1, times pull / k
    weighed = product * torch.tensordot(circle.without, (pull / sizes).to(product.dtype), 1)
    at_head = torch.addcmul(pull * circle.label, p, (weighed / factors).real.sum(0))
    terms = torch.tensordot(circle.terms, weighed, 1).real.to(scores.dtype)
    gradient = powers.mul_(terms).sum(0).scatter_(1, head, at_head.to(scores.dtype))
    values = softplus(argument).mul_(tau)
    return values.sum(1, dtype=scores.dtype), gradient


def _powers(values: Tensor, factors: Tensor) -> Tensor:
    """Powers 1, 2, ... of ``values * factors``, ``(powers, rows, classes)``, one per factor.

    Where the largest value can be read at once, those that are lost in rounding are left out.
    """
    if len(factors) > _FEW_POWERS and on_host(values):
        largest = float((values.amax(1, keepdim=True) * factors[0]).amax())
        factors = factors[: _powers_needed(values.dtype, largest)]
    powers = values * factors
    lower, *others = powers.unbind(0)
    for power in others:
        lower = power.mul_(lower)
    return powers


def _powers_needed(dtype: torch.dtype, largest: float = 0.6) -> int:
    """How many powers of numbers up to ``largest`` are not lost in the rounding of the first.

    The tail has p below 0.38 for every k that is above this number, so e x below 0.6.
    """
    rounding = torch.finfo(dtype)
    largest = min(0.6, max(rounding.tiny, largest))  # also if it is NaN
    return math.ceil(math.log(rounding.eps / 8) / math.log(largest))


class _Tilt(NamedTuple):
    """The grid on which x is looked for."""

    lead: Tensor  # minus margin / tau for the label, the first column, float64 (1, columns)
    counted: Tensor  # 0 for the label, 1 for the others (columns, 1)
    shifts: Tensor  # log x (steps, 1, 1)
    grid: Tensor  # x (steps, 1, 1)
    logs: Tensor  # log x between two steps, float64 (steps + 1,)
    factors: Tensor  # x there, repeated for every power (powers, steps + 1)


def _tilt(
    k: int, classes: int, columns: int, lead: float, dtype: torch.dtype, device: torch.device
) -> _Tilt:
    """Steps of log x from -log(2 classes), where all others add at most 1/2 to k - 1, to log(2k).

    There the k largest alone are k - 1/2. So many steps that the classes expected are off by a
    small part of the deviation of their number, which is at most the root of k.
    """
    steps = 2 + int(12 * k**0.5)
    low, high = -math.log(2 * classes), math.log(2 * k)
    half = (high - low) / (steps - 1) / 2
    label = _label_column(columns, device)
    shifts = torch.linspace(low, high, steps, dtype=torch.float64, device=device).view(-1, 1, 1)
    logs = torch.linspace(low - half, high + half, steps + 1, dtype=torch.float64, device=device)
    factors = logs.exp().to(dtype)
    return _Tilt(
        lead=label * -lead,
        counted=(1 - label).t().to(dtype),
        shifts=shifts.to(dtype),
        grid=shifts.exp().to(dtype),
        # Of what was rounded to the type of the scores: head and tail then have the same x.
        logs=factors.double().log(),
        factors=factors.expand(min(k, _powers_needed(dtype)), -1),
    )


def _label_column(columns: int, device: torch.device) -> Tensor:
    """1 for the label, which comes first, 0 for other classes, float64 ``(1, columns)``."""
    return (torch.arange(columns, device=device) == 0).double().unsqueeze(0)


def _points(k: int) -> int:
    """Points of the whole circle; an odd number has none at -1, where a factor may be 0."""
    return int(k + 4 * k**0.5 + 4) | 1


class _Circle(NamedTuple):
    """What numbers at the points of the upper half of a circle are multiplied by, complex128."""

    start: Tensor  # a class has the factor start + p slope, (1, columns)
    slope: Tensor  # (points, 1, columns)
    series: Tensor  # power sums to the logarithm of the factors of the tail, (points, powers)
    sizes: Tensor  # a product to its coefficients k - 1 and k, (2, points)
    without: Tensor  # weights of those to weights of the coefficients below, (points, 2)
    terms: Tensor  # a weighed product to a polynomial in e x of the tail, (powers, points)
    contrast: Tensor  # -1 and 1, float64 (2,)
    label: Tensor  # what the slope of the label is of pull, float64 (1, columns)


def _circle(k: int, columns: int, powers: int, device: torch.device) -> _Circle:
    """The circle on which coefficients are most exact.

    The smaller its radius, the more rounding weighs, and the less a coefficient that is taken for
    another since it is ``points`` above. Over all p with 3k - 1 classes in the head and up to a
    million in the tail, rounding grows less than 10,000 times up to k = 200 and 200,000 times up to
    k = 600, and of the others remains less than 3e-15.
    """
    points, log_radius = _points(k), -7 / k**0.8
    count = partial(torch.arange, dtype=torch.float64, device=device)
    angles = count(points // 2 + 1) * (2 * math.pi / points)
    logs = torch.complex(torch.full_like(angles, log_radius), angles)

    def at_power(exponents: Tensor) -> Tensor:
        """Powers of the points, ``(points, exponents)``."""
        return (logs.unsqueeze(1) * exponents).exp()

    # the lower half has the same real parts
    weights = (1 + (angles > 0).double()).unsqueeze(1) / points
    orders, sizes = count(1, powers + 1), count(k - 1, k + 1)
    signs = 2 * (orders % 2) - 1
    contrast = 2 * (sizes - k) + 1
    label = _label_column(columns, device)
    return _Circle(
        start=(1 + label * _LABEL_FACTOR).to(logs.dtype),
        slope=((logs.exp().unsqueeze(1) - 1) * (1 - label)).unsqueeze(1),
        series=at_power(orders) * (signs / orders),
        sizes=(at_power(-sizes) * weights).t(),
        without=at_power(1 - sizes) * weights * contrast / k,
        terms=(at_power(orders - 1) * signs).t(),
        contrast=contrast,
        label=label / -k,
    )


_kept_tilt, _kept_circle = lru_cache(maxsize=64)(_tilt), lru_cache(maxsize=64)(_circle)
