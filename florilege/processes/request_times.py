"""The times of a client's requests within a moving window, in memory or for several workers."""

import time
from array import array
from bisect import bisect_left
from collections import OrderedDict, deque
from hashlib import sha256
from typing import NamedTuple, Protocol

from limits import RateLimitItem

from florilege.processes.worker_group import WorkerGroup


class _Window(NamedTuple):
    """What a client has asked: whether one more was within its rate, and the times that count."""

    within_rate: bool
    requests: int
    resets_in_s: float  # until the first of them is out of the window


class RequestTimes(Protocol):
    """Counts the requests of clients."""

    def __len__(self) -> int:
        """Clients and rates that are remembered."""

    def add(self, client: str, rate: RateLimitItem) -> _Window:
        """Count a request, unless the window holds as many as the rate allows."""


class TimesInMemory:
    """Those of one process. It needs no thread: a request forgets the clients that are out."""

    def __init__(self) -> None:
        # Times of the requests within the window, by client and rate, the last client at the end.
        self._times: OrderedDict[tuple[str, RateLimitItem], deque[float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._times)

    def add(self, client: str, rate: RateLimitItem) -> _Window:
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

    All processes of a machine have the same `time.monotonic`.
    """

    def __init__(self, group: WorkerGroup, what: str) -> None:
        self._folder = group.folder / f"rates-{what}"
        self._folder.mkdir(exist_ok=True)
        self._lock = group.lock(f"rates-{what}")

    def __len__(self) -> int:
        return len([*self._folder.iterdir()])

    def add(self, client: str, rate: RateLimitItem) -> _Window:
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
        """Delete the files of clients whose last request is out of its window."""
        for path in self._folder.iterdir():
            with self._lock:
                if time.time() - path.stat().st_mtime > float(path.name.partition("-")[0]) + 1:
                    path.unlink()


def request_times(group: WorkerGroup | None, what: str) -> RequestTimes:
    """The times of the requests of clients, of all workers if there are several."""
    return TimesInMemory() if group is None else TimesInFolder(group, what)
