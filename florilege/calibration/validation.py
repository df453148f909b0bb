"""Checks of array arguments, and iteration over large arrays."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Singles = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
FloatArray = NDArray[np.floating[Any]]
"""float16, float32 or float64."""

BLOCK = 1 << 16  # numbers processed together, so that they fit into the processor's cache


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
    if not array.max() < np.inf:  # also true for NaN, which max() propagates
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
