"""Traffic: live requests as they are served, without those that look like none of our classes."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.fusion import fuse
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.rejection.rejection_rule import RejectionRule
from florilege.calibration.scores import scale_logits

Requests = Callable[[], Iterator[NDArray[Any]]]
"""Starts a fresh pass over the logits of the served head, ``(requests, photos, classes)``."""


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Requests with the same number of photos, which can be read any number of times.

    Those without a photo that the judge finds familiar are left out, by a rule that was fixed
    before the traffic was seen; without a judge none are.
    """

    requests: Requests  # such as log.blocks of a score log
    record: CalibrationRecord  # the calibration that serves them
    judge: RejectionRule | None

    def logits(self) -> Iterator[NDArray[Any]]:
        """Logits of the requests that are not left out, ``(requests, photos, classes)``."""
        for logits in self.requests():
            familiar = logits[self._familiar(logits)]
            if len(familiar):
                yield familiar

    def scores(self) -> Iterator[NDArray[np.float64]]:
        """Their scores, fused as they are served, ``(requests, classes)``."""
        for logits in self.logits():
            scaled = scale_logits(logits, self.record.temperature)
            yield fuse(scaled, score_kind=self.record.score_kind)

    def count(self) -> tuple[int, int]:
        """How many requests are not left out, and how many there are."""
        counts = [(int(self._familiar(logits).sum()), len(logits)) for logits in self.requests()]
        return sum(passed for passed, _ in counts), sum(requests for _, requests in counts)

    def _familiar(self, logits: NDArray[Any]) -> NDArray[np.bool_]:
        if self.judge is None:
            return np.ones(len(logits), dtype=np.bool_)
        by_photo = self.judge.familiarity(logits.reshape(-1, logits.shape[2]))
        best: NDArray[np.float64] = by_photo.reshape(logits.shape[:2]).max(axis=1)
        return best >= self.judge.threshold
