"""How probable it is that a class belongs to the top k, from the logits of one photo.

A set ``S`` of ``k`` classes has a probability proportional to ``exp`` of the sum of its logits; the
marginal of a class adds up those of the sets that hold it (appendix C). With ``w = exp(logit)``
and ``e_k`` the elementary symmetric polynomial of degree ``k``, the marginal of class ``i`` is
``w_i e_(k-1)(w without i) / e_k(w)``.

References:
    Berrada, Zisserman and Kumar, "Smooth loss functions for deep top-k classification",
    ICLR 2018, appendix C.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

LARGEST_K = 20
"""Beyond this the products could leave the range of float64."""
CLAMP = 28.0
"""Logits this far above the k-th largest are certain members; exp(-28) is below 1e-12."""
ROWS_AT_ONCE = 32

Polynomials = NDArray[np.float64]
"""Shape ``(rows, nodes, degree + 1)``: coefficients of a product of ``1 + w t`` at each node."""


def top_k_marginals(logits: ArrayLike, k: int) -> NDArray[np.float64]:
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
    marginals = np.empty_like(values)
    for start in range(0, len(values), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        marginals[rows] = _marginals(_weights(values[rows], k, first_row=start), k)
    return marginals


def _weights(logits: NDArray[np.float64], k: int, *, first_row: int) -> NDArray[np.float64]:
    """``exp`` of the logits, shifted so that the k-th largest becomes one: then ``e_k >= 1``."""
    kth = -np.partition(-logits, k - 1, axis=1)[:, k - 1 : k]  # (rows, 1)
    bad = ~(np.isfinite(kth[:, 0]) & (logits.max(axis=1) < np.inf))
    if bad.any():
        raise ValueError(
            f"logits must have no NaN, no +inf and {k} finite values or more in each row; "
            f"row {first_row + int(np.flatnonzero(bad)[0])} does not"
        )
    weights: NDArray[np.float64] = np.exp(np.minimum(logits - kth, CLAMP))
    return weights


def _marginals(weights: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    levels = _products_upwards(weights, k)
    total = levels[-1][:, 0, k]  # (rows,) e_k of all weights
    others = _products_without(levels, k, weights.shape[1])  # (rows, classes) their e_(k-1)
    return np.clip(weights * others / total[:, np.newaxis], 0.0, 1.0)


def _products_upwards(weights: NDArray[np.float64], k: int) -> list[Polynomials]:
    """Products of neighbours, level by level, from one node per class to a single node."""
    level = np.stack([np.ones_like(weights), weights], axis=2)  # (rows, classes, 2)
    levels = [level]
    while level.shape[1] > 1:
        if level.shape[1] % 2:
            one = np.zeros_like(level[:, :1])
            one[:, :, 0] = 1.0
            level = np.concatenate([level, one], axis=1)
            levels[-1] = level
        level = _multiply(level[:, 0::2], level[:, 1::2], k)
        levels.append(level)
    return levels


def _products_without(levels: list[Polynomials], k: int, classes: int) -> NDArray[np.float64]:
    """For each class the coefficient of degree ``k - 1`` in the product of all other classes.

    No division and no subtraction: dividing a factor out would lose all digits.
    """
    outside = np.ones_like(levels[-1][:, :, :1])
    for level in reversed(levels[:-1]):
        nodes = level.shape[1]  # even: odd levels were padded with a one
        siblings = level.reshape(level.shape[0], nodes // 2, 2, -1)[:, :, ::-1].reshape(level.shape)
        above = np.repeat(outside[:, : nodes // 2], 2, axis=1)  # (rows, nodes, degree + 1)
        outside = _multiply(above, siblings, k - 1)
    return outside[:, :classes, k - 1]


def _multiply(left: Polynomials, right: Polynomials, degree: int) -> Polynomials:
    """Products of polynomials, without the coefficients above ``degree``."""
    full = left.shape[2] + right.shape[2] - 1
    product = np.zeros((*left.shape[:2], min(degree + 1, full)))
    for power in range(min(right.shape[2], product.shape[2])):
        terms = min(left.shape[2], product.shape[2] - power)
        product[:, :, power : power + terms] += right[:, :, power, np.newaxis] * left[:, :, :terms]
    return product
