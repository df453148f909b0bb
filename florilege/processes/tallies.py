"""A number that the workers of a server add up."""

import fcntl
import os
import threading
import weakref
from array import array
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import TypeAlias


class ProcessLock:
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


Lock = AbstractContextManager[bool | None] | ProcessLock
Parts: TypeAlias = "array[int] | memoryview[int]"


class Tally:
    """A sum of parts, one for each worker; without other workers a plain number.

    Each worker changes its own part. When one dies, the supervisor sets its part to 0.

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

    def add(self, amount: int) -> None:
        """Add to the own part."""
        with self._lock:
            self.own += amount

    def add_within(self, amount: int, limit: int, *, alone: bool = False) -> bool:
        """Add to the own part if the sum stays within ``limit``, and say so.

        With ``alone`` an amount above the limit is added to a sum of 0.
        """
        with self._lock:
            total = self.total
            fits = total + amount <= limit or (alone and not total)
            if fits:
                self.own += amount
        return fits
