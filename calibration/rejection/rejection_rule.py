"""The rejection rule of a calibration record: whether a request shows none of the classes."""

from dataclasses import dataclass
from functools import partial
from math import isfinite

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.rejection.ood_scores import (
    COMBINED,
    FEATURE_METHODS,
    LOGITS_METHOD,
    METHODS,
    suspect_threshold,
)
from florilege.calibration.rejection.reference import Reference
from florilege.calibration.scores import ScoreKind

Floats = NDArray[np.float64]
PARTS = 3


@dataclass(frozen=True, kw_only=True)
class RejectionRule:
    """Marks photos as suspect if they do not look familiar.

    Attributes:
        method: ``combined``, or a name in
            :data:`florilege.calibration.rejection.ood_scores.METHODS`.
        threshold: Photos below this familiarity are suspect.
        share: Share of the calibration photos to be suspect.
        rows: Number of calibration photos.
        head: Head of the logits.
        score_kind: How the logits become scores.
        centres: For ``combined``, the mean of each part over the calibration photos.
        scales: For ``combined``, their standard deviations.
        reference_sha256: Hash of the file with the
            :class:`florilege.calibration.rejection.reference.Reference`; None if logits suffice.
        by_logits: The rule to use where only logits are available, as in a score log; None if
            logits suffice for this one.

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

    def __post_init__(self) -> None:
        if self.method not in (*METHODS, *FEATURE_METHODS):
            methods = ", ".join((*METHODS, *FEATURE_METHODS))
            raise ValueError(f"method must be one of {methods}, got {self.method!r}")
        if not all(map(isfinite, (self.threshold, *self.centres, *self.scales))):
            raise ValueError(
                f"threshold, centres and scales must be finite, got {self.threshold}, "
                f"{self.centres} and {self.scales}"
            )
        parts = PARTS if self.method == COMBINED else 0
        lengths = (len(self.centres), len(self.scales))
        if lengths != (parts, parts) or any(scale <= 0 for scale in self.scales):
            raise ValueError(f"{self.method} needs {parts} centres and {parts} scales above 0")

    @property
    def needs_features(self) -> bool:
        """Whether the rule needs features besides logits."""
        return self.method in FEATURE_METHODS

    @property
    def from_logits(self) -> "RejectionRule | None":
        """The rule to use where only logits are available."""
        return self.by_logits if self.needs_features else self

    def familiarity(
        self,
        logits: ArrayLike,
        features: ArrayLike | None = None,
        reference: Reference | None = None,
    ) -> Floats:
        """Familiarity of each photo, shape ``(photos,)``.

        ``combined`` sums the columns of :func:`parts`, standardised by the calibration photos: 0 is
        an ordinary photo.

        Args:
            logits: Logits of :attr:`head`, shape ``(photos, classes)``.
            features: Shape ``(photos, dimensions)``, if needed.
            reference: The reference of the features, if needed.

        Raises:
            ValueError: A wrong shape, logits that are NaN or +inf, or missing features.
        """
        if not self.needs_features:
            return METHODS[self.method](logits, self.score_kind)
        if features is None or reference is None:
            raise ValueError(f"{self.method} needs features and a reference")
        return _combined(
            parts(logits, self.score_kind, features, reference), self.centres, self.scales
        )

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

        Arguments are those of :meth:`familiarity`, for the photos of one request.

        Raises:
            ValueError: As :meth:`familiarity`, or there is no photo.
        """
        values = self.familiarity(logits, features, reference)
        if not values.size:
            raise ValueError("logits must hold at least one photo, got none")
        value = float(values.max())
        return value, value < self.threshold


def parts(
    logits: ArrayLike, score_kind: ScoreKind, features: ArrayLike, reference: Reference
) -> Floats:
    """The three parts of ``combined``, shape ``(photos, 3)``; higher is more familiar.

    They are the cosine to the nearest training photo, minus the length of the residual, and minus
    the generalised entropy. Each detects photos that the others miss.
    """
    columns = (*reference.compare(features), METHODS[LOGITS_METHOD](logits, score_kind))
    return np.stack(columns, axis=1)


def fit_rejection(
    method: str,
    share: float,
    familiarity: Floats,
    *,
    head: str,
    score_kind: ScoreKind,
    reference_sha256: str | None = None,
) -> RejectionRule:
    """Fit the rule that makes ``share`` of the calibration photos suspect.

    ``familiarity`` has shape ``(rows, columns)``: one column for a method of logits, or those of
    :func:`parts` for ``combined``. Other arguments are those of :class:`RejectionRule`.
    """
    rejection = partial(
        RejectionRule, share=share, rows=len(familiarity), head=head, score_kind=score_kind
    )
    if method not in FEATURE_METHODS:
        return rejection(method=method, threshold=suspect_threshold(familiarity[:, 0], share))
    centres, scales = familiarity.mean(axis=0), familiarity.std(axis=0)
    scales = np.where(scales > 1e-9 * np.abs(centres), scales, 1.0)  # 1 for a constant part
    return rejection(
        method=method,
        threshold=suspect_threshold(_combined(familiarity, centres, scales), share),
        centres=tuple(centres.tolist()),
        scales=tuple(scales.tolist()),
        reference_sha256=reference_sha256,
        by_logits=rejection(
            method=LOGITS_METHOD, threshold=suspect_threshold(familiarity[:, -1], share)
        ),
    )


def _combined(familiarity: Floats, centres: ArrayLike, scales: ArrayLike) -> Floats:
    standard = (familiarity - np.asarray(centres)) / np.asarray(scales)
    summed: Floats = standard[:, 0] + standard[:, 1] + standard[:, 2]
    return summed
