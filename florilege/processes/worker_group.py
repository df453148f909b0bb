"""What one worker knows of the others, and the supervisor of all: numbers in shared memory."""

import mmap
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Final

from florilege.processes.tallies import ProcessLock, Tally

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


@dataclass(frozen=True)
class WorkerGroup:
    """``count`` workers, of which this is ``number``, from 0, and their private folder.

    A process that dies cannot hold what it has counted: `forget` sets it to 0.
    """

    folder: Path
    count: int
    number: int = 0
    parent: int = 0  # process id of the supervisor

    def create(self) -> None:
        """Fill the folder; only the supervisor does it, before it starts a worker."""
        numbers = len(NUMBERS) * self.count + len(TOTALS)
        # All its bytes are written: on a full disk a file with holes would kill who writes there.
        (self.folder / _FILE).write_bytes(bytes(_BYTES * numbers))
        (self.folder / METRICS).mkdir()

    def tally(self, name: str) -> Tally:
        """A number that all workers add up."""
        return Tally(self._column(name), self.number, self.lock(name))

    def lock(self, name: str) -> ProcessLock:
        """A lock of this name between all workers."""
        return ProcessLock(self.folder / f"{name}.lock")

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
        """Set all numbers of this worker to 0: it died."""
        for name in NUMBERS:
            self.set(name, 0)

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
