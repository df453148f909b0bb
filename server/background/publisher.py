"""What is done with an answer once it is given: logging scores, watching for drift.

One thread does it all, in order, beside the threads that answer. A listener that fails, or is too
slow, loses its own rows and never an answer.
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

MOST_WAITING = 1000
QUIET_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Seen:
    """What listeners hear of one answered request: numbers alone."""

    logits: NDArray[np.float32]  # of the served head, (photos, classes)
    restricted: bool = False  # whether its answer was restricted to some of the classes


class Listener(Protocol):
    """Takes note of answered requests; only one thread calls it."""

    name: str

    def hear(self, seen: Seen) -> None:
        """Take note of one request."""

    def rest(self) -> None:
        """Called when nothing has come for a second, and now and then otherwise."""

    def close(self) -> None:
        """Finish; nothing follows."""


Opens = Callable[[], Sequence[Listener]]


class Afterwards:
    """Passes what was answered on to its listeners. `tell` never waits and never raises."""

    def __init__(self, listeners: Sequence[Listener], metrics: Metrics) -> None:
        self.listeners = list(listeners)
        self._dropped = metrics.afterwards_dropped
        self._queue: queue.Queue[Seen | Opens | None] = queue.Queue()
        self._thread = threading.Thread(target=self._run, name="afterwards", daemon=True)

    def start(self) -> None:
        """Begin to pass on; once, and only where somebody listens."""
        if self.listeners:
            self._thread.start()

    def tell(self, seen: Seen) -> None:
        """Pass one request on, or drop it where the listeners cannot keep up."""
        if not self.listeners:
            return
        if self._queue.qsize() < MOST_WAITING:
            self._queue.put(seen)
            return
        for listener in self.listeners:
            self._dropped.labels(listener.name).inc()

    def change(self, listeners: "Opens") -> None:
        """Once all told so far has been heard, close the listeners and open others."""
        if self._thread.is_alive():
            self._queue.put(listeners)

    def close(self) -> None:
        """Wait until everything told has been heard, then close the listeners."""
        if self._thread.is_alive():
            self._queue.put(None)
            self._thread.join()

    def _run(self) -> None:
        while True:
            try:
                seen = self._queue.get(timeout=QUIET_S)
            except queue.Empty:
                self._each("rest")
                continue
            if seen is None:
                self._each("close")
                return
            if isinstance(seen, Seen):
                self._each("hear", seen)
                continue
            self._each("close")
            try:
                self.listeners = list(seen())
            except Exception:
                log.exception("nothing listens to answers any more")
                self.listeners = []

    def _each(self, method: str, *told: Seen) -> None:
        for listener in self.listeners:
            try:
                getattr(listener, method)(*told)
            except Exception:  # whatever it is, the other listeners and the server go on
                log.exception("%s failed after an answer", listener.name)
                self._dropped.labels(listener.name).inc(len(told))
