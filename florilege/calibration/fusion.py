"""Fuse several photos of one observation into one row of scores.

Fusing changes the distribution of scores. At the threshold for single photos, sets for three photos
of one species hold 2.4 classes in one simulation and 3.5 in another, instead of 3. So a threshold
is calibrated on scores fused from exactly as many photos as it is used with, of the groups of
`florilege.calibration.photo_groups`.
"""

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.scores import ScoreKind, scores
from florilege.calibration.validation import Floats

Fusion = float | None
"""None: the mean of the photos' scores. A number: the exponent of a product of likelihoods."""
EXPONENTS: tuple[float, ...] = (0.35, 0.5, 0.7, 1.0)
"""Compared with the mean: 1 is right where photos err independently, less if they err together."""


def fuse(
    logits: ArrayLike,
    *,
    score_kind: ScoreKind,
    fusion: Fusion = None,
    lift: Floats | None = None,
    prior: Floats | None = None,
) -> Floats:
    r"""Fuse the logits of all photos of each observation into one row of scores.

    The mean is robust: one photo of something else spoils it less. Where every photo shows the
    plant, a product of likelihoods is right more often, with the prior counted once:

    .. math:: \log p_c = a \sum_i (\log p_{ic} - \log \pi_c) + \log \pi_c + \text{const}

    An observation's scores depend neither on the other observations of the batch nor on the order
    of its photos, bit for bit: a request gets the same scores as a calibration group of the same
    photos. For one photo and the mean they are :func:`florilege.calibration.scores.scores`.

    Args:
        logits: Scaled, shape ``(observations, photos, classes)``; ``-inf`` marks an impossible
            class.
        score_kind: How the logits of one photo become scores; a product needs ``softmax``.
        fusion: The exponent :math:`a` in (0, 1], or None for the mean.
        lift: What a place adds, shape ``(observations or 1, 1, classes)``: to each photo for the
            mean, once for a product.
        prior: :math:`\pi`, shape ``(classes,)``, for a product.

    Returns:
        Values in [0, 1], float64, shape ``(observations, classes)``.

    Raises:
        ValueError: An unknown kind, a wrong shape, no photo, a product without a prior, or logits
            that are NaN or +inf.

    Example:
        >>> two_photos = np.log([[[0.8, 0.1, 0.1], [0.4, 0.5, 0.1]]])
        >>> fuse(two_photos, score_kind="softmax").round(2)
        array([[0.6, 0.3, 0.1]])
        >>> fuse(two_photos, score_kind="softmax", fusion=1.0, prior=np.full(3, 1 / 3)).round(2)
        array([[0.84, 0.13, 0.03]])
    """
    values = np.asarray(logits, dtype=np.float64)
    if values.ndim != 3 or 0 in values.shape:
        raise ValueError(
            "logits must have shape (observations, photos, classes) with at least one of each, "
            f"got {values.shape}"
        )
    _, photos, classes = values.shape
    if fusion is not None:
        return _product(values, fusion, lift, prior)
    lifted = values if lift is None else values + lift
    single = scores(lifted.reshape(-1, classes), score_kind).reshape(values.shape)
    return single[:, 0] if photos == 1 else _ordered_sum(single) / photos


def _product(values: Floats, exponent: float, lift: Floats | None, prior: Floats | None) -> Floats:
    if prior is None or prior.shape != values.shape[2:]:
        raise ValueError(f"a product of photos needs a prior of {values.shape[2]} classes")
    best = values.max(axis=2, keepdims=True)
    if not (np.abs(best) < np.inf).all():
        raise ValueError("logits must be finite or -inf, and not all -inf for a photo")
    log_prior = np.log(prior)
    sums = np.log(np.exp(values - best).sum(axis=2, keepdims=True)) + best
    evidence = _ordered_sum(values - sums - log_prior)
    fused = exponent * evidence + log_prior
    if lift is not None:
        fused = fused + lift[:, 0]
    impossible = (fused == -np.inf).all(axis=1, keepdims=True)  # the photos exclude all classes
    return scores(np.where(impossible, log_prior, fused), "softmax")


def _ordered_sum(values: Floats) -> Floats:
    """Sum over the photos, ``(observations, classes)``; their order changes no digit."""
    ascending = np.sort(values, axis=1)
    total = np.zeros((len(values), values.shape[2]))
    for photo in range(values.shape[1]):
        total += ascending[:, photo]
    return total
