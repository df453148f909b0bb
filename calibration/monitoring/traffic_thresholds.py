"""New thresholds for the same mean set sizes, from live traffic without labels.

They restore the mean set size on photos like the recent ones, but not the hit rate. On blurred
photos a new threshold gave sets of K classes again, which held the truth as rarely as before; under
label shift it gave K classes and lowered the hit rate, unless the scores were corrected as well. So
a person has to look at the :class:`TrafficThresholds` and approve them, and hit rates measured
before must not be shown with thresholds chosen here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from florilege.calibration.monitoring.prior_shift import (
    UNLIKELY,
    PriorShift,
    estimate_prior,
    likelihood_of_logits,
)
from florilege.calibration.monitoring.traffic import Traffic
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.origin import TRAFFIC
from florilege.calibration.rules.score_summary import Evidence
from florilege.calibration.threshold import threshold_text

FEWEST_REQUESTS = 500
PRIOR_ROWS = 10_000
"""How many of the latest photos, kept in memory, class frequencies are estimated from."""


@dataclass(frozen=True, kw_only=True)
class NewThreshold:
    """One threshold before and after, with the mean sizes both give on the traffic."""

    k: float  # wanted mean size
    old_lambda: float
    old_size: float  # scores as they were served
    new_lambda: float
    new_size: float  # corrected scores where there is a shift


@dataclass(frozen=True, kw_only=True)
class TrafficThresholds:
    """What traffic says about the thresholds of ``average_k``; nothing is changed yet.

    ``likelihood`` says how likely the logits are if nothing but the frequencies changed; unfamiliar
    photos count, unless the record is itself from traffic without them. ``log_ratios``, to be added
    to the logits from now on, hold the change just found and those found before.
    """

    calibration_id: str  # of the calibration they are compared with
    rows: int  # photos used
    left_out: int  # photos that look like none of our classes
    thresholds: tuple[NewThreshold, ...]
    shift: PriorShift | None  # of the frequencies that scores are corrected for
    likelihood: float | None
    log_ratios: tuple[float, ...] | None  # (classes,)

    @property
    def explained(self) -> bool:
        """Whether changed frequencies explain the logits, if they are corrected for at all."""
        return self.likelihood is None or self.likelihood >= UNLIKELY

    def lines(self) -> list[str]:
        """What would change, in words."""
        found = [f"{self.rows:,} photos of traffic, {self.left_out:,} more left out as unfamiliar"]
        if self.shift is not None:
            certainty = "evident" if self.shift.evident else "NOT evident: do not correct for it"
            found.append(
                f"class frequencies differ for {100 * self.shift.distance:.0f} % of the photos "
                f"({certainty})"
            )
        return found + [
            f"K = {new.k:g}: lambda {threshold_text(new.old_lambda, 4)} -> "
            f"{threshold_text(new.new_lambda, 4)}, mean size on this traffic "
            f"{new.old_size:.2f} -> {new.new_size:.2f}"
            for new in self.thresholds
        ]


def thresholds_from(
    traffic: Traffic, *, ks: Sequence[float] | None = None, correct_prior: bool = False
) -> TrafficThresholds:
    """Choose the thresholds of ``average_k`` again, from traffic.

    Promise: on the photos used, mean sizes are exactly those asked for, up to ties. On new photos
    like them they are so up to a standard error of ``sd(size) / sqrt(rows)``; if photos of
    something else pass the judge, they count in the mean.

    Args:
        traffic: Requests with one photo; read a few times.
        ks: Mean sizes; None for those last asked for.
        correct_prior: Correct the scores by the class frequencies of the traffic, estimated from
            its latest photos; softmax scores only. The old frequencies are the record's mean
            scores.

    Raises:
        ValueError: Fewer than 500 photos, or a correction of sigmoid scores or for a record that
            cannot be corrected (:func:`check_correctable`).
        NotCalibrated: The record has no threshold for one of ``ks``.
    """
    record, shift, likelihood = traffic.record, None, None
    if correct_prior:
        check_correctable(record)
    rows, seen = traffic.count()
    if rows < FEWEST_REQUESTS:
        raise ValueError(
            f"{rows} photos are too few to choose thresholds ({seen - rows} left out): at least "
            f"{FEWEST_REQUESTS} are needed"
        )
    if correct_prior:
        shift, likelihood = _shift(traffic)
        if record.measured.split != TRAFFIC:  # the record includes photos that a judge leaves out
            _, likelihood = _shift(replace(traffic, judge=None))
    log_ratios = _together(record.log_ratios, shift)
    wanted = sorted(record.asked_k if ks is None else ks)
    points = [record.point("average_k", k=k) for k in wanted]
    old_sizes = np.zeros(len(points), dtype=np.int64)
    for values in traffic.scores(record.log_ratios):
        old_sizes += [point.sets(values).sum() for point in points]
    evidence = Evidence(
        rows=rows, classes=record.classes, max_average_k=max(wanted), min_size=points[0].min_size
    )
    for values in traffic.scores(log_ratios):
        evidence.update(values)
    rules = [evidence.average_k(k) for k in wanted]
    return TrafficThresholds(
        calibration_id=record.calibration_id,
        rows=rows,
        left_out=seen - rows,
        shift=shift,
        likelihood=likelihood,
        log_ratios=log_ratios,
        thresholds=tuple(
            NewThreshold(
                k=float(k),
                old_lambda=float(point.lambda_val or 0.0),
                old_size=float(size) / rows,
                new_lambda=float(rule.lambda_val or 0.0),
                new_size=float(rule.achieved or 0.0),
            )
            for k, point, size, rule in zip(wanted, points, old_sizes, rules, strict=True)
        ),
    )


def check_correctable(record: CalibrationRecord) -> None:
    """Raise ValueError unless scores of this record can be corrected for other frequencies.

    They have to be softmax scores, and the record has to say what logits look like class by class.
    Whether it knows the frequencies well enough is another matter: the command refuses with fewer
    than ``FEWEST_A_CLASS`` calibration photos per class.
    """
    if record.score_kind != "softmax":
        raise ValueError("frequencies can be corrected for softmax scores only, these are sigmoid")
    if not record.distribution.class_logsumexp:
        raise ValueError(
            "the calibration does not know what logits of each class look like: calibrate again "
            "on labelled photos"
        )


def _shift(traffic: Traffic) -> tuple[PriorShift, float]:
    """The frequencies of the traffic, and how likely its logits are if nothing else changed."""
    logits, record = traffic.latest(PRIOR_ROWS)[:, 0], traffic.record
    served, known = record.scores(logits), record.distribution
    shift = estimate_prior(served, known.mean_scores, old_rows=record.measured.rows)
    by_class = np.stack([known.class_logsumexp, known.class_spread], axis=1)
    return shift, likelihood_of_logits(logits, served, shift, by_class)


def _together(
    before: tuple[float, ...] | None, shift: PriorShift | None
) -> tuple[float, ...] | None:
    """The correction of the record and the one just found, added up."""
    if shift is None:
        return before
    total = shift.log_ratios if before is None else shift.log_ratios + np.array(before)
    return tuple(total.tolist())
