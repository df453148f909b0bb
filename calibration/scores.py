"""From logits to scores, the numbers that a set rule compares with its threshold."""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

ScoreKind = Literal["softmax", "sigmoid"]
"""``softmax``: classes compete, a row sums to one. ``sigmoid``: each class on its own."""

SCORE_KINDS: tuple[ScoreKind, ...] = get_args(ScoreKind)


def scores(logits: ArrayLike, kind: ScoreKind) -> NDArray[np.float64]:
    """Turn logits into scores in [0, 1], computed in float64.

    A row's scores do not depend on the rows beside it, bit for bit: one photo served alone gets
    the numbers that it had in a calibration batch.

    Args:
        logits: Shape ``(rows, classes)``; ``-inf`` marks a class that cannot be.
        kind: ``softmax`` or ``sigmoid``.

    Returns:
        Scores of the same shape.

    Raises:
        ValueError: An unknown kind, another shape, a NaN or +inf, or a row of ``-inf`` alone
            for softmax.

    Example:
        >>> scores([[0.0, 0.0, -np.inf]], "softmax")
        array([[0.5, 0.5, 0. ]])
        >>> scores([[0.0, np.log(3.0)]], "sigmoid")
        array([[0.5 , 0.75]])
    """
    if kind not in SCORE_KINDS:
        raise ValueError(f"kind must be one of {', '.join(SCORE_KINDS)}, got {kind!r}")
    values = np.ascontiguousarray(logits, dtype=np.float64)  # contiguous: one order of summation
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"logits must have shape (rows, classes), got {values.shape}")
    _refuse(values, kind)
    return _softmax(values) if kind == "softmax" else _sigmoid(values)


def _softmax(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    powers: NDArray[np.float64] = np.exp(logits - logits.max(axis=1, keepdims=True))
    powers /= powers.sum(axis=1, keepdims=True)
    return powers


def _sigmoid(logits: NDArray[np.float64]) -> NDArray[np.float64]:
    small = np.exp(-np.abs(logits))  # never overflows
    return np.where(logits >= 0, 1.0, small) / (1.0 + small)


def _refuse(logits: NDArray[np.float64], kind: ScoreKind) -> None:
    best = logits.max(axis=1)
    bad = ~(best < np.inf)
    if kind == "softmax":
        bad |= best == -np.inf
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"logits must be finite or -inf (not all of a row), got {best[row]} as "
            f"the largest of row {row}"
        )
