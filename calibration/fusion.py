"""Fuse several photos of one plant, or several crops of one photo, into one row of scores.

Fusing changes the distribution of scores. At the threshold for single photos, sets for three photos
of one species hold 2.4 classes in one simulation and 3.5 in another, instead of 3. So a threshold
is calibrated on scores fused from exactly as many photos as it is used with:
`florilege.calibration.photo_groups` makes the groups, :func:`fuse` the scores, and
`florilege.calibration.rules` calibrates on them; its table says how each rule fuses.
"""

from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.marginals import top_k_marginals
from florilege.calibration.metrics import check_k
from florilege.calibration.scores import ScoreKind, scores

Fusion = Literal["mean_score", "mean_marginal", "mean_logit", "max_score"]
"""``mean_score``: mean of the photos' scores. ``mean_marginal``: mean of their top-k marginals.
``mean_logit``: scores of the mean logits; for softmax the geometric mean of the scores, scaled to
sum to one. ``max_score``: the best of the photos' scores."""

FUSIONS: tuple[Fusion, ...] = get_args(Fusion)


def fuse(
    logits: ArrayLike, *, score_kind: ScoreKind, fusion: Fusion = "mean_score", k: int | None = None
) -> NDArray[np.float64]:
    """Fuse the logits of all photos of each plant into one row of scores.

    A plant's scores depend neither on the other plants of the batch nor on the order of its photos,
    bit for bit: a request gets the same scores as a calibration group of the same photos.

    Args:
        logits: Shape ``(plants, photos, classes)``; ``-inf`` marks an impossible class.
        score_kind: How the logits of one photo become scores.
        fusion: One of :data:`FUSIONS`.
        k: Size of the sets, only for ``mean_marginal``; ``1 <= k <= min(20, classes)``.

    Returns:
        Scores in [0, 1], float64, shape ``(plants, classes)``. A row of ``mean_score`` or
        ``mean_logit`` sums to 1 for softmax, one of ``mean_marginal`` to ``k``.

    Raises:
        ValueError: An unknown fusion or kind, a wrong shape, no photo, a ``k`` that is missing,
            out of range or not allowed, or logits that are NaN or +inf.

    References:
        Berrada, Zisserman and Kumar, "Smooth loss functions for deep top-k classification",
        ICLR 2018, section 5.2, for the mean of marginals over crops.

    Example:
        >>> two_photos = np.log([[[0.8, 0.1, 0.1], [0.4, 0.5, 0.1]]])
        >>> fuse(two_photos, score_kind="softmax").round(2)
        array([[0.6, 0.3, 0.1]])
    """
    values = _checked(logits, fusion, k)
    if fusion == "mean_logit":
        return scores(_mean(values), score_kind)
    plants, photos, classes = values.shape
    rows = values.reshape(plants * photos, classes)
    single = scores(rows, score_kind) if k is None else top_k_marginals(rows, k)
    grouped = single.reshape(plants, photos, classes)
    return grouped.max(axis=1) if fusion == "max_score" else _mean(grouped)


def _checked(logits: ArrayLike, fusion: str, k: int | None) -> NDArray[np.float64]:
    if fusion not in FUSIONS:
        raise ValueError(f"fusion must be one of {', '.join(FUSIONS)}, got {fusion!r}")
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(
            "logits must have shape (plants, photos, classes) with at least one of each, "
            f"got {values.shape}"
        )
    if (k is None) == (fusion == "mean_marginal"):
        raise ValueError(f"mean_marginal needs k, other fusions take none, got {k} for {fusion}")
    if k is not None:
        check_k(k, classes=values.shape[2])
    return values


def _mean(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Mean over the photos, summed in ascending order so that their order changes no digit."""
    ascending = np.sort(values, axis=1)  # (plants, photos, classes)
    total = ascending[:, 0].copy()
    for photo in range(1, values.shape[1]):
        total += ascending[:, photo]
    mean: NDArray[np.float64] = total / values.shape[1]
    return mean
