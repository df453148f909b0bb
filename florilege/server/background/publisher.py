"""Process answers after they are sent: log scores, watch for drift.

One thread does it all, in order, beside the threads that answer. A listener that fails or is too
slow loses its own rows, never an answer.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.monitoring.score_log import ScoreLogWriter, Scorer
from florilege.errors import UsageError
from florilege.processes.worker_group import WorkerGroup
from florilege.server.answers.pipeline import Pipeline
from florilege.server.background.drift_watch import DriftWatch
from florilege.server.prometheus import Metrics
from florilege.server.settings import Settings, writable_folder

log = logging.getLogger("florilege.server")

MAX_QUEUED = 1000


class Listener(Protocol):
    """Processes answered requests; only one thread calls it."""

    name: str

    def on_answer(self, logits: NDArray[np.float32], *, restricted: bool) -> None:
        """Process the logits of the served head, ``(photos, classes)``, of one request.

        ``restricted`` says whether its answer was restricted to some of the classes.
        """

    def close(self) -> None:
        """Finish; nothing is called afterwards."""


class Publisher:
    """Passes answered requests to its listeners. `publish` never waits and never raises."""

    def __init__(self, listeners: Sequence[Listener], metrics: Metrics) -> None:
        self.listeners = list(listeners)
        self._dropped = metrics.listener_dropped
        self._room = threading.Semaphore(MAX_QUEUED)
        self._thread = ThreadPoolExecutor(1, "publisher")  # runs from the first request on

    def publish(self, logits: NDArray[np.float32], *, restricted: bool) -> None:
        """Queue one request, or drop it if the listeners cannot keep up."""
        if not self.listeners:
            return
        if self._room.acquire(blocking=False):
            with suppress(RuntimeError):  # it is closed
                self._thread.submit(self._process, logits, restricted)
            return
        for listener in self.listeners:
            self._dropped.labels(listener.name).inc()

    def replace_listeners(self, open_listeners: Callable[[], Sequence[Listener]]) -> None:
        """Close the listeners once the requests so far are processed, and open others."""
        self._thread.submit(self._replace, open_listeners)

    def close(self) -> None:
        """Close the listeners once all published requests are processed, and wait until then."""
        with suppress(RuntimeError):  # it is closed already
            self._thread.submit(self._close_listeners)
        self._thread.shutdown()

    def _process(self, logits: NDArray[np.float32], restricted: bool) -> None:
        self._room.release()
        self._call_each(lambda each: each.on_answer(logits, restricted=restricted), lost=1)

    def _replace(self, open_listeners: Callable[[], Sequence[Listener]]) -> None:
        self._close_listeners()
        self.listeners = []
        try:
            self.listeners = list(open_listeners())
        except Exception:
            log.exception("the new listeners cannot be opened; answers are no longer processed")

    def _close_listeners(self) -> None:
        self._call_each(lambda listener: listener.close(), lost=0)

    def _call_each(self, call: Callable[[Listener], None], lost: int) -> None:
        """Call every listener; one that fails loses ``lost`` requests, and the others continue."""
        for listener in self.listeners:
            try:
                call(listener)
            except Exception:  # whatever fails, the other listeners and the server continue
                log.exception("%s failed after an answer", listener.name)
                self._dropped.labels(listener.name).inc(lost)


def open_listeners(
    settings: Settings, pipeline: Pipeline, metrics: Metrics, group: WorkerGroup | None = None
) -> list[Listener]:
    """Open all listeners for the answers of a bundle; workers of a ``group`` watch together."""
    listeners: list[Listener] = []
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
        listeners.append(DriftWatch(pipeline.record, metrics, settings.watch_state, group))
    return listeners


class _ScoreLogListener:
    """Passes logits to a `ScoreLogWriter`; a full disk loses rows, never an answer."""

    name = "score_log"

    def __init__(self, writer: ScoreLogWriter, metrics: Metrics) -> None:
        self._writer = writer
        self._photos = metrics.score_log_photos
        self._failing = False

    def on_answer(self, logits: NDArray[np.float32], *, restricted: bool) -> None:
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
