"""Metrics of prediction sets: accuracies over rows and over classes, and set sizes.

``scores`` have the shape ``(rows, classes)``, ``labels`` are true class indices, ``(rows,)``. A
threshold keeps a class when its score, in float64, is at least ``lambda_val``. The top-k set holds
exactly ``k`` classes, ``1 <= k <= classes``; the first of equal scores comes first.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.sets import FloatArray, as_counts, as_labels, as_scores

# The bounds of table 2 of Garcin et al., "A two-head loss function for deep Average-K
# classification".
FEW_BELOW = 20  # classes with fewer training images are few-shot
MANY_ABOVE = 100  # classes with more training images are many-shot


def average_k_accuracy(scores: ArrayLike, labels: ArrayLike, lambda_val: float) -> float:
    """Share of rows whose set holds the true class.

    Example:
        >>> average_k_accuracy([[0.7, 0.3], [0.6, 0.4]], [0, 1], 0.5)
        0.5
    """
    return float(_threshold_hits(scores, labels, lambda_val).mean())


def top_k_accuracy(scores: ArrayLike, labels: ArrayLike, k: int) -> float:
    """Share of rows with the true class among the ``k`` best.

    Example:
        >>> top_k_accuracy([[0.5, 0.3, 0.2], [0.5, 0.3, 0.2]], [1, 2], 2)
        0.5
    """
    return float(_top_k_hits(scores, labels, k).mean())


def macro_average_k_accuracy(scores: ArrayLike, labels: ArrayLike, lambda_val: float) -> float:
    """Mean of the average-K accuracy of each class, over the classes among the labels."""
    return _class_mean(_threshold_hits(scores, labels, lambda_val), np.asarray(labels))


def macro_top_k_accuracy(scores: ArrayLike, labels: ArrayLike, k: int) -> float:
    """Mean of the top-k accuracy of each class, over the classes among the labels."""
    return _class_mean(_top_k_hits(scores, labels, k), np.asarray(labels))


def mean_set_size(scores: ArrayLike, lambda_val: float) -> float:
    """Mean number of classes in a set."""
    return float(_set_sizes(scores, lambda_val).mean())


def set_size_histogram(scores: ArrayLike, lambda_val: float) -> NDArray[np.int64]:
    """How many rows have a set of 0, 1, ... classes; shape ``(classes + 1,)``.

    Example:
        >>> set_size_histogram([[0.7, 0.3], [0.6, 0.4], [0.2, 0.1]], 0.4)
        array([1, 1, 1])
    """
    sizes = _set_sizes(scores, lambda_val)
    return np.bincount(sizes, minlength=np.shape(scores)[1] + 1).astype(np.int64)


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


def _class_mean(hits: NDArray[np.bool_], labels: NDArray[np.int64]) -> float:
    """Mean of the hit rate of each class, over the classes among ``labels``."""
    photos = np.bincount(labels)
    hits_by_class = np.bincount(labels, weights=hits)
    present = photos > 0
    return float((hits_by_class[present] / photos[present]).mean())


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


def _set_sizes(scores: ArrayLike, lambda_val: float) -> NDArray[np.int64]:
    inside = as_scores(scores) >= _threshold(lambda_val)
    return np.asarray(np.count_nonzero(inside, axis=1), dtype=np.int64)


def _threshold_hits(scores: ArrayLike, labels: ArrayLike, lambda_val: float) -> NDArray[np.bool_]:
    array = as_scores(scores)
    true = as_labels(labels, rows=array.shape[0], classes=array.shape[1])
    return array[np.arange(len(true)), true] >= _threshold(lambda_val)


def _threshold(lambda_val: float) -> np.float64:
    # A Python float would be rounded to the type of the scores, and float32 has no room for a
    # midpoint.
    threshold = np.float64(lambda_val)
    # NumPy turns None, of a rule without a threshold, into NaN.
    if np.isnan(threshold):
        raise ValueError(f"lambda_val must be a number, got {lambda_val}")
    return threshold


def _top_k_hits(scores: ArrayLike, labels: ArrayLike, k: int) -> NDArray[np.bool_]:
    array = as_scores(scores)
    rows, classes = array.shape
    check_k(k, classes=classes)
    return true_class_ranks(array, as_labels(labels, rows=rows, classes=classes)) < k
