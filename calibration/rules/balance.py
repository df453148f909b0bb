"""Class weights that let rare classes count: from micro accuracy (w = 1) to macro (w = 0)."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration.arrays import as_counts


def class_weights(class_counts: ArrayLike, micro_weight: float = 0.5) -> NDArray[np.float64]:
    """Factor of each class's score: ``w + (1 - w) / (classes * prior)``.

    With exact posteriors a threshold on ``p_j * factor_j`` maximises
    ``w * micro + (1 - w) * macro`` accuracy at a given mean set size (Neyman and Pearson).

    Args:
        class_counts: Training images a class, shape ``(classes,)``. A class without any counts as
            one image, so that its factor stays finite.
        micro_weight: ``w`` in [0, 1].

    Raises:
        ValueError: ``micro_weight`` out of range, or counts that are none.

    Example:
        >>> class_weights([3, 1], 0.0).round(3)
        array([0.667, 2.   ])
    """
    if not 0 <= micro_weight <= 1:
        raise ValueError(f"micro_weight must be in [0, 1], got {micro_weight}")
    counts = np.maximum(as_counts(class_counts, classes=np.size(class_counts)), 1)
    prior = counts / counts.sum()
    weights: NDArray[np.float64] = micro_weight + (1 - micro_weight) / (counts.size * prior)
    return weights
