"""Watch for drift without labels: one photo of each request, for any rule or K."""

import logging
import threading
from pathlib import Path
from time import monotonic
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.distribution import logsumexp
from florilege.calibration.monitoring.monitor import WATCHED, Expected, Monitor, expected_of
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.origin import TRAFFIC
from florilege.calibration.view import PLAIN
from florilege.errors import BundleError
from florilege.files import write_atomic
from florilege.server.prometheus import Metrics

log = logging.getLogger("florilege.server")

ROWS_AT_ONCE = 64  # photos to process together
MOST_WAIT_S = 1.0  # how long the first of them waits for the others
MAX_RECENT_PHOTOS = 10_000  # remembered to recognise repeats
SAVE_EVERY_S = 60.0


class DriftWatch:
    """Feeds a `Monitor` with the sets that photos get at the default K.

    Sets are drawn from the logits here, so requests for another rule or K count too. Of several
    photos in a request a random one counts, because they show one plant. Repeated photos do not
    count. Requests for a list do not count, because their photos are of its classes, not of all
    calibrated ones. Suspect photos do not count if a calibration from traffic left them out.
    ``state`` is the file that keeps the state across restarts.
    """

    name = "watch"

    def __init__(self, record: CalibrationRecord, metrics: Metrics, state: Path | None) -> None:
        self._metrics = metrics
        self._scores = record.scores
        self._point = record.point(PLAIN, record.setting("average_k", record.default_k))
        judge = record.rejection if record.measured.split == TRAFFIC else None
        self._judge = None if judge is None else judge.from_logits
        self._state = state
        self._rows: list[NDArray[np.float32]] = []
        self._recent: dict[int, None] = {}  # hashes of recent photos, the least recent first
        self._lock = threading.RLock()  # a timer processes the last photos
        self._saved, self._saving_fails = monotonic(), False
        self.monitor = _open_monitor(expected_of(record), state)
        self._publish()
        self._save()

    def on_answer(self, logits: NDArray[np.float32], *, restricted: bool) -> None:
        """Collect a photo of one request; process them when they are many or the first is old."""
        if restricted:
            return
        photo = crc32(logits.tobytes()) % len(logits)
        with self._lock:
            self._rows.append(logits[photo : photo + 1])
            if len(self._rows) >= ROWS_AT_ONCE:
                self._process()
            elif len(self._rows) == 1:
                timer = threading.Timer(MOST_WAIT_S, self._process)
                timer.daemon = True
                timer.start()

    def close(self) -> None:
        with self._lock:
            self._process()
            self._save()

    def _process(self) -> None:
        with self._lock:
            rows, self._rows = self._rows, []
            if rows:
                self._update(self._new_photos(np.concatenate(rows)))

    def _update(self, logits: NDArray[np.float32]) -> None:
        if self._judge is not None:  # only familiar photos, as in the calibration
            logits = logits[self._judge.familiarity(logits) >= self._judge.threshold]
        if not len(logits):
            return
        values = self._scores(logits)
        sizes = self._point.sets(values).sum(axis=1)
        alarms = self.monitor.update(sizes, values.max(axis=1), logsumexp(logits))
        for alarm in alarms:
            if alarm.over:
                log.info("drift: %s", alarm.message)
            else:
                log.warning(
                    "drift: %s; calibrate on newer photos, or have some labelled", alarm.message
                )
        self._publish()
        if alarms or monotonic() - self._saved > SAVE_EVERY_S:
            self._save()

    def _new_photos(self, logits: NDArray[np.float32]) -> NDArray[np.float32]:
        """Leave out repeated photos: the same photo gives the same logits."""
        new_rows = []
        for row, photo in enumerate(logits):
            key = hash(photo.tobytes())
            if key not in self._recent:
                new_rows.append(row)
            self._recent.pop(key, None)
            self._recent[key] = None  # now the most recent
            if len(self._recent) > MAX_RECENT_PHOTOS:
                del self._recent[next(iter(self._recent))]
        return logits[new_rows]

    def _publish(self) -> None:
        alarmed = {alarm.watched for alarm in self.monitor.alarms}
        for statistic in WATCHED:
            self._metrics.drift_alarm.labels(statistic).set(statistic in alarmed)
        self._metrics.drift_photos.set(self.monitor.rows)

    def _save(self) -> None:
        if self._state is None:
            return
        self._saved = monotonic()
        try:
            write_atomic(self._state, self.monitor.to_json().encode(), mode=0o600)
            self._saving_fails = False
        except OSError as error:
            if not self._saving_fails:
                log.warning("the state of the drift watch cannot be written: %s", error)
            self._saving_fails = True


def _open_monitor(expected: Expected, state: Path | None) -> Monitor:
    """A monitor with its saved state, if that is of the same calibration."""
    monitor = Monitor(expected)
    if state is None:
        return monitor
    try:
        monitor.restore(state.read_bytes())
        log.info("watching for drift: resuming after %d photos", monitor.rows)
    except FileNotFoundError:
        pass
    except (BundleError, OSError) as error:
        log.warning("watching for drift from the start: %s", error)
        return Monitor(expected)  # the other one may be half restored
    return monitor
