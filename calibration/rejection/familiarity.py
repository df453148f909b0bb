"""How familiar a photo looks to the network: the number that tells "not one of ours".

Higher is more familiar. The methods of :data:`METHODS` need the logits of a photo and nothing else.
Those of :data:`FEATURE_METHODS` need its features, what the last layer is given, and those of some
training photos, see :mod:`calibration.rejection.reference`; they tell strangers better.
"""

from collections.abc import Callable, Mapping
from fractions import Fraction
from math import floor
from types import MappingProxyType

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration.distribution import logsumexp
from calibration.scores import ScoreKind, scores
from calibration.threshold import as_fraction

Floats = NDArray[np.float64]

DEFAULT_METHOD = "auto"
"""The best that bundle and data allow: ``combined``, else ``generalised_entropy``."""
LOGITS_METHOD = "generalised_entropy"
NEAREST = "nearest_features"
COMBINED = "combined"
FEATURE_METHODS = (COMBINED, NEAREST)
DEFAULT_SHARE = 0.01
"""Share of validation photos that is suspect."""
ENTROPY_POWER = 0.1
ENTROPY_CLASSES = 100


def max_score(logits: ArrayLike, score_kind: ScoreKind = "softmax") -> Floats:
    """The best score of each row, shape ``(rows,)``.

    References:
        Hendrycks and Gimpel, "A baseline for detecting misclassified and out-of-distribution
        examples in neural networks", ICLR 2017.

    Example:
        >>> max_score(np.log([[0.7, 0.2, 0.1]]))
        array([0.7])
    """
    best: Floats = scores(logits, score_kind).max(axis=1)
    return best


def energy(logits: ArrayLike, score_kind: ScoreKind = "softmax") -> Floats:
    """Log of the sum of ``exp`` of the logits, shape ``(rows,)``: the negative free energy.

    For ``sigmoid`` each class has an energy of its own, ``log(1 + exp(logit))``, and they add up.

    References:
        Liu, Wang, Owens and Li, "Energy-based out-of-distribution detection", NeurIPS 2020; Wang,
        Liu, Bocchieri and Li, "Can multi-label classification networks know what they don't
        know?", NeurIPS 2021.

    Example:
        >>> energy([[0.0, 0.0, 0.0, 0.0]]).round(4)
        array([1.3863])
    """
    scores(logits, score_kind)  # refuses NaN, +inf and other shapes by name
    if score_kind == "softmax":
        return logsumexp(np.asarray(logits))
    summed: Floats = np.logaddexp(0.0, np.asarray(logits, dtype=np.float64)).sum(axis=1)
    return summed


def largest_logit(logits: ArrayLike, score_kind: ScoreKind = "softmax") -> Floats:
    """The largest logit of each row, shape ``(rows,)``; the kind of score makes no difference.

    References:
        Hendrycks and others, "Scaling out-of-distribution detection for real-world settings",
        ICML 2022.

    Example:
        >>> largest_logit([[3.0, -1.0]])
        array([3.])
    """
    scores(logits, score_kind)
    best: Floats = np.asarray(logits, dtype=np.float64).max(axis=1)
    return best


def generalised_entropy(logits: ArrayLike, score_kind: ScoreKind = "softmax") -> Floats:
    """Minus the generalised entropy of the best 100 scores, shape ``(rows,)``.

    Adds up ``-(p (1 - p)) ** 0.1``: it looks at how all the leading classes share the score, where
    the best score looks at one of them.

    References:
        Liu, Lochman and Zach, "GEN: pushing the limits of softmax-based out-of-distribution
        detection", CVPR 2023.

    Example:
        >>> generalised_entropy([[50.0, 0.0], [0.0, 0.0]]).round(3)
        array([-0.007, -1.741])
    """
    values = scores(logits, score_kind)
    count = min(ENTROPY_CLASSES, values.shape[1])
    best = -np.sort(-values, axis=1)[:, :count]
    summed: Floats = -((best * (1 - best)) ** ENTROPY_POWER).sum(axis=1)
    return summed


