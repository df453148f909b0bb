"""Fuse several photos of one plant, or several crops of one photo, into one row of scores.

Fusing changes the distribution of scores. At the threshold for single photos, sets for three photos
of one species hold 2.4 classes in one simulation and 3.5 in another, instead of 3. So a threshold
is calibrated on scores fused from exactly as many photos as it is used with, of the groups of
`florilege.calibration.photo_groups`.
"""

from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.marginals import top_k_marginals
from florilege.calibration.scores import ScoreKind, scores

Fusion = Literal["mean_score", "mean_marginal"]
"""``mean_score``: mean of the photos' scores. ``mean_marginal``: mean of their top-k marginals."""


def fuse(logits: ArrayLike, *, score_kind: ScoreKind, k: int | None = None) -> NDArray[np.float64]:
    """Fuse the logits of all photos of each plant into one row of scores: their mean.

    A plant's scores depend neither on the other plants of the batch nor on the order of its photos,
    bit for bit: a request gets the same scores as a calibration group of the same photos.

    Args:
        logits: Shape ``(plants, photos, classes)``; ``-inf`` marks an impossible class.
        score_kind: How the logits of one photo become scores.
        k: If given, the mean is that of the photos' top-k marginals instead of their scores;
            ``1 <= k <= min(20, classes)``.

    Returns:
        Values in [0, 1], float64, shape ``(plants, classes)``.

    Raises:
        ValueError: An unknown kind, a wrong shape, no photo, ``k`` out of range, or logits that are
            NaN or +inf.

    References:
        Berrada, Zisserman and Kumar, "Smooth loss functions for deep top-k classification",
        ICLR 2018, section 5.2, for the mean of marginals over crops.

    Example:
        >>> two_photos = np.log([[[0.8, 0.1, 0.1], [0.4, 0.5, 0.1]]])
        >>> fuse(two_photos, score_kind="softmax").round(2)
        array([[0.6, 0.3, 0.1]])
    """
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(
            "logits must have shape (plants, photos, classes) with at least one of each, "
            f"got {values.shape}"
        )
    rows = values.reshape(-1, values.shape[2])
    single = scores(rows, score_kind) if k is None else top_k_marginals(rows, k)
    ascending = np.sort(single.reshape(values.shape), axis=1)  # their order changes no digit
    total = np.zeros((len(values), values.shape[2]))
    for photo in range(values.shape[1]):
        total += ascending[:, photo]
    total /= values.shape[1]
    return total
