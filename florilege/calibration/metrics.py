"""What the figures of sets are measured by: ranks of true classes, and groups of classes."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.validation import FloatArray, as_counts

FEW_BELOW = 20  # classes with fewer training images are few-shot ([A] table 2)
MANY_ABOVE = 100  # classes with more training images are many-shot


def shot_groups(class_counts: ArrayLike) -> dict[str, NDArray[np.bool_]]:
    """Which classes have ``few`` (< 20), ``medium`` or ``many`` (> 100) training images.

    ``class_counts`` and the masks have the shape ``(classes,)``.

    Example:
        >>> {name: mask.tolist() for name, mask in shot_groups([5, 100]).items()}
        {'few': [True, False], 'medium': [False, True], 'many': [False, False]}
    """
    counts = as_counts(class_counts)
    few, many = counts < FEW_BELOW, counts > MANY_ABOVE
    return {"few": few, "medium": ~few & ~many, "many": many}


def true_class_ranks(scores: FloatArray, labels: NDArray[np.int64]) -> NDArray[np.int64]:
    """Rank of the true class from 0, shape ``(rows,)``: the number of classes before it.

    These have a higher score, or the same score and a lower index.
    """
    true = np.take_along_axis(scores, labels[:, np.newaxis], axis=1)  # (rows, 1)
    earlier = np.arange(scores.shape[1]) < labels[:, np.newaxis]  # (rows, classes)
    before = (scores > true) | ((scores == true) & earlier)
    return np.asarray(np.count_nonzero(before, axis=1), dtype=np.int64)


def check_k(k: int, *, classes: int) -> None:
    """Raise ValueError unless ``k`` is an integer with ``1 <= k <= classes``."""
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or not 1 <= k <= classes:
        raise ValueError(f"k must be an integer in [1, {classes}] for {classes} classes, got {k!r}")
