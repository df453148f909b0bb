"""Familiarity scores, which detect out-of-distribution photos.

Higher is more familiar. :func:`generalised_entropy` needs only the logits of a photo. ``combined``
also needs its features, the input of the last layer, and those of some training photos; it detects
more of these photos.
"""

from fractions import Fraction
from math import floor

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.scores import ScoreKind, scores
from florilege.calibration.threshold import as_fraction
from florilege.calibration.validation import Floats

LOGITS_METHOD = "generalised_entropy"
COMBINED = "combined"
DEFAULT_SHARE = 0.01  # share of validation photos that are suspect
ENTROPY_POWER = 0.1
ENTROPY_CLASSES = 100
_ROUNDING = 1e-12  # of sums of weights


def generalised_entropy(logits: ArrayLike, score_kind: ScoreKind) -> Floats:
    """Minus the generalised entropy of the best 100 scores, shape ``(rows,)``.

    The sum of ``-(p (1 - p)) ** 0.1``: it depends on the scores of all leading classes, not only on
    the best score.

    References:
        Liu, Lochman and Zach, "GEN: pushing the limits of softmax-based out-of-distribution
        detection", CVPR 2023.
    """
    values = scores(logits, score_kind)
    count = min(ENTROPY_CLASSES, values.shape[1])
    best = -np.sort(-values, axis=1)[:, :count]
    summed: Floats = -((best * (1 - best)) ** ENTROPY_POWER).sum(axis=1)
    return summed


def suspect_threshold(familiarity: ArrayLike, share: float = DEFAULT_SHARE) -> float:
    """The familiarity below which a photo is suspect.

    Promise: of ``n`` validation photos at most ``floor(share n)`` lie below, and exactly that many
    if no familiarities tie at the threshold. A new photo drawn like them is suspect with a
    probability of at most ``(floor(share n) + 1) / (n + 1)``, over validation and photo together.

    ``familiarity`` is that of validation photos, shape ``(rows,)``.

    Raises:
        ValueError: No row, a NaN, or ``share`` outside [0, 1).
    """
    values = np.asarray(familiarity, dtype=np.float64)
    if values.ndim != 1 or not values.size or np.isnan(values).any():
        raise ValueError(
            f"familiarity must be one number per row and no NaN, got shape {values.shape}"
        )
    if not 0 <= share < 1:
        raise ValueError(f"share must be in [0, 1), got {share}")
    rank = floor(as_fraction(share) * Fraction(values.size))
    return float(np.partition(values, rank)[rank])


def unseen_threshold(familiarity: ArrayLike, labels: ArrayLike, coverage: float) -> float | None:
    """The familiarity up to which a photo may show a class that the network does not know.

    Promise: a photo of a new class has at most this familiarity with a probability of at least
    ``coverage``, over the classes of calibration and photo together, if the new class is
    exchangeable with those of ``labels``. The photos of one class may depend on each other.

    Args:
        familiarity: Of calibration photos, each compared with the *other* classes alone, shape
            ``(rows,)``, no NaN.
        labels: Their classes, int64 ``(rows,)``; each class counts alike.
        coverage: In (0, 1); None is returned for fewer than ``coverage / (1 - coverage)`` classes.

    References:
        Lee, Barber and Willett, "Distribution-free inference with hierarchical data", 2023.
    """
    values = np.asarray(familiarity, dtype=np.float64)
    _, classes, photos = np.unique(labels, return_inverse=True, return_counts=True)
    weights = 1 / (photos[classes] * (len(photos) + 1.0))  # a new class has the rest
    order = np.argsort(values, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), coverage - _ROUNDING))
    return None if place == values.size else float(values[order[place]])
