"""What the processes of a server share: numbers in shared memory, which the supervisor reads.

And how many workers the memory of a machine or a container holds. It imports next to nothing:
settings name it, and ``--help`` must stay light.
"""

import fcntl
import mmap
import os
import threading
import time
import weakref
from array import array
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Final, Self, TypeAlias

from florilege.errors import UsageError

Parts: TypeAlias = "array[int] | memoryview[int]"
NUMBERS: Final = (
    "photos",  # in the queue or in progress
    "held_bytes",  # of uploads
    "decoding_pixels",
    "decoding_since",  # since when the first large picture waits for its turn; 0: none
    "connections_closed",
    "process",  # its id
    "ready",  # 1 once it answers
    "beat",  # when its event loop last ran, in seconds
    "model",  # tells bundles apart
)
TOTALS: Final = ("dead_cpu_ms",)  # of all workers that died
_FILE: Final = "numbers"
_BYTES: Final = 8  # a number
METRICS: Final = "metrics"
METRIC_KINDS: Final = ("counter", "histogram", "gauge_livesum", "gauge_mostrecent")
METRIC_BYTES: Final = 256 * 1024  # of each kind, nine times what all histograms of a worker take


class _ProcessLock:
    """A lock between threads and processes. A process that dies holds it no longer."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        weakref.finalize(self, os.close, self._file)
        self._threads = threading.Lock()  # `flock` alone would let a second thread in

    def __enter__(self) -> None:
        self._threads.acquire()
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        fcntl.flock(self._file, fcntl.LOCK_UN)
        self._threads.release()


Lock = AbstractContextManager[bool | None] | _ProcessLock


class Tally:
    """A sum of parts, one for each worker; without other workers a plain number.

    Each worker changes its own part, through one object. When one dies, the supervisor sets its
    part to 0.

    Example:
        >>> photos = Tally()
        >>> photos.add_within(3, limit=4), photos.add_within(2, limit=4), photos.total
        (True, False, 3)
    """

    def __init__(
        self,
        parts: "Parts | None" = None,
        number: int = 0,
        lock: Lock | None = None,
    ) -> None:
        self._parts: Parts = array("q", [0]) if parts is None else parts
        self._number, self._lock = number, lock or threading.Lock()
        self._changing = threading.Lock()  # between the threads of this worker

    @property
    def total(self) -> int:
        """The sum."""
        return sum(self._parts)

    @property
    def own(self) -> int:
        """The part of this worker."""
        return self._parts[self._number]

    @own.setter
    def own(self, value: int) -> None:
        self._parts[self._number] = value

    @property
    def others(self) -> list[int]:
        """The parts of the other workers."""
        return [part for number, part in enumerate(self._parts) if number != self._number]

    def release(self, amount: int) -> None:
        """Take from the own part what was added.

        Other workers may go on meanwhile: a sum that falls breaks no limit.
        """
        with self._changing:
            self.own -= amount

    def add_within(self, amount: int, limit: int, *, alone: bool = False) -> bool:
        """Add to the own part if the sum stays within ``limit``, and say so.

        With ``alone`` an amount above the limit is added to a sum of 0.
        """
        with self._lock:
            total = self.total
            fits = total + amount <= limit or (alone and not total)
            if fits:
                with self._changing:
                    self.own += amount
        return fits


@dataclass(frozen=True)
class WorkerGroup:
    """``count`` workers, of which this is ``number``, from 0, and their private folder.

    A process that dies cannot hold what it has counted: `forget` sets it to 0.
    """

    folder: Path
    count: int
    number: int = 0
    parent: int = 0  # process id of the supervisor

    def __reduce__(self) -> tuple[type[Self], tuple[Path, int, int, int]]:
        """Another process maps the numbers anew."""
        return type(self), (self.folder, self.count, self.number, self.parent)

    def create(self) -> None:
        """Fill the folder; only the supervisor does it, before it starts a worker."""
        numbers = len(NUMBERS) * self.count + len(TOTALS)
        # All bytes of what is mapped are written: once the disk is full, a file with holes would
        # kill who writes there.
        (self.folder / _FILE).write_bytes(bytes(_BYTES * numbers))
        (self.folder / METRICS).mkdir()
        for number in range(self.count):
            for kind in METRIC_KINDS:
                self._metrics(kind, number).write_bytes(bytes(METRIC_BYTES))

    def tally(self, name: str) -> Tally:
        """A number that all workers add up."""
        return Tally(self._column(name), self.number, self.lock(name))

    def lock(self, name: str) -> _ProcessLock:
        """A lock of this name between all workers."""
        return _ProcessLock(self.folder / f"{name}.lock")

    def get(self, name: str) -> int:
        """A number of this worker, or one of `TOTALS`."""
        return self._column(name)[0 if name in TOTALS else self.number]

    def set(self, name: str, value: int) -> None:
        """Change a number of this worker, or one of `TOTALS`."""
        self._column(name)[0 if name in TOTALS else self.number] = value

    def column(self, name: str) -> list[int]:
        """A number of all workers."""
        return list(self._column(name))

    def forget(self) -> None:
        """Set all numbers of this worker to 0: it died. What it has counted in metrics stays."""
        for name in NUMBERS:
            self.set(name, 0)
        for kind in METRIC_KINDS:
            if kind.startswith("gauge_live"):
                with (
                    suppress(OSError),  # somebody has deleted the folder
                    self._metrics(kind, self.number).open("r+b") as file,
                ):
                    file.write(bytes(METRIC_BYTES))

    def _metrics(self, kind: str, number: int) -> Path:
        """The file of prometheus_client in which a worker counts the metrics of a kind."""
        return self.folder / METRICS / f"{kind}_{number}.db"

    def beat(self) -> None:
        """Say that the event loop of this worker runs."""
        self.set("beat", int(time.monotonic()))

    @cached_property
    def _numbers(self) -> memoryview:
        with (self.folder / _FILE).open("r+b") as file:
            return memoryview(mmap.mmap(file.fileno(), 0)).cast("q")

    def _column(self, name: str) -> memoryview:
        if name in TOTALS:
            start = len(NUMBERS) * self.count + TOTALS.index(name)
            return self._numbers[start : start + 1]
        start = NUMBERS.index(name) * self.count
        return self._numbers[start : start + self.count]


_GROUPS: Final = (  # of a container: limit, use and cache, in the two versions of control groups
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (
        Path("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
_MACHINE: Final = Path("/proc/meminfo")


def memory_bytes() -> int:
    """The memory of this machine, or of its container if that has less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder, limit, _, _ in _GROUPS:
        with suppress(OSError, ValueError):  # there is no such file, or the limit is "max"
            total = min(total, int((folder / limit).read_text()))
    return total


def free_bytes() -> int:
    """What other programs leave of :func:`memory_bytes`; files that are only cached are free."""
    free = memory_bytes()
    with suppress(OSError, KeyError, ValueError):  # no such file on this system
        free = min(free, 1024 * _counts(_MACHINE)["MemAvailable:"])
    for folder, limit, use, cache in _GROUPS:
        with suppress(OSError, KeyError, ValueError):
            cached = _counts(folder / "memory.stat")[cache]
            used = int((folder / use).read_text()) - cached
            free = min(free, int((folder / limit).read_text()) - used)
    return max(0, free)


def _counts(path: Path) -> dict[str, int]:
    """The numbers of a file that has a name and a number in each line."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines}


def demand_memory(workers: int, process: int) -> None:
    """Raise `UsageError` if ``workers`` of the size of a ready one cannot fit; its id is given."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:  # no such file on this system, or the process has just ended
        return
    size, total = pages * os.sysconf("SC_PAGE_SIZE"), memory_bytes()
    if workers * size > total:
        raise UsageError(
            f"--workers {workers}: each takes {size // 2**20} MiB, and there are "
            f"{total // 2**20} MiB; {max(1, total // size)} fit, without room for uploads"
        )
