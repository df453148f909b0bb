"""Stop a run between two steps on SIGINT or SIGTERM."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Interruption:
    """Whether a stop was requested."""

    def __init__(self) -> None:
        self.requested = False

    def request(self, _signal: int, _frame: FrameType | None) -> None:
        """Request a stop after the current step; a second request stops at once."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """While the block runs, SIGINT and SIGTERM only set a flag.

    Stopping in the middle of a step would leave weights and momentum of different steps. Outside
    the main thread Python allows no signal handlers, so nothing changes there.
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
