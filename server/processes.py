"""Other processes that decode photos and run the network, so that they keep many cores busy.

All else stays in the one that starts them: HTTP, the queue, sets and answers, metrics, feedback,
keys. So nothing has to be added up or agreed on, and a process that ends, whatever ended it, takes
no request with it: another looks at its photos again.
"""

import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from time import monotonic
from typing import Final

from models.bundle import Bundle
from models.errors import FlorilegeError
from models.images import Header
from models.session import Outputs
from server.errors import Loading
from server.lines import Line, new_line

log = logging.getLogger("florilege.server")

ATTEMPTS: Final = 2
"""So many processes may end while they look at a photo; then it is given up."""
WAIT_S: Final = 5.0
"""How long a photo waits for a process where all have ended."""
STEADY_S: Final = 60.0
"""One that lived for so long is replaced at once; else the pauses before the next double."""
FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 30.0
STOP_S: Final = 10.0


@dataclass(frozen=True)
class Order:
    """What a process is told before it gets photos."""

    bundle: Bundle
    device: str


class Processes:
    """Looks at photos as `Session` does; any number of threads may call it at once.

    Args:
        order: The network, and where it runs.
        threads: Of each process: how many photos it looks at at once.

    Raises:
        FlorilegeError: As for `Session`, or a process could not be started.
    """

    def __init__(self, order: Order, threads: Sequence[int]) -> None:
        self.ended = 0  # by themselves, so far
        self._order = order
        self._free: queue.SimpleQueue[Line] = queue.SimpleQueue()
        self._working: set[_Process] = set()
        self._closing = threading.Event()
        self._lock = threading.Lock()  # none is admitted while all are being closed
        begun = list[_Process]()
        try:
            for each in threads:
                begun.append(_Process(each))
            for process in begun:
                process.tell(order)
            said = [process.wait_until_ready() for process in begun]
        except FlorilegeError:
            _end(begun)
            raise
        except (EOFError, OSError) as error:
            _end(begun)
            raise FlorilegeError(
                f"{len(threads)} processes for photos could not all be started, perhaps for want "
                "of memory: name fewer with --processes"
            ) from error
        self.provider, self.dimensions = said[0]
        self._keepers = [threading.Thread(target=self._keep, args=(each,)) for each in begun]
        for process, keeper in zip(begun, self._keepers, strict=True):
            self._admit(process)
            keeper.daemon = True
            keeper.start()

    @property
    def pids(self) -> list[int]:
        """Their numbers."""
        return [process.pid for process in self._working]

    @property
    def working(self) -> int:
        """How many there are at this moment."""
        return len(self._working)

    def look(
        self, photo: Header, *, max_pixels: int, features: bool = False
    ) -> tuple[Outputs, float]:
        """As `Session.look`, in a process that is free; if it ends meanwhile, in another.

        Raises:
            ImageError: The photo cannot be used.
            Loading: All have ended, and no other was ready in time.
            RuntimeError: A process made a mistake, or two ended over this photo.
        """
        ended = 0
        while ended < ATTEMPTS:
            line = self._next_line()
            try:
                line.send_photo(photo, max_pixels, features)
            except OSError:  # its process has ended before
                line.close()
                continue
            try:
                found: tuple[Outputs, float] | Exception = line.receive()
            except (EOFError, OSError):
                line.close()
                ended += 1
                continue
            line.give_back(photo)
            self._free.put(line)
            if isinstance(found, Exception):
                raise found
            return found
        raise RuntimeError(f"{ended} processes ended while they looked at one photo")

    def close(self) -> None:
        """End all processes; nobody may be looking any more."""
        with self._lock:
            self._closing.set()
        _end(list(self._working))
        for keeper in self._keepers:
            keeper.join()
        while not self._free.empty():
            self._free.get().close()  # of those that had ended before

    def _next_line(self) -> Line:
        try:
            return self._free.get(timeout=WAIT_S)
        except queue.Empty:
            raise Loading(
                "the processes for photos are being started again; try again shortly",
                retry_after=5,
            ) from None

    def _admit(self, process: "_Process") -> bool:
        """Let it have photos, unless all are being closed."""
        with self._lock:
            if self._closing.is_set():
                return False
            self._working.add(process)
        for line in process.lines:
            self._free.put(line)
        return True

    def _keep(self, process: "_Process") -> None:
        """Replace a process each time it ends, until all are closed."""
        pause = 0.0
        while True:
            how = process.wait()
            if self._closing.is_set():
                return
            self._working.discard(process)
            self.ended += 1
            log.error("process %d for photos %s; another follows", process.pid, how)
            pause = 0.0 if process.age() > STEADY_S else _longer(pause)
            while (found := self._another(len(process.lines), pause)) is None:
                if self._closing.is_set():
                    return
                pause = _longer(pause)
            process = found

    def _another(self, threads: int, pause: float) -> "_Process | None":
        """A process after a pause; None where all are being closed, or it could not begin."""
        if self._closing.wait(pause):
            return None
        try:
            process = _Process(threads)
        except OSError as error:
            log.error("no other process for photos can begin: %s", error)
            return None
        try:
            process.tell(self._order)
            process.wait_until_ready()
        except (FlorilegeError, EOFError, OSError) as error:
            log.error("no other process for photos can begin: %s", str(error) or "it ended")
        else:
            if self._admit(process):
                log.info("process %d for photos is ready", process.pid)
                return process
        _end([process])
        return None


class _Process:
    """One process, with a line to each of its threads."""

    def __init__(self, threads: int) -> None:
        self._born = monotonic()
        ends = [new_line() for _ in range(threads)]
        self.lines = [line for line, _ in ends]
        numbers = [(theirs.fileno(), line.file) for line, theirs in ends]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "server.worker", *(f"{s}:{f}" for s, f in numbers)],
                stdin=subprocess.DEVNULL,
                pass_fds=[number for pair in numbers for number in pair],
                process_group=0,  # Ctrl-C is for the one that listens
                env={**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))},
            )
        except OSError:
            self.hang_up()
            raise
        finally:
            for _, theirs in ends:
                theirs.close()
        self.pid = self._process.pid

    def tell(self, order: Order) -> None:
        """Say what to open.

        Raises:
            OSError: It ended.
        """
        self.lines[0].send(order)

    def wait_until_ready(self) -> tuple[str, int | None]:
        """The provider in use, and the length of the features, once it can look at photos.

        Raises:
            FlorilegeError: It cannot open what it was told to.
            EOFError, OSError: It ended.
        """
        said: tuple[str, int | None] | Exception = self.lines[0].receive()
        if isinstance(said, Exception):
            raise said
        return said

    def age(self) -> float:
        """Seconds since it was begun."""
        return monotonic() - self._born

    def wait(self) -> str:
        """How it ended, once it has."""
        code = self._process.wait()
        return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"

    def hang_up(self) -> None:
        """Close its lines, which ends it once it has answered."""
        for line in self.lines:
            line.close()

    def stop(self) -> None:
        """Wait until it has ended after `hang_up`; kill it where that takes too long."""
        try:
            self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _longer(pause: float) -> float:
    return min(max(2 * pause, FIRST_PAUSE_S), LONGEST_PAUSE_S)


def _end(processes: Collection[_Process]) -> None:
    for process in processes:
        process.hang_up()
    for process in processes:
        process.stop()
