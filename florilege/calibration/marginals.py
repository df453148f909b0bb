"""The probability that each class belongs to the top k, from the logits of one photo.

The probability of a set of ``k`` classes is proportional to ``exp`` of the sum of its logits. The
marginal of a class is the total probability of the sets that hold it (appendix C). With
``w = exp(logit)`` and ``e_k`` the elementary symmetric polynomial of degree ``k``, the marginal of
class ``i`` is ``w_i e_(k-1)(w without i) / e_k(w)``.

References:
    Berrada, Zisserman and Kumar, "Smooth loss functions for deep top-k classification",
    ICLR 2018, appendix C.
"""

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.sets import Floats

LARGEST_K = 20
"""With a larger k the products could leave the range of float64."""
# Logits this far above the k-th largest are certain members: exp(-28) is below 1e-12.
_CLAMP = 28.0
ROWS_AT_ONCE = 32
HEAVY = 3  # this many times k heaviest classes are multiplied one by one

_Polynomials = Floats
"""Coefficients ``e_0``, ``e_1``, ... of the product of ``1 + w t``, ``(rows, degree + 1)``."""


def top_k_marginals(logits: ArrayLike, k: int) -> Floats:
    """Probability that each class belongs to the top ``k``.

    Args:
        logits: Raw class scores, shape ``(rows, classes)``; ``-inf`` marks an impossible class.
        k: Size of the sets, ``1 <= k <= min(20, classes)``.

    Returns:
        Values in [0, 1], float64, shape ``(rows, classes)``; a row sums to ``k``.

    Raises:
        ValueError: ``k`` out of range, a NaN or +inf, or a row with fewer than ``k``
            possible classes.

    Example:
        >>> top_k_marginals([[0.0, 0.0, 0.0, 0.0]], 2)
        array([[0.5, 0.5, 0.5, 0.5]])
    """
    values = np.array(logits, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"logits must have shape (rows, classes), got {values.shape}")
    largest = min(LARGEST_K, values.shape[1])
    if not 1 <= k <= largest:
        raise ValueError(f"k must be in [1, {largest}], got {k}")
    for start in range(0, len(values), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        values[rows] = _marginals(_weights(values[rows], k, first_row=start), k)
    return values


def _weights(logits: Floats, k: int, *, first_row: int) -> Floats:
    """``exp`` of the logits, shifted so that the k-th largest becomes 1, hence ``e_k >= 1``."""
    kth = -np.partition(-logits, k - 1, axis=1)[:, k - 1 : k]  # (rows, 1)
    bad = ~(np.isfinite(kth[:, 0]) & (logits.max(axis=1) < np.inf))
    if bad.any():
        raise ValueError(
            f"logits must have no NaN, no +inf and {k} finite values or more in each row; "
            f"row {first_row + int(np.flatnonzero(bad)[0])} does not"
        )
    return np.exp(np.minimum(logits - kth, _CLAMP))


def _marginals(weights: Floats, k: int) -> Floats:
    """Marginals of each class; only light classes use the formulas that subtract."""
    heavy = np.argpartition(-weights, min(HEAVY * k, weights.shape[1]) - 1, axis=1)[:, : HEAVY * k]
    light = weights.copy()
    np.put_along_axis(light, heavy, 0.0, axis=1)
    heavy_weights = np.take_along_axis(weights, heavy, axis=1)
    others, of_all = _without_heavy(heavy_weights, _elementary(light, k), k)
    marginals = light * _without_light(light, of_all, k - 1)
    np.put_along_axis(marginals, heavy, heavy_weights * others, axis=1)
    return np.clip(marginals / of_all[:, -1:], 0.0, 1.0)


def _elementary(light: Floats, degree: int) -> _Polynomials:
    """``e_0`` to ``e_degree`` from sums of powers, by Newton's identities.

    These lose digits where few weights dominate the sum. Light weights are at most 1 and heavy ones
    are larger, so that the loss is below the rounding error of the result.
    """
    polynomials = np.zeros((len(light), degree + 1))
    polynomials[:, 0] = 1.0
    power, sums = light.copy(), list[Floats]()
    for order in range(1, degree + 1):
        sums.append((-1) ** (order - 1) * power.sum(axis=1))
        terms = [sums[i] * polynomials[:, order - 1 - i] for i in range(order)]
        polynomials[:, order] = np.maximum(sum(terms) / order, 0.0)
        power *= light
    return polynomials


def _without_light(light: Floats, of_all: _Polynomials, degree: int) -> Floats:
    """For each light class ``e_degree`` of all others, ``(rows, classes)``.

    Each step subtracts at most half, since `HEAVY` times k classes are heavier than any of these.
    """
    others = np.ones_like(light)
    for order in range(1, degree + 1):
        others = of_all[:, order : order + 1] - light * others
    return others


def _without_heavy(weights: Floats, of_light: _Polynomials, k: int) -> tuple[Floats, _Polynomials]:
    """For each heavy class ``e_(k-1)`` of all others, ``(rows, heavy)``; and ``e_0`` to ``e_k``.

    This multiplies the classes before each one with those after it, without division or
    subtraction: dividing a factor out would lose all digits.
    """
    before = [of_light]
    for weight in weights.T:
        before.append(_times(before[-1], weight))
    others, after = np.empty_like(weights), np.zeros_like(of_light)
    after[:, 0] = 1.0
    for place in reversed(range(weights.shape[1])):
        others[:, place] = np.vecdot(before[place][:, :k], after[:, k - 1 :: -1])
        after = _times(after, weights[:, place])
    return others, before[-1]


def _times(polynomials: _Polynomials, weight: Floats) -> _Polynomials:
    """Each polynomial times ``1 + w t``, truncated to its degree."""
    product = polynomials.copy()
    product[:, 1:] += weight[:, np.newaxis] * polynomials[:, :-1]
    return product
