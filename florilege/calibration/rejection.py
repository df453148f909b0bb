"""Whether a request shows none of the classes: the familiarity of its photos, and the rule for it.

A higher familiarity is more familiar. :func:`generalised_entropy` needs only the logits of a photo.
``combined`` also needs its features, the input of the last layer, and those of some training
photos; it detects more out-of-distribution photos.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from math import floor, isfinite

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.reference import Reference
from florilege.calibration.scores import ScoreKind, scores
from florilege.calibration.sets import Floats
from florilege.calibration.threshold import as_fraction

LOGITS_METHOD = "generalised_entropy"
_COMBINED = "combined"
DEFAULT_SHARE = 0.01  # share of validation photos that are suspect
# The gamma and M of Liu, Lochman and Zach.
_ENTROPY_POWER = 0.1
ENTROPY_CLASSES = 100
_ROUNDING = 1e-12  # of sums of weights
PARTS = 3


@dataclass(frozen=True, kw_only=True)
class UnseenThreshold:
    """When a set may contain "none of these".

    Attributes:
        coverage: The share of photos of unknown classes whose sets do.
        threshold: The cosine to the nearest training photo, up to which sets do.
        known_share: The share of the calibration photos, of known classes, whose sets do as well.
    """

    coverage: float
    threshold: float
    known_share: float

    @classmethod
    def fit(
        cls,
        nearest_of_others: Floats,
        nearest: Floats,
        labels: ArrayLike,
        coverages: Iterable[float],
    ) -> tuple["UnseenThreshold", ...]:
        """The thresholds of "none of these" that the number of classes allows.

        The cosines have shape ``(rows,)``: to the nearest training photo of another class, and of
        any.
        """
        unseen = list[UnseenThreshold]()
        for coverage in coverages:
            limit = unseen_threshold(nearest_of_others, labels, coverage)
            if limit is not None:
                share = float((nearest <= limit).mean())
                unseen.append(cls(coverage=coverage, threshold=limit, known_share=share))
        return tuple(unseen)


@dataclass(frozen=True, kw_only=True)
class RejectionRule:
    """Marks photos as suspect if they do not look familiar.

    Attributes:
        method: ``combined``, or ``generalised_entropy``.
        threshold: Photos below this familiarity are suspect.
        share: Share of the calibration photos to be suspect.
        rows: Number of calibration photos.
        head: Head of the logits.
        score_kind: How the logits become scores.
        centres: For ``combined``, the mean of each part over the calibration photos.
        scales: For ``combined``, their standard deviations.
        reference_sha256: Hash of the file with the
            :class:`florilege.calibration.reference.Reference`; None if logits suffice.
        by_logits: The rule to use where only logits are available, as in a score log; None if
            logits suffice for this one.
        unseen: For each coverage of classes that the network does not know, its threshold; empty
            without features or classes enough.

    Raises:
        ValueError: An unknown method, or a threshold, centre or scale that is not finite.
    """

    method: str
    threshold: float
    share: float
    rows: int
    head: str
    score_kind: ScoreKind
    centres: tuple[float, ...] = ()
    scales: tuple[float, ...] = ()
    reference_sha256: str | None = None
    by_logits: "RejectionRule | None" = None
    unseen: tuple[UnseenThreshold, ...] = ()

    def __post_init__(self) -> None:
        if self.method not in (_COMBINED, LOGITS_METHOD):
            raise ValueError(f"method must be {_COMBINED} or {LOGITS_METHOD}, got {self.method!r}")
        if not all(map(isfinite, (self.threshold, *self.centres, *self.scales))):
            raise ValueError(
                f"threshold, centres and scales must be finite, got {self.threshold}, "
                f"{self.centres} and {self.scales}"
            )
        parts = PARTS if self.method == _COMBINED else 0
        lengths = (len(self.centres), len(self.scales))
        if lengths != (parts, parts) or any(scale <= 0 for scale in self.scales):
            raise ValueError(f"{self.method} needs {parts} centres and {parts} scales above 0")

    @classmethod
    def fit(
        cls,
        share: float,
        familiarity: Floats,
        *,
        head: str,
        score_kind: ScoreKind,
        reference_sha256: str | None = None,
        unseen: tuple[UnseenThreshold, ...] = (),
    ) -> "RejectionRule":
        """Fit the rule that makes ``share`` of the calibration photos suspect.

        ``familiarity`` has shape ``(rows, columns)``: one column from logits alone, or those of
        :func:`parts`.
        """
        rejection = partial(
            cls, share=share, rows=len(familiarity), head=head, score_kind=score_kind
        )
        threshold = suspect_threshold(familiarity[:, -1], share)
        by_logits = rejection(method=LOGITS_METHOD, threshold=threshold)
        if familiarity.shape[1] == 1:
            return by_logits
        centres, scales = familiarity.mean(axis=0), familiarity.std(axis=0)
        scales = np.where(scales > 1e-9 * np.abs(centres), scales, 1.0)  # 1 for a constant part
        return rejection(
            method=_COMBINED,
            threshold=suspect_threshold(_combined(familiarity, centres, scales), share),
            centres=tuple(centres.tolist()),
            scales=tuple(scales.tolist()),
            reference_sha256=reference_sha256,
            by_logits=by_logits,
            unseen=unseen,
        )

    @property
    def from_logits(self) -> "RejectionRule | None":
        """The rule to use where only logits are available."""
        return self.by_logits if self.method == _COMBINED else self

    def familiarity(
        self,
        logits: ArrayLike,
        features: ArrayLike | None = None,
        reference: Reference | None = None,
    ) -> Floats:
        """Familiarity of each photo, shape ``(photos,)``.

        ``combined`` sums the columns of :func:`parts`, standardised by the calibration photos: 0 is
        an ordinary photo.

        ``logits`` are those of :attr:`head`, ``(photos, classes)``, ``features`` have the shape
        ``(photos, dimensions)``.

        Raises:
            ValueError: A wrong shape, logits that are NaN or +inf, or missing features.
        """
        if self.method == LOGITS_METHOD:
            return generalised_entropy(logits, self.score_kind)
        if features is None or reference is None:
            raise ValueError(f"{self.method} needs features and a reference")
        columns = parts(logits, self.score_kind, features, reference)
        return _combined(columns, self.centres, self.scales)

    def verdict(
        self,
        logits: ArrayLike,
        features: ArrayLike | None = None,
        reference: Reference | None = None,
    ) -> tuple[float, bool]:
        """Familiarity of the most familiar photo, and whether the request is suspect.

        Promise: a photo drawn like the calibration photos is suspect with a probability of at most
        ``(floor(share rows) + 1) / (rows + 1)``, over calibration and photo together; for
        ``combined``, whose scales come from the same photos, up to terms that vanish as
        ``rows`` grows. A request with several photos is suspect only if all of them are, so no more
        often than one photo.

        Raises:
            ValueError: As :meth:`familiarity`, or there is no photo.
        """
        values = self.familiarity(logits, features, reference)
        if not values.size:
            raise ValueError("logits must hold at least one photo, got none")
        value = float(values.max())
        return value, value < self.threshold

    def none_of_these(
        self, features: ArrayLike | None, reference: Reference | None, coverage: float | None = None
    ) -> bool | None:
        """Whether the set of a request contains "none of these".

        Promise: for a class that is exchangeable with those of the calibration, but unknown to the
        network, it does so with a probability of at least ``coverage``, except that such a photo
        is compared with one class more. ``coverage`` is one of :attr:`unseen`, by default the
        first. The least familiar of several photos counts. None where it is not calibrated.
        """
        thresholds = [
            threshold for threshold in self.unseen if coverage in (None, threshold.coverage)
        ]
        if not thresholds or features is None or reference is None:
            return None
        return bool(reference.compare(features)[0].min() <= thresholds[0].threshold)


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
    summed: Floats = -((best * (1 - best)) ** _ENTROPY_POWER).sum(axis=1)
    return summed


def parts(
    logits: ArrayLike,
    score_kind: ScoreKind,
    features: ArrayLike | None = None,
    reference: Reference | None = None,
) -> Floats:
    """The three parts of ``combined``, shape ``(photos, 3)``; higher is more familiar.

    They are the cosine to the nearest training photo, minus the length of the residual, and minus
    the generalised entropy, which alone is left without ``features`` and ``reference``. Each
    detects photos that the others miss.
    """
    along = () if features is None or reference is None else reference.compare(features)
    return np.stack([*along, generalised_entropy(logits, score_kind)], axis=1)


def _combined(familiarity: Floats, centres: ArrayLike, scales: ArrayLike) -> Floats:
    standard = (familiarity - np.asarray(centres)) / np.asarray(scales)
    summed: Floats = standard[:, 0] + standard[:, 1] + standard[:, 2]
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
    # Each class weighs the same, and so does a new one, which has what is left of 1.
    weights = 1 / (photos[classes] * (len(photos) + 1.0))
    order = np.argsort(values, kind="stable")
    place = int(np.searchsorted(np.cumsum(weights[order]), coverage - _ROUNDING))
    return None if place == values.size else float(values[order[place]])
