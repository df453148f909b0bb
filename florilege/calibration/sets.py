"""Calibrated rules that turn scores into prediction sets, and the arrays of all of calibration."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
FloatArray = NDArray[np.floating[Any]]
"""float16, float32 or float64."""

Guarantee = Literal["mean", "probability"]
"""What holds on new photos: on average over calibrations (``mean``), or for all but a share
``delta`` of calibrations (``probability``)."""

# Numbers that are processed together: so many fit into the processor's cache.
BLOCK = 1 << 16


def as_scores(scores: ArrayLike, *, first_row: int = 0) -> FloatArray:
    """Check an array of scores and return it; float16, float32 and float64 keep their type.

    Args:
        scores: Shape ``(rows, classes)``; other types become float64. ``-inf`` marks a class that
            is in no set.
        first_row: Number of the first row in error messages.

    Raises:
        ValueError: No numbers, not two axes, no row, no class, or a NaN or +inf, with its row.
            NumPy sorts NaN above every number, so one NaN would silently move a threshold by one
            rank.
    """
    array = np.asarray(scores)
    dense = f"scores must be numbers in a dense array, got {type(scores).__name__}"
    if array.dtype.kind not in "fiubO" or isinstance(scores, np.ma.MaskedArray):
        raise ValueError(dense)
    if array.dtype not in (np.float16, np.float32, np.float64):
        try:
            array = array.astype(np.float64)
        except (TypeError, ValueError) as error:
            raise ValueError(dense) from error
    if array.ndim != 2 or 0 in array.shape:
        raise ValueError(
            "scores must have shape (rows, classes) with at least one row and one class, "
            f"got {array.shape}"
        )
    # Also true for NaN, which max() propagates.
    if not array.max() < np.inf:
        row, column = np.argwhere(~(array < np.inf))[0]
        raise ValueError(
            f"scores must be below +inf and not NaN, got {array[row, column]} in row "
            f"{first_row + row}, class {column}"
        )
    return array


def as_labels(labels: ArrayLike, *, rows: int, classes: int) -> NDArray[np.int64]:
    """Check true class indices and return them as int64, shape ``(rows,)``.

    Raises:
        ValueError: A wrong shape, not integers, or an index outside ``[0, classes)``.
    """
    array = np.asarray(labels)
    if array.shape != (rows,):
        raise ValueError(f"labels must have shape ({rows},), one per row, got {array.shape}")
    if array.dtype.kind not in "iu":
        raise ValueError(f"labels must be integers, got {array.dtype}")
    wrong = np.flatnonzero((array < 0) | (array >= classes))
    if wrong.size:
        row = wrong[0]
        raise ValueError(f"labels must be in [0, {classes}), got {array[row]} in row {row}")
    return array.astype(np.int64)


def as_counts(class_counts: ArrayLike) -> NDArray[np.int64]:
    """Check the numbers of images per class and return them as int64, shape ``(classes,)``.

    Raises:
        ValueError: A wrong shape, not integers, or a negative count.
    """
    array = np.asarray(class_counts)
    if array.ndim != 1:
        raise ValueError(f"class_counts must have shape (classes,), got {array.shape}")
    if array.dtype.kind not in "iu" or (array < 0).any():
        raise ValueError("class_counts must be integers of at least 0")
    return array.astype(np.int64)


def row_blocks(table: NDArray[Any]) -> Iterator[slice]:
    """Slices over all rows in order, of at most ``BLOCK`` numbers but at least one row.

    Example:
        >>> list(row_blocks(np.empty((5, 30_000))))
        [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    rows, columns = table.shape
    step = max(1, BLOCK // columns)
    return (slice(start, min(start + step, rows)) for start in range(0, rows, step))


@dataclass(frozen=True, kw_only=True, eq=False)
class SetRule:
    """A rule whose sets hold the classes that reach the threshold, or the k best classes.

    Scores are multiplied by ``class_weights`` first. With ``class_thresholds``, these are then
    subtracted, and ``lambda_val`` is 0. Both have the shape ``(classes,)``.
    """

    rule: str  # name of the rule, as in :data:`florilege.calibration.rules.RULES`
    lambda_val: float | None  # threshold; None for ``top_k``, which has none
    min_size: int  # 1 where every set holds its best class whatever its score, else 0
    rows: int  # rows of the calibration scores
    top_k: int | None = None  # size of every set for the rule ``top_k``, else None
    class_weights: NDArray[np.float64] | None = None
    class_thresholds: NDArray[np.float64] | None = None
    max_size: int | None = None  # larger sets keep only this many best classes; None: no limit
    macro_weight: float | None = None  # of the rules for rare classes, else None
    achieved: float | None = None  # mean set size on the calibration scores, if known
    ties: int = 0  # scores kept beyond the rank, because they equal the last one within it

    def compare(self, scores: ArrayLike) -> NDArray[np.float64]:
        """The numbers that are compared with ``lambda_val``, float64 ``(..., classes)``.

        Raises:
            ValueError: The rule was calibrated for a different number of classes.
        """
        values = self.rank_by(scores)
        if self.class_thresholds is None:
            return values
        _check_classes(values, self.class_thresholds.size)
        # Floats underflow gradually: a difference is 0 only between equal numbers, so comparing it
        # with 0 decides exactly as comparing the two would.
        return values - self.class_thresholds

    def rank_by(self, scores: ArrayLike) -> NDArray[np.float64]:
        """Weighted scores, which rank the classes: float64 ``(..., classes)``."""
        values = np.asarray(scores, dtype=np.float64)
        if self.class_weights is None:
            return values
        _check_classes(values, self.class_weights.size)
        return values * self.class_weights

    def sets(self, scores: ArrayLike) -> NDArray[np.bool_]:
        """The prediction sets, in the shape of the scores: True for a class in the set.

        Raises:
            ValueError: A wrong shape, a NaN or +inf.
        """
        ranked = self.rank_by(as_scores(scores))
        if self.top_k is not None:
            return _best_k(ranked, self.top_k)
        inside: NDArray[np.bool_] = self.compare(scores) >= np.float64(self.lambda_val)
        if self.min_size:
            np.put_along_axis(inside, best_class(ranked)[:, np.newaxis], True, axis=1)
        if self.max_size is not None:
            inside &= _best_k(np.where(inside, ranked, -np.inf), self.max_size)
        return inside

    def to_json(self) -> str:
        """The rule as a JSON object with all digits, for :meth:`from_json`."""
        content = {entry.name: getattr(self, entry.name) for entry in fields(SetRule)}
        return json.dumps(content, default=np.ndarray.tolist, allow_nan=False)

    @staticmethod
    def from_json(text: str | bytes) -> "SetRule":
        """Read the JSON that :meth:`to_json` writes.

        Raises:
            ValueError: The text is not a rule.
        """
        try:
            # NaN and the infinities are no int, so they are refused.
            content = json.loads(text, parse_constant=int)
            for name in ("class_weights", "class_thresholds"):
                if content[name] is not None:
                    content[name] = np.array(content[name], dtype=np.float64)
            return SetRule(**content)
        except (ValueError, TypeError, KeyError) as error:
            raise ValueError(f"not a rule as SetRule.to_json writes it: {error!r}") from error


def largest_set(classes: int, score_kind: str, lambda_val: float) -> int:
    """The most classes a set can hold: softmax scores sum to one, so ``1 / lambda_val`` of them."""
    if score_kind != "softmax" or lambda_val <= 1 / classes:
        return classes
    # 1e-6 allows for the rounding of the sum.
    return max(1, min(classes, int(1 / lambda_val + 1e-6)))


def _check_classes(values: NDArray[np.float64], classes: int) -> None:
    if values.shape[-1] != classes:
        raise ValueError(f"scores must have {classes} classes, got {values.shape[-1]}")


def best_class(values: NDArray[Any]) -> NDArray[np.int64]:
    """Index of each row's largest value, the first of equal ones; shape ``(rows,)``."""
    return np.asarray(values.argmax(axis=1), dtype=np.int64)


def _best_k(values: NDArray[Any], k: int) -> NDArray[np.bool_]:
    """Mask of each row's ``k`` largest values; the first of equal ones."""
    # Negated, not reversed: reversing a stable order would put the last of equal values first.
    order = np.argsort(-values, axis=1, kind="stable")[:, :k]
    inside = np.zeros(values.shape, dtype=np.bool_)
    np.put_along_axis(inside, order, True, axis=1)
    return inside