METHODS: Mapping[str, Callable[[ArrayLike, ScoreKind], Floats]] = MappingProxyType(
    {
        "max_score": max_score,
        "energy": energy,
        "largest_logit": largest_logit,
        "generalised_entropy": generalised_entropy,
    }
)
"""What can be computed from logits alone: ``METHODS[name](logits, score_kind)``."""


def nearest_features(features: ArrayLike, reference: ArrayLike, *, neighbour: int = 10) -> Floats:
    """Cosine between each photo's features and its ``neighbour``-th nearest among the reference.

    In double precision and for any neighbour, to compare methods with; what is served is
    :meth:`calibration.rejection.reference.Reference.nearest`.

    Args:
        features: Shape ``(rows, dimensions)``, finite, no row of zeros.
        reference: Features of training photos, shape ``(photos, dimensions)``.
        neighbour: 1 to ``photos``.

    Raises:
        ValueError: Shapes do not fit, ``neighbour`` is out of range, or a row has no direction.

    References:
        Sun, Ming, Zhu and Li, "Out-of-distribution detection with deep nearest neighbors",
        ICML 2022.

    Example:
        >>> nearest_features([[2.0, 0.0]], [[1.0, 0.0], [0.0, 1.0]], neighbour=1)
        array([1.])
    """
    rows, known = _directions(features, "features"), _directions(reference, "reference")
    if rows.shape[1] != known.shape[1] or not 1 <= neighbour <= len(known):
        raise ValueError(
            f"features and reference need the same dimensions, and neighbour in [1, {len(known)}]; "
            f"got {rows.shape}, {known.shape} and {neighbour}"
        )
    cosines = rows @ known.T  # (rows, photos)
    place = len(known) - neighbour
    return np.asarray(np.partition(cosines, place, axis=1)[:, place])


def suspect_threshold(familiarity: ArrayLike, share: float = DEFAULT_SHARE) -> float:
    """The familiarity below which a photo is suspect.

    Promise: of ``n`` validation photos at most ``floor(share n)`` lie below, and exactly so many
    where familiarities do not tie at the threshold. A new photo drawn like them is suspect with a
    probability of at most ``(floor(share n) + 1) / (n + 1)``, over validation and photo together.

    Args:
        familiarity: Of validation photos, shape ``(rows,)``, at least one, no NaN.
        share: In [0, 1).

    Raises:
        ValueError: No row, a NaN, or ``share`` out of range.

    Example:
        >>> suspect_threshold([0.1, 0.5, 0.9, 0.7], 0.25)
        0.5
    """
    values = np.asarray(familiarity, dtype=np.float64)
    if values.ndim != 1 or not values.size or np.isnan(values).any():
        raise ValueError(
            f"familiarity must be one number a row and no NaN, got shape {values.shape}"
        )
    check_share(share)
    rank = floor(as_fraction(share) * Fraction(values.size))
    return float(np.partition(values, rank)[rank])


def check_share(share: float) -> None:
    """Raise ValueError unless ``0 <= share < 1``."""
    if not 0 <= share < 1:
        raise ValueError(f"share must be in [0, 1), got {share}")


def _directions(features: ArrayLike, name: str) -> Floats:
    values = np.asarray(features, dtype=np.float64)
    if values.ndim != 2 or 0 in values.shape:
        raise ValueError(f"{name} must have shape (rows, dimensions), got {values.shape}")
    lengths = np.linalg.norm(values, axis=1, keepdims=True)
    wrong = np.flatnonzero(~((lengths[:, 0] > 0) & (lengths[:, 0] < np.inf)))
    if wrong.size:
        raise ValueError(f"{name} must be finite and not all zero, row {wrong[0]} is not")
    directions: Floats = values / lengths
    return directions
