"""Limit the pixels decoded at once: a 50-megapixel PNG takes 250 MB while it is decoded.

Without a limit every thread of a server could hold the largest picture at the same time. JPEGs are
decoded at a fraction of their size and rarely wait, except progressive ones, whose coefficients are
all kept until the last scan.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic_ns

from florilege.models.images import Header
from florilege.processes.worker_group import Tally, WorkerGroup

MAX_DECODING_PIXELS = 100_000_000
SMALL_SHARE = 50
CHECK_EVERY_S = 0.5
_ASK_EVERY_S = 0.02
"""Threads of one process wake each other; what another worker gives back has to be looked for."""


class PixelBudget:
    """Pixels that all threads of all workers may hold; pictures that exceed the budget wait.

    They are served in order of arrival, so that smaller ones never delay a large one forever. A
    picture larger than the budget is decoded when nothing else is held. Pictures up to a fiftieth
    of the budget, which is nearly all photos, are not counted and never wait.
    """

    def __init__(self, limit: int = MAX_DECODING_PIXELS, group: WorkerGroup | None = None) -> None:
        self.limit = limit
        self._held = Tally() if group is None else group.tally("decoding_pixels")
        # Since when the first picture of each worker waits: the oldest of these has its turn.
        self._since = Tally() if group is None else group.tally("decoding_since")
        self._single = group is None
        self._turns: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def pixels_in_use(self) -> int:
        """The pixels held now."""
        return self._held.total

    @contextmanager
    def hold(self, pixels: int, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Wait until ``pixels`` fit the budget, and hold them until the block ends.

        ``check`` is called every half second while waiting; an exception it raises ends the wait.
        """
        if pixels <= self.limit // SMALL_SHARE:
            yield
            return
        turn = object()
        with self._changed:
            self._turns.append(turn)
            try:
                while self._turns[0] is not turn or not self._take(pixels):
                    self._changed.wait(CHECK_EVERY_S if self._single else _ASK_EVERY_S)
                    check()
            finally:
                if self._turns[0] is turn:
                    self._since.own = 0
                self._turns.remove(turn)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._held.release(pixels)
                self._changed.notify_all()

    def _take(self, pixels: int) -> bool:
        """Hold the pixels of the first picture of this worker, if it is its turn and they fit."""
        self._since.own = since = self._since.own or monotonic_ns()
        earlier = any(0 < other < since for other in self._since.others)
        return not earlier and self._held.add_within(pixels, self.limit, alone=True)


def pixels_to_hold(header: Header, *, least: int, max_pixels: int) -> int:
    """Pixels that decoding a picture holds; it is not shrunk below a side of ``least``."""
    pixels = header.width * header.height
    if pixels > max_pixels:  # refused by the decoder
        return 0
    if not header.shrinks:
        return pixels
    most = max(1, min(header.width, header.height) // least)
    return pixels // next(factor for factor in (8, 4, 2, 1) if factor <= most) ** 2
