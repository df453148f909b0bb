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

from florilege.server.prometheus import Metrics

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
        """Close the listeners after the requests published so far, and open others."""
        self._thread.submit(self._replace, open_listeners)

    def close(self) -> None:
        """Close the listeners after all published requests, and wait for it."""
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
