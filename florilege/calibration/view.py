"""What is known beside the pictures, what is asked of a set, and the one way to its scores.

A request may have several photos of one observation, be restricted to a list of classes, and name a
place. Each of these changes how scores are distributed, so each combination is a :class:`View` with
thresholds of its own. :class:`Scoring` turns the logits of any view into scores, in calibration,
evaluation, prediction and on the server alike: scale, add what the place says, keep the listed
classes, score, fuse the photos.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.rules import RULES, usual_guarantee
from florilege.calibration.scores import (
    Fusion,
    ScoreKind,
    check_temperature,
    fuse,
    logits_among,
    scale_logits,
)
from florilege.calibration.sets import Floats, Guarantee
from florilege.models.regions import PlaceKind

Indices = NDArray[np.intp]


@dataclass(frozen=True)
class View:
    """What is known beside the pictures.

    Attributes:
        photos: Photos of one observation, such as one plant.
        list: The list whose classes alone are scored; None for all classes.
        place: What is known of the place; None for nothing.

    Example:
        >>> View(photos=3, list="orchids")
        View(photos=3, list='orchids', place=None)
    """

    photos: int = 1
    list: str | None = None
    place: PlaceKind | None = None

    @property
    def single(self) -> bool:
        """Whether it is the plain view: one photo, all classes, no place."""
        return self == PLAIN

    def __str__(self) -> str:
        """Such as ``with 3 photos for the list 'orchids'``; empty for the plain view."""
        parts = [
            "" if self.photos == 1 else f"with {self.photos} photos",
            "" if self.place is None else f"for photos with {self.place.replace('_', ' ')}",
            "" if self.list is None else f"for the list {self.list!r}",
        ]
        return " ".join(filter(None, parts))


PLAIN = View()
"""One photo, all classes, no place."""


class Setting(NamedTuple):
    """What is asked of a set: a rule with a requested value, and a promise.

    ``guarantee`` is None where figures are only measured. A rule for a coverage always has one.

    Example:
        >>> Setting.of("coverage", 0.9)
        Setting(rule='coverage', value=0.9, guarantee='mean')
    """

    rule: str  # a name in :data:`florilege.calibration.rules.RULES`
    value: float  # K, or the coverage
    guarantee: Guarantee | None = None

    @classmethod
    def of(cls, rule: str, value: float, guarantee: Guarantee | None = None) -> "Setting":
        """The setting with this guarantee, by default the usual one of the rule."""
        return cls(rule, float(value), guarantee or usual_guarantee(rule))

    @property
    def asks(self) -> str:
        """The name of the value: ``k`` or ``coverage``."""
        return RULES[self.rule].asks


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """How the logits of one head become scores.

    Attributes:
        head: Name of the head.
        score_kind: ``softmax`` or ``sigmoid``.
        temperature: The logits are divided by this first.
        fusion: How the scores of several photos become one row, see
            :mod:`florilege.calibration.scores`.
    """

    head: str
    score_kind: ScoreKind
    temperature: float = 1.0
    fusion: Fusion = None

    def __post_init__(self) -> None:
        check_temperature(self.temperature)
        if self.fusion is not None and (self.score_kind != "softmax" or not 0 < self.fusion <= 1):
            raise ValueError(f"fusion must be in (0, 1] and of softmax, got {self.fusion}")

    @property
    def single(self) -> "Scoring":
        """The same for single photos, whose scores no fusion changes."""
        return replace(self, fusion=None)

    def scaled(self, logits: ArrayLike) -> NDArray[np.floating]:
        """Logits of any shape, divided by the temperature."""
        return scale_logits(logits, self.temperature)

    def scores(
        self,
        logits: ArrayLike,
        *,
        lift: Floats | None = None,
        classes: Indices | None = None,
        prior: Floats | None = None,
    ) -> Floats:
        """One row of scores for each observation, bit for bit the same wherever it is computed.

        Args:
            logits: Shape ``(observations, photos, classes)``; photos in any order.
            lift: What the place adds to the logarithm of each class's probability, times its
                strength, ``(classes,)`` or ``(observations, classes)``.
            classes: Output indices of the listed classes, ascending, ``(listed,)``; None for all.
            prior: Share of each class among the training photos, ``(classes,)``; a ``fusion`` other
                than the mean needs it.

        Returns:
            float64, shape ``(observations, classes)`` or ``(observations, listed)``.

        Raises:
            ValueError: A wrong shape, no photo, or logits that are NaN or +inf.
        """
        values = np.asarray(self.scaled(logits))
        if lift is not None:
            lift = np.atleast_2d(lift)[:, np.newaxis]  # (observations or 1, 1, classes)
        if classes is not None:
            values = logits_among(values, classes)
            lift = None if lift is None else lift[..., classes]
            # Its sum is no longer 1, but a factor that all classes share cancels in the softmax.
            prior = None if prior is None else prior[classes]
        return fuse(values, score_kind=self.score_kind, fusion=self.fusion, lift=lift, prior=prior)
