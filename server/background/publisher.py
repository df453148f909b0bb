"""Process answers after they are sent: log scores, watch for drift.

One thread does it all, in order, beside the threads that answer. A listener that fails or is too
slow loses its own rows, never an answer.
"""

import logging
import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from florilege.server.prometheus import Metrics

log = logging.getLogger("florilege.server")

MAX_QUEUED = 1000
IDLE_AFTER_S = 1.0


@dataclass(frozen=True, kw_only=True)
class AnsweredRequest:
    """What listeners get of one answered request: only numbers."""

    logits: NDArray[np.float32]  # of the served head, (photos, classes)
    restricted: bool = False  # whether its answer was restricted to some of the classes


class Listener(Protocol):
    """Processes answered requests; only one thread calls it."""

    name: str

    def on_answer(self, answered: AnsweredRequest) -> None:
        """Process one request."""

    def on_idle(self) -> None:
        """Called after a second without requests."""

    def close(self) -> None:
        """Finish; nothing is called afterwards."""


OpenListeners = Callable[[], Sequence[Listener]]


class Publisher:
    """Passes answered requests to its listeners. `publish` never waits and never raises."""

    def __init__(self, listeners: Sequence[Listener], metrics: Metrics) -> None:
        self.listeners = list(listeners)
        self._dropped = metrics.listener_dropped
        self._queue: queue.Queue[AnsweredRequest | OpenListeners | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="publisher", daemon=True)

    def start(self) -> None:
        """Start the thread if there are listeners. Call it once."""
        if self.listeners:
            self._thread.start()

    def publish(self, answered: AnsweredRequest) -> None:
        """Queue one request, or drop it if the listeners cannot keep up."""
        if not self.listeners:
            return
        if self._queue.qsize() < MAX_QUEUED:
            self._queue.put(answered)
            return
        for listener in self.listeners:
            self._dropped.labels(listener.name).inc()

    def replace_listeners(self, open_listeners: OpenListeners) -> None:
        """Close the listeners after the requests published so far, and open others."""
        if self._thread.is_alive():
            self._queue.put(open_listeners)

    def close(self) -> None:
        """Close the listeners after all published requests, and wait for it."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                item = self._queue.get(timeout=IDLE_AFTER_S)
            except queue.Empty:
                self._call_each(lambda listener: listener.on_idle())
                continue
            if isinstance(item, AnsweredRequest):
                self._publish(item)
                continue
            self._call_each(lambda listener: listener.close())
            if item is None:
                return
            try:
                self.listeners = list(item())
            except Exception:
                log.exception("the new listeners cannot be opened; answers are no longer processed")
                self.listeners = []

    def _publish(self, answered: AnsweredRequest) -> None:
        self._call_each(lambda listener: listener.on_answer(answered), lost=1)

    def _call_each(self, call: Callable[[Listener], None], lost: int = 0) -> None:
        """Call every listener; one that fails loses ``lost`` requests, and the others continue."""
        for listener in self.listeners:
            try:
                call(listener)
            except Exception:  # whatever fails, the other listeners and the server continue
                log.exception("%s failed after an answer", listener.name)
                self._dropped.labels(listener.name).inc(lost)
