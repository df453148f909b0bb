"""Work for other processes; they import this module, so it is a small one."""

import os
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path

from models.errors import DataError


def squares() -> Callable[[int], tuple[int, int]]:
    """The square of a row, and who computed it."""
    return lambda row: (row * row, os.getpid())


def chatter() -> Callable[[int], int]:
    """Prints to stdout, as a library might."""
    return _print_and_give


def _print_and_give(row: int) -> int:
    print(f"row {row}", flush=True)  # noqa: T201  (that is what is tested)
    os.write(1, b"from below\n")
    return row


def failing(error: Exception) -> Callable[[int], int]:
    """Fails at the third row."""
    return partial(_fail, error)


def _fail(error: Exception, row: int) -> int:
    if row == 2:
        raise error
    return row


def unprepared() -> Callable[[int], int]:
    """Cannot even begin."""
    raise DataError("nothing to begin with")


def dying(with_signal: signal.Signals) -> Callable[[int], int]:
    """Is killed at the third row."""
    return partial(_die, with_signal)


def _die(with_signal: signal.Signals, row: int) -> int:
    if row == 2:
        os.kill(os.getpid(), with_signal)
    return row


def marking(folder: Path) -> Callable[[int], bytes]:
    """Leaves a file for each row begun; the result is larger than a pipe holds."""
    return partial(_mark, folder)


def _mark(folder: Path, row: int) -> bytes:
    (folder / str(row)).touch()
    return bytes(1 << 20)
