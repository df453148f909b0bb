"""New thresholds for the same mean set sizes, from live traffic without labels.

They restore the mean set size on photos like the recent ones, but not the hit rate. On blurred
photos a new threshold gave sets of K classes again, which held the truth as rarely as before; under
label shift it gave K classes and lowered the hit rate. So
a person has to look at the :class:`TrafficThresholds` and approve them, and hit rates measured
before must not be shown with thresholds chosen here.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from florilege.calibration.monitoring.traffic import Traffic
from florilege.calibration.rules.score_summary import Evidence
from florilege.calibration.threshold import threshold_text

FEWEST_REQUESTS = 500


@dataclass(frozen=True, kw_only=True)
class _NewThreshold:
    """One threshold before and after, with the mean sizes both give on the traffic."""

    k: float  # wanted mean size
    old_lambda: float
    old_size: float
    new_lambda: float
    new_size: float


@dataclass(frozen=True, kw_only=True)
class TrafficThresholds:
    """What traffic says about the thresholds of ``average_k``; nothing is changed yet."""

    calibration_id: str  # of the calibration they are compared with
    rows: int  # photos used
    left_out: int  # photos that look like none of our classes
    thresholds: tuple[_NewThreshold, ...]

    def lines(self) -> list[str]:
        """What would change, in words."""
        photos = f"{self.rows:,} photos of traffic, {self.left_out:,} more left out as unfamiliar"
        return [photos] + [
            f"K = {new.k:g}: lambda {threshold_text(new.old_lambda, 4)} -> "
            f"{threshold_text(new.new_lambda, 4)}, mean size on this traffic "
            f"{new.old_size:.2f} -> {new.new_size:.2f}"
            for new in self.thresholds
        ]


def thresholds_from(traffic: Traffic, *, ks: Sequence[float] | None = None) -> TrafficThresholds:
    """Choose the thresholds of ``average_k`` again, from traffic.

    Promise: on the photos used, mean sizes are exactly those asked for, up to ties. On new photos
    like them they are so up to a standard error of ``sd(size) / sqrt(rows)``; if photos of
    something else pass the judge, they count in the mean.

    Args:
        traffic: Requests with one photo; read a few times.
        ks: Mean sizes; None for those last asked for.

    Raises:
        ValueError: Fewer than 500 photos.
        NotCalibrated: The record has no threshold for one of ``ks``.
    """
    record = traffic.record
    rows, requests = traffic.count()
    if rows < FEWEST_REQUESTS:
        raise ValueError(
            f"{rows} photos are too few to choose thresholds ({requests - rows} left out): at "
            f"least {FEWEST_REQUESTS} are needed"
        )
    requested_ks = sorted(record.asked_k if ks is None else ks)
    points = [record.point("average_k", k=k) for k in requested_ks]
    old_sizes = np.zeros(len(points), dtype=np.int64)
    evidence = Evidence(
        rows=rows,
        classes=record.classes,
        max_average_k=max(requested_ks),
        min_size=points[0].min_size,
    )
    for scores in traffic.scores():
        old_sizes += [point.sets(scores).sum() for point in points]
        evidence.update(scores)
    rules = [evidence.average_k(k) for k in requested_ks]
    return TrafficThresholds(
        calibration_id=record.calibration_id,
        rows=rows,
        left_out=requests - rows,
        thresholds=tuple(
            _NewThreshold(
                k=float(k),
                old_lambda=float(point.lambda_val or 0.0),
                old_size=float(size) / rows,
                new_lambda=float(rule.lambda_val or 0.0),
                new_size=float(rule.achieved or 0.0),
            )
            for k, point, size, rule in zip(requested_ks, points, old_sizes, rules, strict=True)
        ),
    )
