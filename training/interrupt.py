"""Ctrl-C and termination requests, answered between two steps."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Whether someone asked the run to stop."""

    def __init__(self) -> None:
        self.requested = False

    def request(self, _signal: int, _frame: FrameType | None) -> None:
        """Ask for a stop after the step under way; asked twice, stop at once."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """While the block runs, SIGINT and SIGTERM only set a flag.

    A step half done would leave weights and momentum that belong to different steps. Outside the
    main thread Python allows no handlers, and nothing changes.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, interruption.request) for number in signals}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
