"""What the workers of one server keep together, beyond numbers.

They ask each other for what only one of them remembers, and limit clients by the requests that any
of them got.
"""

import logging
import socket
import struct
import threading
import time
from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from collections.abc import Callable
from contextlib import suppress
from hashlib import sha256
from multiprocessing import AuthenticationError, current_process
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge
from pathlib import Path
from typing import Final, Generic, NamedTuple, TypeVar

from limits import RateLimitItem

from florilege.processes import WorkerGroup

log = logging.getLogger("florilege.server")

# Seconds, microseconds that another worker may take: it only looks into a dictionary.
_WAIT: Final = struct.pack("@ll", 1, 0)
_PAUSE_S: Final = 0.01
Q = TypeVar("Q")
A = TypeVar("A")


class Peers(Generic[Q, A]):
    """Answers the questions of the other workers with ``find``, and asks them its own.

    Questions travel over Unix sockets in the private folder of the group; only processes that the
    supervisor started know the key.
    """

    def __init__(self, group: WorkerGroup, find: Callable[[Q], A | None]) -> None:
        self._group, self._find = group, find
        self._key = current_process().authkey
        own = self._address(group.number)
        own.unlink(missing_ok=True)  # of a worker that died
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(own))
        self._listener.listen(64)
        threading.Thread(target=self._serve, name="peers", daemon=True).start()

    def ask(self, question: Q) -> A | None:
        """The first answer of another worker; None if none has one.

        Raises `TimeoutError` if one that may have it does not answer in time.
        """
        silent = False
        for number in {*range(self._group.count)} - {self._group.number}:
            try:
                if (answer := self._ask(number, question)) is not None:
                    return answer
            except BlockingIOError:
                silent = True
            except FileNotFoundError:  # it has not started, or somebody has deleted the folder
                silent = silent or bool(self._group.column("ready")[number])
            except (OSError, EOFError, AuthenticationError):
                continue  # it has died, and knows nothing
        if silent:
            raise TimeoutError("another worker does not answer")
        return None

    def _ask(self, number: int, question: Q) -> A | None:
        with socket.socket(socket.AF_UNIX) as channel:
            _limit_waiting(channel)
            channel.connect(str(self._address(number)))
            with Connection(channel.detach()) as connection:
                answer_challenge(connection, self._key)
                deliver_challenge(connection, self._key)
                connection.send(question)
                return connection.recv()  # type: ignore[no-any-return]  # what `find` returned

    def close(self) -> None:
        """Answer no more questions."""
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._listener.close()

    def _serve(self) -> None:
        while self._listener.fileno() >= 0:  # it is open
            try:
                channel, _ = self._listener.accept()
                _limit_waiting(channel)
                with Connection(channel.detach()) as connection:
                    deliver_challenge(connection, self._key)
                    answer_challenge(connection, self._key)
                    connection.send(self._find(connection.recv()))
            except (OSError, EOFError, AuthenticationError):
                time.sleep(_PAUSE_S)  # who asked has left, or too many files are open

    def _address(self, number: int) -> Path:
        return self._group.folder / f"worker-{number}.sock"


def _limit_waiting(channel: socket.socket) -> None:
    """Let reading, writing and connecting fail where the other end is stopped.

    The kernel does it: a timeout of Python does not reach a `Connection`.
    """
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, _WAIT)
    channel.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, _WAIT)


class _Window(NamedTuple):
    """What a client has asked: whether one more was within its rate, and the times that count."""

    within_rate: bool
    requests: int
    resets_in_s: float  # until the first of them is out of the window


class _TimesInMemory:
    """Requests to one process. It needs no thread: one forgets the clients that are out."""

    def __init__(self) -> None:
        # Times of the requests within the window, by client and rate, the last client at the end.
        self._times: OrderedDict[tuple[str, RateLimitItem], deque[float]] = OrderedDict()

    def add(self, client: str, rate: RateLimitItem) -> _Window:
        """Count a request, unless the window holds as many as the rate allows."""
        now, window = time.monotonic(), rate.get_expiry()
        times = self._times.setdefault((client, rate), deque())
        self._times.move_to_end((client, rate))
        while times and times[0] < now - window:
            times.popleft()
        within_rate = len(times) < rate.amount
        if within_rate:
            times.append(now)
        self._forget_clients(now)
        return _Window(within_rate, len(times), times[0] + window - now)

    def _forget_clients(self, now: float) -> None:
        while True:
            (client, rate), times = next(iter(self._times.items()))
            if times[-1] >= now - rate.get_expiry():
                return
            del self._times[client, rate]


class TimesInFolder:
    """Those of several workers: a file of times for each client and rate, under one lock.

    All processes of a machine have the same `time.monotonic`. While it cannot be written, each
    worker counts for itself.
    """

    def __init__(self, group: WorkerGroup, what: str) -> None:
        self._folder = group.folder / f"rates-{what}"
        self._folder.mkdir(exist_ok=True)
        self._lock = group.lock(f"rates-{what}")
        self._own, self._failing = _TimesInMemory(), False

    def add(self, client: str, rate: RateLimitItem) -> _Window:
        try:
            window = self._add(client, rate)
        except OSError as error:
            if not self._failing:
                log.error("each worker counts requests for itself: %s", error)
            window, self._failing = self._own.add(client, rate), True
        else:
            self._failing = False
        return window

    def _add(self, client: str, rate: RateLimitItem) -> _Window:
        name = sha256(f"{client} {rate}".encode()).hexdigest()[:32]
        path = self._folder / f"{rate.get_expiry()}-{name}"
        with self._lock, path.open("ab+", buffering=0) as file:
            file.seek(0)
            times, now = array("d", file.readall()), time.monotonic()
            first = bisect_left(times, now - rate.get_expiry())
            within_rate = len(times) - first < rate.amount
            if within_rate:
                times.append(now)
                file.write(times[-1:])
            if 2 * first > len(times):  # most are old: write the others anew
                file.truncate(0)
                file.write(times[first:])
            resets_in_s = times[first] + rate.get_expiry() - now
            return _Window(within_rate, len(times) - first, resets_in_s)

    def forget(self) -> None:
        """Delete the files of clients whose last request is out of its window, if that works."""
        with suppress(OSError):  # `add` has said it
            self._folder.mkdir(exist_ok=True)  # if somebody has cleaned up /tmp
            for path in self._folder.iterdir():
                window = float(path.name.partition("-")[0])
                with self._lock:
                    last = max(array("d", path.read_bytes()), default=0.0)
                    if time.monotonic() - last > window:
                        path.unlink()


def request_times(group: WorkerGroup | None, what: str) -> _TimesInMemory | TimesInFolder:
    """The times of the requests of clients, of all workers if there are several."""
    return _TimesInMemory() if group is None else TimesInFolder(group, what)
