"""Turn logits into scores, the numbers that a set rule compares with its threshold."""

from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

ScoreKind = Literal["softmax", "sigmoid"]
"""``softmax``: classes compete, a row sums to one. ``sigmoid``: classes are independent."""

SCORE_KINDS: tuple[ScoreKind, ...] = get_args(ScoreKind)


def scores(logits: ArrayLike, kind: ScoreKind, *, temperature: float = 1.0) -> NDArray[np.float64]:
    """Turn logits into scores in [0, 1], computed in float64.

    A row's scores do not depend on the other rows, bit for bit: a photo gets the same scores alone
    on the server and in a calibration batch.

    Args:
        logits: Shape ``(rows, classes)``; ``-inf`` marks an impossible class.
        kind: ``softmax`` or ``sigmoid``.
        temperature: As in :func:`scale_logits`.

    Raises:
        ValueError: An unknown kind, a wrong shape, a NaN or +inf, or for softmax a row with only
            ``-inf``.

    Example:
        >>> scores([[0.0, 0.0, -np.inf]], "softmax")
        array([[0.5, 0.5, 0. ]])
        >>> scores([[0.0, np.log(3.0)]], "sigmoid")
        array([[0.5 , 0.75]])
    """
    if kind not in SCORE_KINDS:
        raise ValueError(f"kind must be one of {', '.join(SCORE_KINDS)}, got {kind!r}")
    scaled = scale_logits(logits, temperature)
    values = np.ascontiguousarray(scaled, dtype=np.float64)  # contiguous: one order of summation
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"logits must have shape (rows, classes), got {values.shape}")
    best = values.max(axis=1, keepdims=True)
    bad = ~(best < np.inf) | ((best == -np.inf) & (kind == "softmax"))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"logits must be finite or -inf, and not all -inf in a row, got {best[row, 0]} as the "
            f"largest of row {row}"
        )
    if kind == "softmax":
        powers: NDArray[np.float64] = np.exp(values - best)
        powers /= powers.sum(axis=1, keepdims=True)
        return powers
    small = np.exp(-np.abs(values))  # never overflows
    return np.where(values >= 0, 1.0, small) / (1.0 + small)


def scale_logits(logits: ArrayLike, temperature: float) -> NDArray[Any]:
    """Divide logits by the temperature.

    All scores are computed from scaled logits, also those of several photos and top-k marginals, so
    that calibration, server, monitor and evaluation agree to the last digit. Only the familiarity
    of a photo is computed from unscaled logits.

    Args:
        logits: Shape ``(..., classes)``.
        temperature: Above 1 scores become more even, below 1 less; 1 changes nothing. The order
            of classes within a photo stays, but the set sizes of an average-K rule change. The
            result is float64 unless it is 1.

    Raises:
        ValueError: A temperature outside [0.01, 100].

    References:
        Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017,
        for the temperature.

    Example:
        >>> scale_logits([[2.0, -4.0]], 2)
        array([[ 1., -2.]])
    """
    check_temperature(temperature)
    values = np.asarray(logits)
    return values if temperature == 1 else values.astype(np.float64) / temperature


def logits_among(logits: NDArray[Any], classes: NDArray[np.intp]) -> NDArray[Any]:
    """Logits of some classes only, so that softmax scores sum to one over these.

    If none of them is possible for a photo, all get the same logit.

    ``logits`` have shape ``(..., classes)``, ``classes`` are output indices, ``(listed,)``.

    Example:
        >>> logits_among(np.array([[3.0, 1.0, 2.0], [0.0, -np.inf, -np.inf]]), np.array([1, 2]))
        array([[1., 2.],
               [0., 0.]])
    """
    listed = logits[..., classes]
    impossible = (listed == -np.inf).all(axis=-1, keepdims=True)
    return np.where(impossible, np.zeros_like(listed), listed) if impossible.any() else listed


def check_temperature(temperature: float) -> None:
    """Raise ValueError unless it lies in [0.01, 100], where no float32 logit can overflow."""
    if not 0.01 <= temperature <= 100:
        raise ValueError(f"temperature must be in [0.01, 100], got {temperature}")


def score_name(kind: str, temperature: float) -> str:
    """Name of the scores for people, such as ``softmax at temperature 1.5``."""
    return kind if temperature == 1 else f"{kind} at temperature {temperature:g}"
