"""Features of invented photos, to train heads on."""

import numpy as np
from numpy.typing import NDArray

from florilege.data.records import Split
from florilege.training.batches import Features


def features_of(values: NDArray[np.float64], labels: NDArray[np.int64]) -> Features:
    """Features as if they were stored, ``(rows, dimensions)``."""
    names = [""] * len(labels)
    split = Split(name="train", labels=labels, names=names, observations=None, read=lambda _: b"")
    return Features(split, values.astype(np.float32), np.arange(len(labels)))


def classes_of(rows: int, seed: int, *, wrong: float = 0.0) -> Features:
    """Features of four classes in six dimensions, some with wrong labels."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(0, 1.5, (4, 6))
    true = random.integers(0, 4, rows)
    values = centres[true] + random.normal(0, 1, (rows, 6)) @ np.diag([1, 2, 1, 1, 3, 1.0])
    options = np.where(random.random(rows) < wrong, random.integers(0, 4, rows), true)
    return features_of(values, options)
