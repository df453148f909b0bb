"""Thresholds for the same mean set sizes from live traffic, without labels.

What it restores: the mean set size, on photos like the recent ones. What it does not: the hit rate.
On blurred photos a new threshold gave sets of K classes again, which held the truth as rarely as
before; under label shift it gave K classes and lowered the hit rate, unless the scores were
corrected as well. So a person has to look at the :class:`Recalibration` and approve it, and hit
rates measured before are not to be shown with thresholds chosen here.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration.evidence import Evidence
from calibration.measure import Measurement
from calibration.prior_shift import PriorShift, corrected, estimate_prior
from calibration.record import CalibrationRecord
from calibration.rejection import METHODS
from calibration.scores import scores

Logits = NDArray[np.float32]
Blocks = Callable[[], Iterator[Logits]]
"""Gives the logits of the served head from the start, ``(batch, classes)`` each time."""

FEWEST_ROWS = 500
PRIOR_ROWS = 10_000
"""Class frequencies are estimated from the latest so many photos, which are kept in memory."""


@dataclass(frozen=True, kw_only=True)
class Guard:
    """Which photos are left out, fixed before the traffic was seen.

    Attributes:
        method: A name in :data:`calibration.rejection.METHODS`.
        threshold: Photos less familiar than this are left out.
    """

    method: str
    threshold: float


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
    """

    calibration_id: str
    rows: int
    left_out: int
    thresholds: tuple[NewThreshold, ...]
    shift: PriorShift | None

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
            f"K = {new.k:g}: lambda {new.old_lambda:.4g} -> {new.new_lambda:.4g}, mean size on "
            f"this traffic {new.old_size:.2f} -> {new.new_size:.2f}"
            for new in self.thresholds
        ]
        found.append("hit rates are unknown until some of this traffic is labelled")
        return found


def recalibrate(
    blocks: Blocks,
    record: CalibrationRecord,
    *,
    ks: Sequence[float] | None = None,
    guard: Guard | None = None,
    old_prior: ArrayLike | None = None,
) -> Recalibration:
    """Choose the thresholds of ``average_k`` anew from traffic.

    Promise: on the photos used, mean sizes are exactly those asked for, up to ties. On new photos
    like them, up to a standard error of ``sd(size) / sqrt(rows)``; if photos of something else
    pass the guard, they take part in the mean.

    Args:
        blocks: The traffic, such as ``lambda: (b[:, 0] for b in log.blocks())``; read two or three
            times.
        record: The calibration in use.
        ks: Mean sizes; those last asked for where None.
        guard: Which photos to leave out; none where None.
        old_prior: Class frequencies behind the scores, for a correction by those of the traffic;
            no correction where None. Softmax scores only.

    Raises:
        ValueError: Fewer than 500 photos, a correction of sigmoid scores, or an unknown method.
        NotCalibrated: The record has no threshold for one of ``ks``.
    """
    if old_prior is not None and record.score_kind != "softmax":
        raise ValueError("frequencies can be corrected for softmax scores only, these are sigmoid")
    traffic = _Traffic(blocks, record, guard)
    rows, seen = traffic.count()
    if rows < FEWEST_ROWS:
        raise ValueError(
            f"{rows} photos are too few to choose thresholds ({seen - rows} left out): at least "
            f"{FEWEST_ROWS} are needed"
        )
    shift = None if old_prior is None else estimate_prior(traffic.latest(), old_prior)
    wanted = sorted(record.asked_k if ks is None else ks)
    points = [record.point("average_k", k=k) for k in wanted]
    before = Measurement(points, record.classes)
    evidence = Evidence(
        rows=rows,
        classes=record.classes,
        max_average_k=max(wanted),
        min_size=points[0].min_size,
    )
    for values in traffic.scores():
        before.update(values, np.zeros(len(values), dtype=np.int64))  # hits mean nothing here
        evidence.update(values if shift is None else corrected(values, shift))
    rules = [evidence.average_k(k) for k in wanted]
    return Recalibration(
        calibration_id=record.calibration_id,
        rows=rows,
        left_out=seen - rows,
        shift=shift,
        thresholds=tuple(
            NewThreshold(
                k=float(k),
                old_lambda=float(point.lambda_val or 0.0),
                old_size=before.mean_size(index),
                new_lambda=float(rule.lambda_val or 0.0),
                new_size=float(rule.achieved or 0.0),
            )
            for index, (k, point, rule) in enumerate(zip(wanted, points, rules, strict=True))
        ),
    )


class _Traffic:
    """The scores of the photos that pass the guard, read as often as wanted."""

    def __init__(self, blocks: Blocks, record: CalibrationRecord, guard: Guard | None) -> None:
        if guard is not None and guard.method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {guard.method!r}")
        self._blocks, self._kind, self._guard = blocks, record.score_kind, guard

    def scores(self) -> Iterator[NDArray[np.float64]]:
        for logits in self._blocks():
            familiar = logits[self._familiar(logits)]
            if len(familiar):
                yield scores(familiar, self._kind)

    def count(self) -> tuple[int, int]:
        """Photos that pass the guard, and all photos."""
        counts = [(int(self._familiar(logits).sum()), len(logits)) for logits in self._blocks()]
        return sum(passed for passed, _ in counts), sum(seen for _, seen in counts)

    def latest(self) -> NDArray[np.float64]:
        kept: list[NDArray[np.float64]] = []
        for values in self.scores():
            kept.append(values)
            while sum(map(len, kept[1:])) >= PRIOR_ROWS:
                kept.pop(0)
        return np.concatenate(kept)[-PRIOR_ROWS:]

    def _familiar(self, logits: Logits) -> NDArray[np.bool_]:
        if self._guard is None:
            return np.ones(len(logits), dtype=np.bool_)
        found = METHODS[self._guard.method](logits, self._kind)
        return np.asarray(found >= self._guard.threshold)
