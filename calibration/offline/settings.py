"""What a calibration is asked for."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from calibration.conformal import check_coverage
from calibration.guarantees import DEFAULT_MAX_SIZE
from calibration.rejection.familiarity import (
    DEFAULT_SHARE,
    FEATURE_METHODS,
    LOGITS_METHOD,
    METHODS,
    check_share,
)
from calibration.rules import class_weights
from calibration.rules.class_conditional import SMALL_CLASSES, SmallClasses
from calibration.scores import SCORE_KINDS, ScoreKind, check_temperature
from calibration.threshold import check_average_k

DEFAULT_KS = (1.0, 2.0, 3.0, 5.0, 10.0)
DEFAULT_COVERAGES = (0.9, 0.95)
PREFERRED_K = 3.0
GRID_END = 20
DEFAULT_IMAGES = (2, 3, 4, 5)
DEFAULT_DELTA = 0.1
DEFAULT_SMALL_CLASSES: SmallClasses = "marginal"
"""Of the three the one whose sets stay small without knowing genera: ``always`` puts every class
with few photos, on a long tail half of them, into every set."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a calibration is asked for, checked against the number of classes.

    Attributes:
        classes: Number of classes.
        ks: Mean set sizes asked for, in the order they were asked for.
        coverages: Coverages asked for.
        min_size: 1 where every set holds its best class, else 0.
        micro_weight: ``w`` of the balanced rules.
        head: The head that serves, or None to choose the best.
        score_kind: The kind of score that serves, or None to choose the best.
        temperatures: Those to choose from; for ``sigmoid`` 1 is the only one, since no other
            changes a set of ``average_k``.
        images: Numbers of photos of one plant to calibrate for, besides one.
        rejection_method: How familiar a photo looks, a name in
            ``rejection.familiarity.METHODS`` or ``FEATURE_METHODS``; None not to judge.
        suspect_share: Share of the calibration photos that is to be suspect.
        delta: How often a calibration may break a guarantee with probability.
        max_size: Largest set under a guaranteed mean size; None for 50, or twice the largest K
            where that is more, as far as there are classes.
        small_classes: What ``class_coverage`` gives classes with too few photos.

    Raises:
        ValueError: A K outside ``[min_size, classes]``, no K at all, a coverage outside (0, 1),
            another ``min_size`` than 0 or 1, a ``micro_weight`` outside [0, 1], an unknown kind of
            score, method or policy, no temperature, one outside [0.01, 100] or one for
            ``sigmoid``, a share outside [0, 1), numbers of photos below 2, a ``delta`` outside
            (0, 1), or a ``max_size`` below the largest K or above the classes.
    """

    classes: int
    ks: tuple[float, ...]
    coverages: tuple[float, ...] = DEFAULT_COVERAGES
    min_size: int = 1
    micro_weight: float = 0.5
    head: str | None = None
    score_kind: ScoreKind | None = None
    temperatures: tuple[float, ...] = (1.0,)
    images: tuple[int, ...] = DEFAULT_IMAGES
    rejection_method: str | None = LOGITS_METHOD
    suspect_share: float = DEFAULT_SHARE
    delta: float = DEFAULT_DELTA
    max_size: int | None = None
    small_classes: SmallClasses = DEFAULT_SMALL_CLASSES

    def __post_init__(self) -> None:
        if self.min_size not in (0, 1):
            raise ValueError(f"min_size must be 0 or 1, got {self.min_size}")
        if not self.ks:
            raise ValueError("at least one K is needed")
        for k in self.ks:
            check_average_k(k, lowest=self.min_size, classes=self.classes)
        for coverage in self.coverages:
            check_coverage(coverage)
        class_weights([1], self.micro_weight)
        if self.score_kind not in (None, *SCORE_KINDS):
            raise ValueError(
                f"score_kind must be one of {', '.join(SCORE_KINDS)}, got {self.score_kind!r}"
            )
        for temperature in self.temperatures:
            check_temperature(temperature)
        if not self.temperatures or (self.score_kind == "sigmoid" and self.temperatures != (1.0,)):
            raise ValueError(
                f"temperatures must be some numbers, for sigmoid 1 alone, got {self.temperatures}"
            )
        if self.rejection_method not in (None, *FEATURE_METHODS, *METHODS):
            raise ValueError(
                f"rejection_method must be one of {', '.join((*FEATURE_METHODS, *METHODS))}, got "
                f"{self.rejection_method!r}"
            )
        check_share(self.suspect_share)
        if any(images < 2 for images in self.images):
            raise ValueError(f"images must be 2 or more, got {self.images}")
        if not 0 < self.delta < 1:
            raise ValueError(f"delta must be in (0, 1), got {self.delta}")
        if self.small_classes not in SMALL_CLASSES:
            raise ValueError(
                f"small_classes must be one of {', '.join(SMALL_CLASSES)}, got "
                f"{self.small_classes!r}"
            )
        if not self.compared[-1] <= self.largest_set <= self.classes:
            raise ValueError(
                f"max_size must be in [{self.compared[-1]:g}, {self.classes}], got {self.max_size}"
            )

    def candidates(self, heads: Sequence[str]) -> list[tuple[str, ScoreKind, float]]:
        """Heads with kinds of score and temperatures that are compared.

        Raises:
            ValueError: There is no head of the name asked for.
        """
        if self.head not in (None, *heads):
            raise ValueError(f"head must be one of {', '.join(heads)}, got {self.head!r}")
        return [
            (head, kind, temperature)
            for head in heads
            for kind in SCORE_KINDS
            for temperature in (self.temperatures if kind == "softmax" else (1.0,))
            if self.head in (None, head) and self.score_kind in (None, kind)
        ]

    @property
    def default_k(self) -> float:
        """3 where the grid reaches it, else the first K asked for."""
        return PREFERRED_K if self.classes >= PREFERRED_K else self.ks[0]

    @property
    def grid(self) -> tuple[float, ...]:
        """1.0, 1.1, ... to 20 or the number of classes, and every K asked for; ascending."""
        last = min(GRID_END, self.classes)
        return _ascending([*(step / 10 for step in range(10, 10 * last + 1)), *self.ks])

    @property
    def compared(self) -> tuple[float, ...]:
        """Every K asked for and the default, at which heads and kinds of score are compared."""
        return _ascending([*self.ks, self.default_k])

    @property
    def largest_set(self) -> int:
        """Largest set under a guaranteed mean size."""
        if self.max_size is not None:
            return self.max_size
        return min(self.classes, max(DEFAULT_MAX_SIZE, ceil(2 * self.compared[-1])))

    def sizes(self, ks: Sequence[float]) -> tuple[int, ...]:
        """The whole numbers from 1 among ``ks``, for ``top_k``."""
        return tuple(int(k) for k in ks if k >= 1 and k == int(k))


def default_ks(classes: int) -> tuple[float, ...]:
    """1, 2, 3, 5 and 10, as far as there are classes.

    Example:
        >>> default_ks(4)
        (1.0, 2.0, 3.0)
    """
    return tuple(k for k in DEFAULT_KS if k <= classes)


def _ascending(ks: Sequence[float]) -> tuple[float, ...]:
    return tuple(sorted({float(k) for k in ks}))
