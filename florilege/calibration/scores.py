"""Turn logits into scores, the numbers that a set rule compares with its threshold.

:func:`scores` are those of single photos, :func:`fuse` makes one row of scores from several photos
of one observation, and :class:`Distribution` holds histograms of scores.

Fusing changes the distribution of scores. At the threshold for single photos, sets for three photos
of one species hold 2.4 classes in one simulation and 3.5 in another, instead of 3. So a threshold
is calibrated on scores fused from exactly as many photos as it is used with, of the groups of
:mod:`florilege.calibration.photo_groups`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.sets import Floats

ScoreKind = Literal["softmax", "sigmoid"]
"""``softmax``: classes compete, a row sums to one. ``sigmoid``: classes are independent."""

SCORE_KINDS: tuple[ScoreKind, ...] = get_args(ScoreKind)


def scores(logits: ArrayLike, kind: ScoreKind, *, temperature: float = 1.0) -> NDArray[np.float64]:
    """Turn logits into scores in [0, 1], computed in float64.

    A row's scores do not depend on the other rows, bit for bit: a photo gets the same scores alone
    on the server and in a calibration batch.

    Args:
        logits: Shape ``(rows, classes)``; ``-inf`` marks an impossible class.
        kind: ``softmax`` or ``sigmoid``.
        temperature: As in :func:`scale_logits`.

    Raises:
        ValueError: An unknown kind, a wrong shape, a NaN or +inf, or for softmax a row with only
            ``-inf``.

    Example:
        >>> scores([[0.0, 0.0, -np.inf]], "softmax")
        array([[0.5, 0.5, 0. ]])
        >>> scores([[0.0, np.log(3.0)]], "sigmoid")
        array([[0.5 , 0.75]])
    """
    if kind not in SCORE_KINDS:
        raise ValueError(f"kind must be one of {', '.join(SCORE_KINDS)}, got {kind!r}")
    scaled = scale_logits(logits, temperature)
    # NumPy's order of summation depends on the memory layout, and with it the last digit.
    values = np.ascontiguousarray(scaled, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] == 0:
        raise ValueError(f"logits must have shape (rows, classes), got {values.shape}")
    best = values.max(axis=1, keepdims=True)
    # max() propagates NaN, so this finds it too. A softmax of -inf alone would be 0/0.
    bad = ~(best < np.inf) | ((best == -np.inf) & (kind == "softmax"))
    if bad.any():
        row = int(np.flatnonzero(bad)[0])
        raise ValueError(
            f"logits must be finite or -inf, and not all -inf in a row, got {best[row, 0]} as the "
            f"largest of row {row}"
        )
    if kind == "softmax":
        powers: NDArray[np.float64] = np.exp(values - best)
        powers /= powers.sum(axis=1, keepdims=True)
        return powers
    small = np.exp(-np.abs(values))  # never overflows
    return np.where(values >= 0, 1.0, small) / (1.0 + small)


def scale_logits(logits: ArrayLike, temperature: float) -> NDArray[Any]:
    """Divide logits by the temperature.

    All scores are computed from scaled logits, also those of several photos and top-k marginals, so
    that calibration, server, monitor and evaluation agree to the last digit. Only the familiarity
    of a photo is computed from unscaled logits.

    Args:
        logits: Shape ``(..., classes)``.
        temperature: Above 1 scores become more even, below 1 less; 1 changes nothing. The order
            of classes within a photo stays, but the set sizes of an average-K rule change. The
            result is float64 unless it is 1.

    Raises:
        ValueError: A temperature outside [0.01, 100].

    References:
        Guo, Pleiss, Sun and Weinberger, "On calibration of modern neural networks", ICML 2017,
        for the temperature.

    Example:
        >>> scale_logits([[2.0, -4.0]], 2)
        array([[ 1., -2.]])
    """
    check_temperature(temperature)
    values = np.asarray(logits)
    return values if temperature == 1 else values.astype(np.float64) / temperature


def logits_among(logits: NDArray[Any], classes: NDArray[np.intp]) -> NDArray[Any]:
    """Logits of some classes only, so that softmax scores sum to one over these.

    If none of them is possible for a photo, all get the same logit.

    ``logits`` have shape ``(..., classes)``, ``classes`` are output indices, ``(listed,)``.

    Example:
        >>> logits_among(np.array([[3.0, 1.0, 2.0], [0.0, -np.inf, -np.inf]]), np.array([1, 2]))
        array([[1., 2.],
               [0., 0.]])
    """
    listed = logits[..., classes]
    impossible = (listed == -np.inf).all(axis=-1, keepdims=True)
    return np.where(impossible, np.zeros_like(listed), listed) if impossible.any() else listed


def check_temperature(temperature: float) -> None:
    """Raise ValueError unless it lies in [0.01, 100], where no float32 logit can overflow."""
    if not 0.01 <= temperature <= 100:
        raise ValueError(f"temperature must be in [0.01, 100], got {temperature}")


def score_name(kind: str, temperature: float) -> str:
    """Name of the scores for people, such as ``softmax at temperature 1.5``."""
    return kind if temperature == 1 else f"{kind} at temperature {temperature:g}"


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


_LOWEST_POWER = -20  # scores below 2**-20 share the first bin
EDGES: NDArray[np.float64] = np.concatenate([[0.0], 2.0 ** np.arange(_LOWEST_POWER, 0.01, 0.25)])
"""Lower edges of the bins: four to a factor of two; the last one holds the score 1 alone."""

LOGSUMEXP_BINS = 40


@dataclass(frozen=True, kw_only=True)
class Distribution:
    """Histograms of the served scores, to compare live traffic with: one of each observation.

    Photos of one observation are alike. If each counted, a monitor would take the histograms for
    more exact than they are.

    Attributes:
        edges: Lower edges of the bins.
        all_scores: Number of scores in each bin, over all classes.
        best_scores: Number of photos whose best score lies in each bin.
        logsumexp_mean: Mean over the photos of log sum exp of the served head's logits.
        logsumexp_deviation: Its standard deviation.
        logsumexp_edges: Lower edges of up to 40 bins with about the same number of photos.
        logsumexp: Number of photos in each of these bins.
    """

    edges: tuple[float, ...]
    all_scores: tuple[int, ...]
    best_scores: tuple[int, ...]
    logsumexp_mean: float
    logsumexp_deviation: float
    logsumexp_edges: tuple[float, ...]
    logsumexp: tuple[int, ...]

    def __post_init__(self) -> None:
        check_histogram(self.edges, self.all_scores)
        check_histogram(self.edges, self.best_scores)
        check_histogram(self.logsumexp_edges, self.logsumexp)


def check_histogram(edges: Sequence[float], counts: Sequence[int]) -> None:
    """Raise ValueError unless edges ascend and each has a count, which are not all 0."""
    if len(edges) != len(counts) or min(counts, default=0) < 0 or not 0 < sum(counts) < 2**63:
        raise ValueError("a histogram needs one count of at least 0 per edge, and some values")
    if any(low >= high for low, high in pairwise(edges)):
        raise ValueError("edges must be strictly ascending")


class DistributionOf:
    """Builds a :class:`Distribution` batch by batch."""

    def __init__(self) -> None:
        self._all, self._best = np.zeros((2, EDGES.size), dtype=np.int64)
        self._logsumexp: list[NDArray[np.float64]] = []

    def update(self, logits: NDArray[np.float32], scores: NDArray[np.float64]) -> None:
        """Add rows: logits and scores in [0, 1], both ``(batch, classes)``."""
        self._all += _in_bins(scores)
        self._best += _in_bins(scores.max(axis=1))
        self._logsumexp.append(logsumexp(logits))

    def result(self) -> Distribution:
        """The distribution of the rows so far, at least one."""
        values = np.concatenate(self._logsumexp)
        # Many equal logits give equal quantiles, and a histogram needs edges that ascend.
        edges = np.unique(np.quantile(values, np.arange(LOGSUMEXP_BINS) / LOGSUMEXP_BINS))
        places = np.maximum(np.searchsorted(edges, values, side="right") - 1, 0)
        return Distribution(
            edges=tuple(EDGES.tolist()),
            all_scores=tuple(self._all.tolist()),
            best_scores=tuple(self._best.tolist()),
            logsumexp_mean=float(values.mean()),
            logsumexp_deviation=float(values.std()),
            logsumexp_edges=tuple(edges.tolist()),
            logsumexp=tuple(np.bincount(places, minlength=edges.size).tolist()),
        )


def _in_bins(scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """How many scores lie in each bin of :data:`EDGES`."""
    places = np.searchsorted(EDGES, scores.reshape(-1), side="right") - 1
    return np.bincount(places, minlength=EDGES.size).astype(np.int64)


def logsumexp(logits: NDArray[Any]) -> NDArray[np.float64]:
    """Log of the sum of ``exp`` of each row, in float64, shape ``(rows,)``."""
    values = logits.astype(np.float64)
    top = values.max(axis=1, keepdims=True)
    summed: NDArray[np.float64] = np.log(np.exp(values - top).sum(axis=1)) + top[:, 0]
    return summed
