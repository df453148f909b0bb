"""One calibrated threshold in use: what is compared, with what, and what was measured."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration.fusion import Fusion, fuse
from calibration.guarantees import Guarantee
from calibration.photo_groups import MadeFrom
from calibration.record.statement import statement
from calibration.scores import ScoreKind, adjusted
from calibration.sets import SetRule


class NotCalibrated(ValueError):  # the name says what is the matter
    """No threshold was calibrated for what is asked.

    Attributes:
        allowed: The values of K, or the coverages, that were calibrated for the rule.
    """

    def __init__(self, message: str, *, allowed: list[float]) -> None:
        super().__init__(message)
        self.allowed = allowed


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measured figure with its 95 % interval and where it was measured."""

    value: float
    ci95: tuple[float, float]
    split: str
    rows: int


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatingPoint(SetRule):
    """One threshold in use: what is compared, with what, and what was measured.

    Attributes:
        head: Head of the network whose logits are scored.
        score_kind: How, see :func:`calibration.scores.scores`.
        temperature: What the logits are divided by first.
        images: Number of photos of one plant it was calibrated for.
        fusion: How the photos' scores become one row, see :mod:`calibration.fusion`.
        made_from: What photos of one group had in common at the calibration: they showed one
            plant (``observations``) or only one species (``same_class``); None for one photo.
        k: Mean set size asked for (size of every set for ``top_k``), or None.
        coverage: Coverage asked for, or None.
        split: Split it was calibrated on.
        expected_size: Mean set size on photos like those of the split.
        hit_rate: Share of sets that hold the true class; None where it was not measured.
        empty_rate: Share of sets without any class.
        size_deviation: Standard deviation of the set size.
        guarantee: What the threshold was chosen to promise about new photos: the coverage, or a
            mean size of at most ``k``; None where figures are measured only.
        delta: For ``probability``: how often a calibration may break the promise.
        unpromised_classes: For ``class_coverage``: classes it promises nothing for by themselves.
        guaranteed: Whether the promise holds: the split chose neither checkpoint nor head, and
            traffic did not correct the scores; for several photos, if groups were of one plant
            besides.
        log_ratios: What is added to the logits before they become scores, float64, shape
            ``(classes,)``: logs of how much more frequent each class is now
            (:mod:`calibration.live.prior_shift`); None for nothing.
    """

    head: str
    score_kind: ScoreKind
    temperature: float
    images: int
    fusion: Fusion
    made_from: MadeFrom | None
    k: float | None
    coverage: float | None
    split: str
    expected_size: Estimate
    hit_rate: Estimate | None
    empty_rate: float
    size_deviation: float
    guarantee: Guarantee | None
    delta: float | None
    unpromised_classes: int
    guaranteed: bool
    log_ratios: NDArray[np.float64] | None = None

    def adjusted(self, logits: ArrayLike) -> NDArray[Any]:
        """Logits ``(..., classes)`` of the :attr:`head` at the temperature, and corrected."""
        return adjusted(logits, temperature=self.temperature, log_ratios=self.log_ratios)

    def fused_scores(self, logits: ArrayLike) -> NDArray[np.float64]:
        """One row of scores from all photos of a request, for :meth:`compare` and :meth:`sets`.

        For one photo these are :func:`calibration.scores.scores`, bit for bit. At a threshold of
        single photos several may be given too: then the mean of their scores, which nothing was
        calibrated for.

        Args:
            logits: Of the :attr:`head`, shape ``(photos, classes)``; their order is of no matter.

        Returns:
            float64, shape ``(classes,)``.

        Raises:
            ValueError: Another shape, no photo, or logits that are NaN or +inf.
        """
        values = self.adjusted(logits)[np.newaxis]
        k = self.top_k if self.fusion == "mean_marginal" else None
        row: NDArray[np.float64] = fuse(
            values, score_kind=self.score_kind, fusion=self.fusion, k=k
        )[0]
        return row

    @property
    def statement(self) -> str:
        """The figures in one plain sentence."""
        return statement(self)

    @property
    def size_and_interval(self) -> tuple[float, float, float]:
        """Mean set size, and both ends of its interval."""
        return (self.expected_size.value, *self.expected_size.ci95)

    @property
    def hits_and_interval(self) -> tuple[float, float, float] | None:
        """Hit rate, and both ends of its interval; None where it was not measured."""
        return None if self.hit_rate is None else (self.hit_rate.value, *self.hit_rate.ci95)
