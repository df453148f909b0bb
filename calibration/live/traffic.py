"""Thresholds for the same mean set sizes from live traffic, without labels.

What it restores: the mean set size, on photos like the recent ones. What it does not: the hit rate.
On blurred photos a new threshold gave sets of K classes again, which held the truth as rarely as
before; under label shift it gave K classes and lowered the hit rate, unless the scores were
corrected as well. So a person has to look at the :class:`Recalibration` and approve it, and hit
rates measured before are not to be shown with thresholds chosen here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from calibration.live.prior_shift import PriorShift, estimate_prior
from calibration.live.shift_check import UNLIKELY, likelihood_of_logits
from calibration.live.traffic_scores import Guard, Requests, Traffic
from calibration.measurement import Measurement
from calibration.record import CalibrationRecord
from calibration.record.origin import TRAFFIC
from calibration.rules.evidence import Evidence
from calibration.threshold import threshold_text

__all__ = ["Guard", "NewThreshold", "Recalibration", "recalibrate"]

FEWEST_ROWS = 500
PRIOR_ROWS = 10_000
"""Class frequencies are estimated from the latest so many photos, which are kept in memory."""


@dataclass(frozen=True, kw_only=True)
class NewThreshold:
    """One threshold before and after.

    Attributes:
        k: Wanted mean size.
        old_lambda: The threshold of the record, and ``old_size`` the mean size it gives on the
            traffic, scores as they are.
        new_lambda: The threshold from the traffic, and ``new_size`` its mean size there; it
            compares corrected scores where there is a shift.
    """

    k: float
    old_lambda: float
    old_size: float
    new_lambda: float
    new_size: float


@dataclass(frozen=True, kw_only=True)
class Recalibration:
    """What traffic says about the thresholds of ``average_k``; nothing is changed yet.

    Attributes:
        calibration_id: The calibration it is compared with.
        rows: Photos used.
        left_out: Photos that look like none of our classes.
        thresholds: One for each K.
        shift: The class frequencies that scores were corrected for, or None.
        likelihood: How likely the logits are if nothing but the frequencies changed
            (``live.shift_check``), unfamiliar photos included unless the record is of
            traffic without them; None without a correction.
        log_ratios: What is added to the logits from now on, shape ``(classes,)``: the change just
            found and those found before; None for nothing.
    """

    calibration_id: str
    rows: int
    left_out: int
    thresholds: tuple[NewThreshold, ...]
    shift: PriorShift | None
    likelihood: float | None
    log_ratios: tuple[float, ...] | None

    @property
    def explained(self) -> bool:
        """Whether changed frequencies, if any are corrected for, explain the logits."""
        return self.likelihood is None or self.likelihood >= UNLIKELY

    def lines(self) -> list[str]:
        """What a person needs to know before approving it."""
        found = [f"{self.rows:,} photos of traffic, {self.left_out:,} more left out as unfamiliar"]
        if self.shift is not None:
            certainty = "evident" if self.shift.evident else "NOT evident: do not correct for it"
            found.append(
                f"class frequencies differ for {100 * self.shift.distance:.0f} % of the photos "
                f"({certainty})"
            )
        found += [
            f"K = {new.k:g}: lambda {threshold_text(new.old_lambda, 4)} -> "
            f"{threshold_text(new.new_lambda, 4)}, mean size on this traffic "
            f"{new.old_size:.2f} -> {new.new_size:.2f}"
            for new in self.thresholds
        ]
        found.append("hit rates are unknown until some of this traffic is labelled")
        return found


def recalibrate(
    requests: Requests,
    record: CalibrationRecord,
    *,
    ks: Sequence[float] | None = None,
    guard: Guard | None = None,
    correct_prior: bool = False,
) -> Recalibration:
    """Choose the thresholds of ``average_k`` anew from traffic.

    Promise: on the photos used, mean sizes are exactly those asked for, up to ties. On new photos
    like them, up to a standard error of ``sd(size) / sqrt(rows)``; if photos of something else
    pass the guard, they take part in the mean.

    Args:
        requests: The traffic with one photo a request, such as ``log.blocks`` of a
            :class:`calibration.live.score_log_reader.ScoreLog`; read two or three times.
        record: The calibration in use.
        ks: Mean sizes; those last asked for where None.
        guard: Which photos to leave out; none where None.
        correct_prior: Correct the scores by the class frequencies of the traffic, estimated from
            its latest photos; softmax scores only. The old frequencies are the record's mean
            scores.

    Raises:
        ValueError: Fewer than 500 photos, an unknown method, or a correction of sigmoid scores or
            for a record that cannot be corrected (:func:`check_correctable`).
        NotCalibrated: The record has no threshold for one of ``ks``.
    """
    if correct_prior:
        check_correctable(record)
    traffic = Traffic(
        requests=requests,
        score_kind=record.score_kind,
        temperature=record.temperature,
        guard=guard,
    )
    rows, seen = traffic.count()
    if rows < FEWEST_ROWS:
        raise ValueError(
            f"{rows} photos are too few to choose thresholds ({seen - rows} left out): at least "
            f"{FEWEST_ROWS} are needed"
        )
    before, shift, likelihood = record.log_ratios, None, None
    if correct_prior:
        shift, _ = _shift(traffic, record)
        guarded = record.measured.split == TRAFFIC  # as the record was made
        _, likelihood = _shift(traffic if guarded else replace(traffic, guard=None), record)
    after = _together(before, shift)
    wanted = sorted(record.asked_k if ks is None else ks)
    points = [record.point("average_k", k=k) for k in wanted]
    measured = Measurement(points, record.classes)
    for values in traffic.scores(before):
        measured.update(values, np.zeros(len(values), dtype=np.int64))  # hits mean nothing here
    evidence = Evidence(
        rows=rows,
        classes=record.classes,
        max_average_k=max(wanted),
        min_size=points[0].min_size,
    )
    for values in traffic.scores(after):
        evidence.update(values)
    rules = [evidence.average_k(k) for k in wanted]
    return Recalibration(
        calibration_id=record.calibration_id,
        rows=rows,
        left_out=seen - rows,
        shift=shift,
        likelihood=likelihood,
        log_ratios=after,
        thresholds=tuple(
            NewThreshold(
                k=float(k),
                old_lambda=float(point.lambda_val or 0.0),
                old_size=measured.mean_size(index),
                new_lambda=float(rule.lambda_val or 0.0),
                new_size=float(rule.achieved or 0.0),
            )
            for index, (k, point, rule) in enumerate(zip(wanted, points, rules, strict=True))
        ),
    )


def check_correctable(record: CalibrationRecord) -> None:
    """Raise ValueError unless scores of this record can be corrected for other frequencies.

    They have to be softmax scores, and the record has to say what logits look like class by class.
    Whether it knows the frequencies well enough is another matter: with fewer than
    ``FEWEST_A_CLASS`` calibration photos a class the command refuses.
    """
    if record.score_kind != "softmax":
        raise ValueError("frequencies can be corrected for softmax scores only, these are sigmoid")
    if not record.distribution.class_logsumexp:
        raise ValueError(
            "the calibration does not know what logits of each class look like: calibrate again "
            "on labelled photos"
        )


def _shift(traffic: Traffic, record: CalibrationRecord) -> tuple[PriorShift, float]:
    """The frequencies of the traffic, and how likely its logits are if no more has changed."""
    logits, known = traffic.latest(PRIOR_ROWS)[:, 0], record.distribution
    served = record.scores(logits)
    shift = estimate_prior(served, known.mean_scores, old_rows=record.measured.rows)
    by_class = np.stack([known.class_logsumexp, known.class_spread], axis=1)
    return shift, likelihood_of_logits(logits, served, shift, by_class)


def _together(
    before: tuple[float, ...] | None, shift: PriorShift | None
) -> tuple[float, ...] | None:
    """The correction of the record and the one just found."""
    if shift is None:
        return before
    total = shift.log_ratios if before is None else shift.log_ratios + np.array(before)
    return tuple(total.tolist())
