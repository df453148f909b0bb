"""Whether a request shows one of our classes: what a calibration record says about it."""

from dataclasses import dataclass
from math import isfinite

from numpy.typing import ArrayLike

from calibration.rejection import METHODS
from calibration.scores import ScoreKind


@dataclass(frozen=True, kw_only=True)
class Rejection:
    """Judges photos by how familiar they look.

    Attributes:
        method: A name in :data:`calibration.rejection.METHODS`.
        threshold: Below it a photo is suspect.
        share: Share of the calibration photos asked to be suspect.
        rows: Calibration photos.
        head: Head whose logits are judged.
        score_kind: How they become scores.

    Raises:
        ValueError: An unknown method, or a threshold that is not finite.
    """

    method: str
    threshold: float
    share: float
    rows: int
    head: str
    score_kind: ScoreKind

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")
        if not isfinite(self.threshold):
            raise ValueError(f"threshold must be finite, got {self.threshold}")

    def verdict(self, logits: ArrayLike) -> tuple[float, bool]:
        """How familiar the most familiar photo looks, and whether the request is suspect.

        Promise: a photo drawn like the calibration photos is suspect with a probability of at most
        ``(floor(share rows) + 1) / (rows + 1)``, over calibration and photo together. Of several
        photos each would have to be suspect, so a request of several is suspect no more often.

        Args:
            logits: Of one request, shape ``(photos, classes)``.

        Raises:
            ValueError: Another shape, no photo, or logits that are NaN or +inf.
        """
        familiarity = METHODS[self.method](logits, self.score_kind)  # (photos,)
        if not familiarity.size:
            raise ValueError("logits must hold at least one photo, got none")
        value = float(familiarity.max())
        return value, value < self.threshold
