"""Process answers after they are sent: log scores, watch for drift.

One thread does it all, in order, beside the threads that answer. A listener that fails or is too
slow loses its own rows, never an answer.
"""

import hashlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from time import monotonic
from typing import NamedTuple, Protocol
from zlib import crc32

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.drift import WATCHED, Expected, Monitor, expected_of
from florilege.calibration.monitoring.score_log import ScoreLogWriter, Scorer
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.schema import TRAFFIC
from florilege.calibration.scores import logsumexp
from florilege.calibration.view import PLAIN
from florilege.errors import BundleError, UsageError
from florilege.files import write_atomic
from florilege.processes import WorkerGroup
from florilege.server.answers.pipeline import Pipeline
from florilege.server.prometheus import Metrics
from florilege.server.settings import Settings, writable_folder

log = logging.getLogger("florilege.server")

PORTION = 64  # requests to process together
MOST_WAIT_S = 1.0  # how long the first of them waits for the others
MAX_RECENT_PHOTOS = 10_000  # remembered to recognise repeats
SAVE_EVERY_S = 60.0

MAX_QUEUED = 1000


class Answered(NamedTuple):
    """What listeners get of a request."""

    logits: NDArray[np.float32]  # of the served head, (photos, classes)
    restricted: bool  # whether its answer was restricted to some of the classes


