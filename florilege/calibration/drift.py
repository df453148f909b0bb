"""Monitor a served bundle without labels: do live photos still look like the validation photos?

The monitor watches several quantities, since each is blind to some changes: on blurred photos the
mean set size stays at K while accuracy falls from .87 to .41, but the scores change. None of them
measures accuracy, which needs a few labels (`florilege.calibration.monitoring.audit`).
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from math import log, sqrt

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.intervals import score_interval
from florilege.calibration.monitoring.martingales import DistributionTest, MeanTest
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.view import PLAIN
from florilege.errors import BundleError

_STATE_VERSION = 2
CLEAR_AFTER = 500  # an alarm ends after at least this many photos
WATCHED = {
    "set_size": "sets are larger or smaller than they were on validation photos",
    "faint_photos": "more or fewer photos than on validation have no class above the threshold",
    "best_score": "best scores are distributed differently from those of validation photos",
    "logsumexp": "logits are larger or smaller than they were on validation photos",
}
"""The watched quantities, with the message of their alarms."""


@dataclass(frozen=True, kw_only=True)
class Expected:
    """Figures of sets and scores on validation photos.

    A photo is faint if its best score is below ``faint_below``, the lower edge of the threshold's
    bin in the record's histogram.
    """

    calibration_id: str  # the calibration of these figures
    rows: int  # validation photos, one of each observation
    mean_size: float  # mean set size
    size_rows: float  # independent photos that would tell the mean size as well
    size_deviation: float  # standard deviation of the set size
    largest_size: int  # largest possible set
    faint_below: float
    faint_rate: float  # share of faint photos
    edges: tuple[float, ...]  # lower edges of the bins of the best scores
    best_scores: tuple[int, ...]  # photos in each bin
    logsumexp_edges: tuple[float, ...] = ()  # of log sum exp of the logits; empty: not watched
    logsumexp: tuple[int, ...] = ()  # photos in each bin


@dataclass(frozen=True, kw_only=True)
class _Alarm:
    """The start of an alarm, or its end."""

    watched: str  # a name in WATCHED
    row: int  # number of the photo, from 1
    message: str
    over: bool = False  # whether photos are like the validation photos again


def expected_of(record: CalibrationRecord, *, k: float | None = None) -> Expected:
    """The expected figures of ``average_k`` on single photos, by default at the default K.

    Raises:
        NotCalibrated: The record has no threshold for this K.
    """
    point = record.point(PLAIN, record.setting("average_k", k))
    assert point.lambda_val is not None  # average_k always has one
    edges = np.array(record.distribution.edges)
    counts = np.array(record.distribution.best_scores)
    below = max(0, int(np.searchsorted(edges, point.lambda_val, side="right")) - 1)
    return Expected(
        calibration_id=record.calibration_id,
        rows=int(counts.sum()),
        mean_size=point.row.size,
        # All photos count, so a plant with many of them makes the mean less exact than its plants.
        size_rows=point.row.size_rows,
        size_deviation=point.row.size_deviation,
        largest_size=point.size_bounds[1],
        faint_below=float(edges[below]),
        faint_rate=float(counts[:below].sum() / counts.sum()),
        edges=record.distribution.edges,
        best_scores=record.distribution.best_scores,
        logsumexp_edges=record.distribution.logsumexp_edges,
        logsumexp=record.distribution.logsumexp,
    )


class Monitor:
    """Watches the set sizes and scores of live photos.

    Promise: if the photos are exchangeable with the validation photos, the probability that it
    ever raises an alarm, however long it runs, is at most ``alpha`` plus the probability that the
    record's mean size or its share of faint photos lies more than ``z`` standard errors from the
    true value (0.5 % for both at ``z = 3``). For the size and the faint photos it is enough that
    the mean of each photo, given those before it, stays within that tolerance. Up to
    ``cluster_size`` photos of each observation may come one by one, however similar they are.

    An alarm ends when at least :data:`CLEAR_AFTER` photos since it was last raised show no evidence
    of a change. The same promise then starts again.

    It does not promise to detect a change that alters neither sizes nor scores, nor that a bundle
    without an alarm is accurate.

    Args:
        expected: The expected figures, see :func:`expected_of`.
        alpha: Largest probability of a false alarm, split evenly over the watched quantities.
        z: Tolerance in standard errors of the record's figures, above 0.
        seed: Seed of the random numbers that break ties between scores.
        cluster_size: The most photos of one observation that come one by one.

    Raises:
        ValueError: ``alpha`` outside (0, 1), or ``z`` not above 0.
    """

    def __init__(
        self,
        expected: Expected,
        *,
        alpha: float = 0.05,
        z: float = 3.0,
        seed: int = 0,
        cluster_size: int = 4,
    ) -> None:
        if not 0 < alpha < 1 or not 0 < z < np.inf:
            raise ValueError(f"alpha must be in (0, 1) and z above 0, got {alpha} and {z}")
        self.expected, self.rows = expected, 0
        error = expected.size_deviation / sqrt(expected.size_rows)
        # The second is Wilson's tolerance, which does not vanish if all sets have the same size.
        tolerance = max(z * error, z * z / expected.size_rows)
        smallest, largest = max(0.0, expected.mean_size - tolerance), expected.mean_size + tolerance
        clip = max(expected.largest_size, smallest + 1)
        fewest, most = score_interval(expected.faint_rate, expected.rows, z=z)  # never empty
        mean = partial(MeanTest, cluster_size=cluster_size)
        distribution = partial(DistributionTest, seed=seed, cluster_size=cluster_size)
        self._test_makers: dict[str, Callable[[], MeanTest | DistributionTest]] = {
            "set_size": partial(mean, low=smallest, high=largest, largest=clip),
            "faint_photos": partial(mean, low=fewest, high=most, largest=1.0),
            "best_score": partial(distribution, expected.edges, expected.best_scores),
        }
        if edges := expected.logsumexp_edges:
            self._test_makers["logsumexp"] = partial(distribution, edges, expected.logsumexp)
        self.tests = {name: make_test() for name, make_test in self._test_makers.items()}
        self._active = dict[str, _Alarm]()
        self._alarm_at = log(len(self.tests) / alpha)

    @property
    def alarms(self) -> list[_Alarm]:
        """The active alarms."""
        return list(self._active.values())

    def update(
        self, sizes: ArrayLike, best_scores: ArrayLike, logsumexp: ArrayLike | None = None
    ) -> list[_Alarm]:
        """Add photos; the split into batches makes no difference.

        Args:
            sizes: Set size of each photo, shape ``(rows,)``.
            best_scores: The largest number compared with the threshold, shape ``(rows,)``.
            logsumexp: Log sum exp of the served head's logits, shape ``(rows,)``; required if the
                record has its histogram.

        Returns:
            Alarms that start or end.

        Raises:
            ValueError: Shapes differ, a NaN, or ``logsumexp`` is missing.
        """
        best = np.asarray(best_scores, dtype=np.float64)
        values = {
            "set_size": np.asarray(sizes, dtype=np.float64),
            "faint_photos": (best < self.expected.faint_below).astype(np.float64),
            "best_score": best,
        }
        if "logsumexp" in self.tests:
            if logsumexp is None:
                raise ValueError("logsumexp is watched, so every update needs it")
            values["logsumexp"] = np.asarray(logsumexp, dtype=np.float64)
        shapes = [watched.shape for watched in values.values()]
        if best.ndim != 1 or len(set(shapes)) > 1:
            raise ValueError(f"sizes and scores must have the same shape (rows,), got {shapes}")
        for name, watched in values.items():
            if not np.isfinite(watched.sum()):
                raise ValueError(f"{name} must be finite numbers, got a NaN or an infinity")
        alarms = [alarm for name in self.tests for alarm in self._follow(name, values[name])]
        self.rows += len(best)
        return sorted(alarms, key=lambda alarm: alarm.row)

    def _follow(self, name: str, values: NDArray[np.float64]) -> Iterator[_Alarm]:
        """Alarms of one test that start or end with these values; the test restarts after each."""
        start = 0
        while start < len(values):
            test = self.tests[name]
            # In short parts, since whatever follows a change is tested again.
            evidence = test.update(values[start : start + CLEAR_AFTER])
            changes = evidence >= self._alarm_at
            if name in self._active:
                rows = test.rows - len(evidence) + np.arange(1, len(evidence) + 1)
                changes |= (rows >= CLEAR_AFTER) & (evidence <= 0)
            start += int(changes.argmax()) + 1 if changes.any() else len(evidence)
            if changes.any():
                self.tests[name] = self._test_makers[name]()
                over = bool(evidence[changes.argmax()] < self._alarm_at)
                if over or name not in self._active:
                    yield self._switch(name, self.rows + start, over=over)

    def _switch(self, name: str, row: int, *, over: bool) -> _Alarm:
        if over:
            first = self._active.pop(name).row
            message = f"over since photo {row:,}, noticed at photo {first:,}: {WATCHED[name]}"
            return _Alarm(watched=name, row=row, message=message, over=True)
        message = f"{WATCHED[name]} (noticed at photo {row:,})"
        self._active[name] = _Alarm(watched=name, row=row, message=message)
        return self._active[name]

    def to_json(self) -> str:
        """The whole state, for :meth:`restore`."""
        state = {
            "schema_version": _STATE_VERSION,
            "calibration_id": self.expected.calibration_id,
            "rows": self.rows,
            "alarms": [asdict(alarm) for alarm in self.alarms],
            "tests": {name: test.to_plain() for name, test in self.tests.items()},
        }
        return json.dumps(state, allow_nan=False)

    def restore(self, text: str | bytes) -> None:
        """Continue from a state of :meth:`to_json`.

        Raises:
            BundleError: The state is damaged, of another version, or of another calibration.
        """
        try:
            state = json.loads(text)
            identity = (state["schema_version"], state["calibration_id"])
            if identity != (_STATE_VERSION, self.expected.calibration_id):
                raise BundleError(
                    "the monitor's state belongs to another calibration: reset the monitor"
                )
            alarms = [_Alarm(**alarm) for alarm in state["alarms"]]
            for name, test in self.tests.items():
                test.restore(state["tests"][name])
            self.rows = int(state["rows"])
            self._active = {alarm.watched: alarm for alarm in alarms}
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise BundleError(
                f"the monitor's state is damaged ({error}): reset the monitor"
            ) from error
