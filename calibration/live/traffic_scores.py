"""Scores of live requests as they are served, without those that look like none of our classes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration.fusion import fuse
from calibration.rejection.familiarity import METHODS
from calibration.scores import ScoreKind, adjusted

Requests = Callable[[], Iterator[NDArray[Any]]]
"""Gives the logits of the served head from the start, ``(requests, photos, classes)`` each time."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Which requests are left out, fixed before the traffic was seen.

    Attributes:
        method: A name in :data:`calibration.rejection.familiarity.METHODS`.
        threshold: Requests without a photo as familiar as this are left out.

    Raises:
        ValueError: An unknown method.
    """

    method: str
    threshold: float

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {self.method!r}")


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Requests of one number of photos, read as often as wanted.

    Attributes:
        requests: Their logits.
        score_kind: How they become scores.
        temperature: What they are divided by first.
        guard: Which to leave out; none where None.
    """

    requests: Requests
    score_kind: ScoreKind
    temperature: float
    guard: Guard | None

    def logits(self) -> Iterator[NDArray[Any]]:
        """Logits of the requests that pass the guard, ``(requests, photos, classes)``."""
        for logits in self.requests():
            familiar = logits[self._familiar(logits)]
            if len(familiar):
                yield familiar

    def scores(self, log_ratios: ArrayLike | None) -> Iterator[NDArray[np.float64]]:
        """Their scores, fused and corrected as they are served, ``(requests, classes)``.

        Args:
            log_ratios: What is added to the logits, shape ``(classes,)``, or None.
        """
        for logits in self.logits():
            served = adjusted(logits, temperature=self.temperature, log_ratios=log_ratios)
            yield fuse(served, score_kind=self.score_kind)

    def count(self) -> tuple[int, int]:
        """Requests that pass the guard, and all requests."""
        counts = [(int(self._familiar(logits).sum()), len(logits)) for logits in self.requests()]
        return sum(passed for passed, _ in counts), sum(seen for _, seen in counts)

    def latest(self, most: int) -> NDArray[Any]:
        """Logits of the latest requests that pass, at most ``most``."""
        kept: list[NDArray[Any]] = []
        for logits in self.logits():
            kept.append(logits)
            while sum(map(len, kept[1:])) >= most:
                kept.pop(0)
        return np.concatenate(kept)[-most:]

    def _familiar(self, logits: NDArray[Any]) -> NDArray[np.bool_]:
        if self.guard is None:
            return np.ones(len(logits), dtype=np.bool_)
        requests, photos, classes = logits.shape
        found = METHODS[self.guard.method](
            logits.reshape(requests * photos, classes), self.score_kind
        )
        return np.asarray(found.reshape(requests, photos).max(axis=1) >= self.guard.threshold)
