"""Work on many rows in several processes, results in order.

Each process is a fresh interpreter that is told what to do over a pipe. Nothing is forked, so no
state of ONNX Runtime is shared; and the caller's own script is not run again in it, as
``multiprocessing`` would, so that a script without ``if __name__ == "__main__"`` may call it. A
process that nobody listens to any more ends, also where the caller was killed.
"""

import json
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import IO, Final, TypeVar, cast

from models.errors import FlorilegeError, UsageError

Result = TypeVar("Result")
Work = Callable[[int], Result]

_START: Final = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from calibration.processes import main; main()"
)
_GONE: Final = (EOFError, OSError, pickle.UnpicklingError)


def in_processes(
    prepare: Callable[[], Work[Result]], count: int, processes: int
) -> Iterator[Result]:
    """``work(0)``, ``work(1)``, ... to ``count - 1``, where ``work`` is what ``prepare()`` gives.

    Each process prepares its own and takes every ``processes``-th row. It waits when it is a pipe
    (64 KiB on Linux) ahead of what was asked for, so results never pile up.

    Args:
        prepare: Called once in each process; it has to be picklable, and so have the results.
        count: Rows, at least one.
        processes: At least one.

    Raises:
        UsageError: ``prepare`` cannot be pickled, or not be unpickled there.
        FlorilegeError: A process was killed or ended; or what ``work`` raised.
    """
    try:
        orders = [
            pickle.dumps((prepare, range(first, count, processes))) for first in range(processes)
        ]
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        raise UsageError(_not_portable(error)) from error
    with _started(orders) as started:
        for row in range(count):
            yield cast(Result, _receive(started[row % processes]))


@contextmanager
def _started(orders: Sequence[bytes]) -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes with their orders; none of them is left behind."""
    started = list[subprocess.Popen[bytes]]()
    try:
        for _ in orders:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", _START, json.dumps(sys.path)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    process_group=0,  # Ctrl-C is the caller's to answer
                )
            )
        for process, order in zip(started, orders, strict=True):
            _order(process, order)
        yield started
    finally:
        for process in started:
            process.kill()
        for process in started:
            with suppress(BrokenPipeError), process:  # closes the pipes and waits
                pass


def _order(process: subprocess.Popen[bytes], order: bytes) -> None:
    assert process.stdin is not None  # a pipe
    with suppress(BrokenPipeError):  # it ended: `_receive` says how
        process.stdin.write(order)
        process.stdin.close()


def _receive(process: subprocess.Popen[bytes]) -> object:
    assert process.stdout is not None  # a pipe
    try:
        result, error = pickle.load(process.stdout)
    except _GONE as gone:
        raise FlorilegeError(_how_it_ended(process.wait())) from gone
    if error is not None:
        raise error
    return result


def _how_it_ended(code: int) -> str:
    what = "a process that scores photos"
    if code == -signal.SIGKILL:
        return f"{what} was killed, most likely for want of memory: repeat with fewer --workers"
    how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
    return f"{what} {how}: repeat with --workers 1"


def _not_portable(error: Exception) -> str:
    return f"these photos cannot be read in other processes ({error}): use --workers 1"


def main() -> None:
    """What such a process does: read its orders from stdin, write its results to stdout."""
    channel = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a stray print cannot garble the results
    try:
        for result in _outcomes(sys.stdin.buffer):
            pickle.dump(result, channel)
            channel.flush()
    except BrokenPipeError:
        os._exit(0)  # nobody listens any more


def _outcomes(orders: IO[bytes]) -> Iterator[tuple[object, Exception | None]]:
    """A result and no error for each row, or at last an error and no result."""
    try:
        prepare, rows = pickle.load(orders)
    except Exception as error:  # whatever a class raises that is not there
        yield None, UsageError(_not_portable(error))
        return
    try:
        work = prepare()
        for row in rows:
            yield work(row), None
    except FlorilegeError as error:
        yield None, error
    except Exception as error:
        yield (
            None,
            FlorilegeError(f"{type(error).__name__} in a process that scores photos: {error}"),
        )
