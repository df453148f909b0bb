"""Limit the pixels decoded at once: a 50-megapixel PNG takes 250 MB while it is decoded.

Without a limit every thread of a server could hold the largest picture at the same time. JPEGs are
decoded at a fraction of their size and rarely wait, except progressive ones, whose coefficients are
all kept until the last scan.
"""

import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from florilege.models.images import Header

MAX_DECODING_PIXELS = 100_000_000
SMALL_SHARE = 50
CHECK_EVERY_S = 0.5


class PixelBudget:
    """Pixels that all threads together may hold; pictures that exceed the budget wait.

    They are served in order of arrival, so that smaller ones never delay a large one forever. A
    picture larger than the budget is decoded when nothing else is held. Pictures up to a fiftieth
    of the budget, which is nearly all photos, are not counted and never wait.
    """

    def __init__(self, limit: int = MAX_DECODING_PIXELS) -> None:
        self.limit = limit
        self.pixels_in_use = 0
        self._turns: deque[object] = deque()
        self._changed = threading.Condition()

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
                while self._turns[0] is not turn or not self._fits(pixels):
                    self._changed.wait(CHECK_EVERY_S)
                    check()
                self.pixels_in_use += pixels
            finally:
                self._turns.remove(turn)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self.pixels_in_use -= pixels
                self._changed.notify_all()

    def _fits(self, pixels: int) -> bool:
        return self.pixels_in_use == 0 or self.pixels_in_use + pixels <= self.limit


def pixels_to_hold(header: Header, *, least: int, max_pixels: int) -> int:
    """Pixels that decoding a picture holds; it is not shrunk below a side of ``least``."""
    pixels = header.width * header.height
    if pixels > max_pixels:  # refused by the decoder
        return 0
    if not header.shrinks:
        return pixels
    most = max(1, min(header.width, header.height) // least)
    return pixels // next(factor for factor in (8, 4, 2, 1) if factor <= most) ** 2
