"""One calibrated threshold in use: what is compared, with what, and what was measured."""

from dataclasses import dataclass

from calibration.scores import ScoreKind
from calibration.sets import SetRule
from calibration.statement import statement


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
        images: Number of photos of one plant it was calibrated for.
        k: Mean set size asked for (size of every set for ``top_k``), or None.
        coverage: Coverage asked for, or None.
        split: Split it was calibrated on.
        expected_size: Mean set size on photos like those of the split.
        hit_rate: Share of sets that hold the true class.
        empty_rate: Share of sets without any class.
        size_deviation: Standard deviation of the set size.
        guaranteed: Whether the coverage is a guarantee: asked for, and the split chose neither
            checkpoint nor head.
    """

    head: str
    score_kind: ScoreKind
    images: int
    k: float | None
    coverage: float | None
    split: str
    expected_size: Estimate
    hit_rate: Estimate
    empty_rate: float
    size_deviation: float
    guaranteed: bool

    @property
    def statement(self) -> str:
        """The figures in one plain sentence."""
        return statement(self)

    @property
    def size_and_interval(self) -> tuple[float, float, float]:
        """Mean set size, and both ends of its interval."""
        return (self.expected_size.value, *self.expected_size.ci95)

    @property
    def hits_and_interval(self) -> tuple[float, float, float]:
        """Hit rate, and both ends of its interval."""
        return (self.hit_rate.value, *self.hit_rate.ci95)