class _DriftWatch:
    """Feeds a `Monitor` with the sets that photos get at the default K.

    Sets are drawn from the logits here, so requests for another rule or K count too. Of several
    photos in a request a random one counts, because they show one plant. Repeated photos do not
    count. Requests for a list do not count, because their photos are of its classes, not of all
    calibrated ones. Suspect photos do not count if a calibration from traffic left them out.
    ``state`` is the file that keeps the state across restarts. The workers of a ``group`` watch
    together: each continues from the state that the one before it has left.
    """

    name = "watch"

    def __init__(
        self,
        record: CalibrationRecord,
        metrics: Metrics,
        state: Path | None,
        group: WorkerGroup | None = None,
    ) -> None:
        self._metrics = metrics
        self._scores = record.scores
        self._point = record.point(PLAIN, record.setting("average_k", record.default_k))
        judge = record.rejection if record.measured.split == TRAFFIC else None
        self._judge = None if judge is None else judge.from_logits
        self._state = state
        self._common = None if group is None else _CommonState(group)
        self.recent: dict[bytes, None] = {}  # hashes of recent photos, the least recent first
        self._saved, self._saving_fails = monotonic(), False
        self.monitor = _open_monitor(expected_of(record), state)
        with self._turn():
            self._publish()
            self._save()

    def on_answers(self, requests: Sequence[Answered]) -> None:
        """Watch a photo of each request."""
        rows = []
        for logits, restricted in requests:
            if not restricted:
                # Drawn by their content: the same photos, sent again, give the same one, and it is
                # recognised.
                photo = crc32(logits.tobytes()) % len(logits)
                rows.append(logits[photo : photo + 1])
        if rows:
            with self._turn():
                self._update(self._new_photos(np.concatenate(rows)))

    def close(self) -> None:
        with self._turn():
            self._save()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Continue where the last worker has stopped, and leave the state to the next."""
        if self._common is None:
            yield
            return
        with self._common.lock:
            self._common.restore(self)
            yield
            with self._log_failure():
                self._common.save(self)

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
            # Of 10,000 photos two share these 64 bits with a probability of 3e-12.
            key = hashlib.blake2b(photo.tobytes(), digest_size=8).digest()
            if key not in self.recent:
                new_rows.append(row)
            self.recent.pop(key, None)
            self.recent[key] = None  # now the most recent
            if len(self.recent) > MAX_RECENT_PHOTOS:
                del self.recent[next(iter(self.recent))]
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
        with self._log_failure():
            write_atomic(self._state, self.monitor.to_json().encode(), mode=0o600)

    @contextmanager
    def _log_failure(self) -> Iterator[None]:
        """Log that the state cannot be written, the first time in a row."""
        try:
            yield
            self._saving_fails = False
        except OSError as error:
            if not self._saving_fails:
                log.warning("the state of the drift watch cannot be written: %s", error)
            self._saving_fails = True


class _CommonState:
    """The monitor and the recent photos of a watch, in files that all workers read and write."""

    def __init__(self, group: WorkerGroup) -> None:
        self.lock = group.lock("watch")
        self._monitor, self._photos = group.folder / "watch.json", group.folder / "watch.photos"

    def restore(self, watch: _DriftWatch) -> None:
        try:
            watch.monitor.restore(self._monitor.read_bytes())
            photos = self._photos.read_bytes()
        except FileNotFoundError:
            return  # nobody has left anything
        except BundleError:  # of another calibration: a new one begins
            watch.monitor = Monitor(watch.monitor.expected)
            return
        watch.recent = dict.fromkeys(photos[at : at + 8] for at in range(0, len(photos), 8))

    def save(self, watch: _DriftWatch) -> None:
        # Photos first: a worker that is killed in between loses a few photos and counts none twice.
        for path, content in (
            (self._photos, b"".join(watch.recent)),
            (self._monitor, watch.monitor.to_json().encode()),
        ):
            # A worker that is killed meanwhile leaves the old file.
            unfinished = path.with_suffix(".new")
            unfinished.write_bytes(content)
            unfinished.replace(path)


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
        # A new one: what was read of a damaged state may have changed the other.
        return Monitor(expected)
    return monitor


class _Listener(Protocol):
    """Processes answered requests; only one thread calls it."""

    name: str

    def on_answers(self, requests: Sequence[Answered]) -> None:
        """Process a portion of requests, at most `PORTION`."""

    def close(self) -> None:
        """Finish; nothing is called afterwards."""


class Publisher:
    """Passes answered requests to its listeners. `publish` never waits and never raises.

    They come in portions: to wake a thread for each would take a tenth of the time of a small
    photo.
    """

    def __init__(self, listeners: Sequence[_Listener], metrics: Metrics) -> None:
        self.listeners = list(listeners)
        self._dropped = metrics.listener_dropped
        self._waiting = list[Answered]()
        self._lock = threading.Lock()  # of those that wait
        self._complete = threading.Event()  # nothing more to wait for
        self._thread = ThreadPoolExecutor(1, "publisher")  # runs from the first request on

    def publish(self, logits: NDArray[np.float32], *, restricted: bool) -> None:
        """Queue one request, or drop it if the listeners cannot keep up."""
        if not self.listeners:
            return
        with self._lock:
            waiting = len(self._waiting)
            if waiting < MAX_QUEUED:
                self._waiting.append(Answered(logits, restricted))
        if waiting == 0:
            with suppress(RuntimeError):  # it is closed
                self._thread.submit(self._process)
        if waiting + 1 == PORTION:
            self._complete.set()
        if waiting == MAX_QUEUED:
            for listener in self.listeners:
                self._dropped.labels(listener.name).inc()

    def replace_listeners(self, open_listeners: Callable[[], Sequence[_Listener]]) -> None:
        """Close the listeners once the requests so far are processed, and open others."""
        self._complete.set()
        self._thread.submit(self._replace, open_listeners)

    def close(self) -> None:
        """Close the listeners once all published requests are processed, and wait until then."""
        self._complete.set()
        with suppress(RuntimeError):  # it is closed already
            self._thread.submit(self._close_listeners)
        self._thread.shutdown()

    def _process(self) -> None:
        self._complete.wait(MOST_WAIT_S)
        with self._lock:
            requests, self._waiting = self._waiting, []
            # Under the lock, or a portion that is complete by now would wait for the whole time.
            self._complete.clear()
        for first in range(0, len(requests), PORTION):
            self._hand_over(requests[first : first + PORTION])

    def _hand_over(self, portion: Sequence[Answered]) -> None:
        self._call_each(lambda listener: listener.on_answers(portion), lost=len(portion))

    def _replace(self, open_listeners: Callable[[], Sequence[_Listener]]) -> None:
        self._close_listeners()
        self.listeners = []
        try:
            self.listeners = list(open_listeners())
        except Exception:
            log.exception("the new listeners cannot be opened; answers are no longer processed")

    def _close_listeners(self) -> None:
        self._call_each(lambda listener: listener.close(), lost=0)

    def _call_each(self, call: Callable[[_Listener], None], lost: int) -> None:
        """Call every listener; one that fails loses ``lost`` requests, and the others continue."""
        for listener in self.listeners:
            try:
                call(listener)
            except Exception:  # whatever fails, the other listeners and the server continue
                log.exception("%s failed after an answer", listener.name)
                self._dropped.labels(listener.name).inc(lost)


def open_listeners(
    settings: Settings, pipeline: Pipeline, metrics: Metrics, group: WorkerGroup | None = None
) -> list[_Listener]:
    """Open all listeners for the answers of a bundle; workers of a ``group`` watch together."""
    listeners: list[_Listener] = []
    if settings.score_log is not None:
        folder = writable_folder(settings.score_log, "--score-log")
        scorer = Scorer.of(pipeline.bundle, pipeline.record)
        writer = ScoreLogWriter(folder, scorer, max_bytes=settings.score_log_max_bytes)
        listeners.append(_ScoreLogListener(writer, metrics))
    if settings.watch:
        if settings.watch_state is not None:
            writable_folder(settings.watch_state.parent, "--watch-state")
            if settings.watch_state.is_dir():
                raise UsageError(f"--watch-state {settings.watch_state} is a folder; name a file")
        listeners.append(_DriftWatch(pipeline.record, metrics, settings.watch_state, group))
    return listeners


class _ScoreLogListener:
    """Passes logits to a `ScoreLogWriter`; a full disk loses rows, never an answer."""

    name = "score_log"

    def __init__(self, writer: ScoreLogWriter, metrics: Metrics) -> None:
        self._writer = writer
        self._photos = metrics.score_log_photos
        self._failing = False

    def on_answers(self, requests: Sequence[Answered]) -> None:
        for logits, _ in requests:
            self._append(logits)

    def _append(self, logits: NDArray[np.float32]) -> None:
        failed = False
        try:
            self._writer.append(logits)
        except OSError as error:
            failed = True
            if not self._failing:
                log.warning("the score log cannot be written: %s", error)
        self._failing = failed
        self._photos.labels("failed" if failed else "written").inc(len(logits))

    def close(self) -> None:
        self._writer.close()
