"""Traffic: logged live requests, and new thresholds chosen on them.

These need no labels. They restore the mean set size on photos like the recent ones, but not the hit
rate: with blurred photos it stays low, and under label shift it falls. So a person must approve the
:class:`TrafficThresholds`, and earlier hit rates must not be shown with them.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.fusion import fuse
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.rejection.rejection_rule import RejectionRule
from florilege.calibration.rules.score_summary import Evidence
from florilege.calibration.scores import scale_logits
from florilege.calibration.threshold import threshold_text

FEWEST_REQUESTS = 500
Requests = Callable[[], Iterator[NDArray[Any]]]
"""Starts a new pass over the logits of the served head, ``(requests, photos, classes)``."""


@dataclass(frozen=True, kw_only=True)
class _NewThreshold:
    """An old and a new threshold."""

    k: float  # requested mean size
    old_lambda: float
    old_size: float  # mean set size on the traffic
    new_lambda: float
    new_size: float


@dataclass(frozen=True, kw_only=True)
class TrafficThresholds:
    """New thresholds of ``average_k``, chosen on traffic and not stored yet."""

    calibration_id: str  # the calibration with the old thresholds
    rows: int  # photos used
    left_out: int  # photos that look like none of the classes
    thresholds: tuple[_NewThreshold, ...]

    def lines(self) -> list[str]:
        """The changes as lines of text."""
        photos = f"{self.rows:,} photos of traffic, {self.left_out:,} more left out as unfamiliar"
        return [photos] + [
            f"K = {new.k:g}: lambda {threshold_text(new.old_lambda, 4)} -> "
            f"{threshold_text(new.new_lambda, 4)}, mean size on this traffic "
            f"{new.old_size:.2f} -> {new.new_size:.2f}"
            for new in self.thresholds
        ]


@dataclass(frozen=True, kw_only=True)
class Traffic:
    """Requests with the same number of photos, which can be read repeatedly.

    Requests whose photos are all unfamiliar are left out, by the rejection rule ``judge`` of an
    earlier calibration; with None all requests are used.
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
        """The number of requests that are not left out, and of those that are."""
        masks = np.concatenate([np.empty(0, np.bool_), *map(self._familiar, self.requests())])
        return int(masks.sum()), int((~masks).sum())

    def thresholds(self, *, ks: Sequence[float] | None = None) -> TrafficThresholds:
        """Choose new thresholds of ``average_k`` on requests with one photo.

        Promise: on the photos used, mean sizes are exactly those requested, up to ties. On new
        photos like these they are so up to a standard error of ``sd(size) / sqrt(rows)``. Photos of
        something else that ``judge`` accepts count in the mean. By default ``ks`` are those last
        requested.

        Raises:
            ValueError: Fewer than 500 photos.
            NotCalibrated: The record has no threshold for one of ``ks``.
        """
        rows, left_out = self.count()
        if rows < FEWEST_REQUESTS:
            raise ValueError(
                f"{rows} photos are too few to choose thresholds ({left_out} left out): at least "
                f"{FEWEST_REQUESTS} are needed"
            )
        record, requested_ks = self.record, sorted(self.record.asked_k if ks is None else ks)
        points = [record.point("average_k", k=k) for k in requested_ks]
        old_sizes, largest_k = np.zeros(len(points), dtype=np.int64), requested_ks[-1]
        classes, min_size = record.classes, points[0].min_size
        evidence = Evidence(rows=rows, classes=classes, max_average_k=largest_k, min_size=min_size)
        for scores in self.scores():
            old_sizes += [point.sets(scores).sum() for point in points]
            evidence.update(scores)
        thresholds = list[_NewThreshold]()
        for k, point, old_size in zip(requested_ks, points, old_sizes, strict=True):
            rule = evidence.average_k(k)
            new = _NewThreshold(
                k=float(k),
                old_lambda=point.lambda_val or 0.0,
                old_size=float(old_size) / rows,
                new_lambda=rule.lambda_val or 0.0,
                new_size=rule.achieved or 0.0,
            )
            thresholds.append(new)
        return TrafficThresholds(
            calibration_id=record.calibration_id,
            rows=rows,
            left_out=left_out,
            thresholds=tuple(thresholds),
        )

    def _familiar(self, logits: NDArray[Any]) -> NDArray[np.bool_]:
        if self.judge is None:
            return np.ones(len(logits), dtype=np.bool_)
        by_photo = self.judge.familiarity(logits.reshape(-1, logits.shape[2]))
        best: NDArray[np.float64] = by_photo.reshape(logits.shape[:2]).max(axis=1)
        return best >= self.judge.threshold
