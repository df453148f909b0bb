"""Photos with a known posterior: species in genera, as Gaussians, with a long tail."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

CLASSES = 30
GENERA = 6
_RANDOM = np.random.default_rng(11)
PRIOR = (1 / np.arange(1, CLASSES + 1)) / (1 / np.arange(1, CLASSES + 1)).sum()
_CENTRES = np.repeat(_RANDOM.normal(0, 2.2, (GENERA, 4)), CLASSES // GENERA, axis=0)
MEANS = (_CENTRES + _RANDOM.normal(0, 0.8, (CLASSES, 4)))[_RANDOM.permutation(CLASSES)]


class Sample(NamedTuple):
    """Exact posteriors ``(rows, classes)`` and labels ``(rows,)``."""

    scores: NDArray[np.float64]
    labels: NDArray[np.int64]


def draw(random: np.random.Generator, rows: int, *, prior: NDArray[np.float64] = PRIOR) -> Sample:
    """Draw species by a prior, photos by their Gaussian, and give the posterior under ``PRIOR``."""
    labels = random.choice(CLASSES, rows, p=prior)
    points = MEANS[labels] + random.standard_normal((rows, 4))
    # The square of each point is the same for all species, so that it cancels.
    logits = points @ MEANS.T - (MEANS**2).sum(axis=1) / 2
    joint = PRIOR * np.exp(logits - logits.max(axis=1, keepdims=True))
    return Sample(joint / joint.sum(axis=1, keepdims=True), labels)
