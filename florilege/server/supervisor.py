"""Counts, starts, watches, replaces and stops workers; based on uvicorn's supervisor.

How many there are is what a machine, or the limits of a container, can carry. What is different
from uvicorn's, and why, is in `docs/decisions/workers.md`.
"""

import fcntl
import os
import pickle
import resource
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import uvicorn
from uvicorn.supervisors.multiprocess import SIGNALS as SIGNALS
from uvicorn.supervisors.multiprocess import Multiprocess, Process

from florilege.cores import cores
from florilege.errors import FlorilegeError, UsageError
from florilege.models.bundle import MODEL
from florilege.processes import WorkerGroup, demand_memory, free_bytes, memory_bytes
from florilege.processes.shared_state import TimesInFolder
from florilege.server.process import Dispatcher, address_of, log, terminal_watch
from florilege.server.settings import MEBIBYTE, Settings

_CORES_A_WORKER: Final = 2
"""A process holds the interpreter's lock for about a fifth of the processor time of a photo, so a
second core for each hides it; more processes cost memory and gain nothing (`docs/scaling.md`)."""
_BASE_BYTES: Final = 200 * MEBIBYTE  # of a process, without its network
NETWORKS: Final = 2  # its size in memory, as a multiple of its file
_BYTES_A_PIXEL: Final = 16  # while a picture is decoded

LOOK_S: Final = 0.05  # how often it looks while it waits for workers
HUNG_S: Final = 60
"""How long an event loop may stand still. Loading a large network holds the interpreter's lock for
seconds, at the start and at each reload: a worker that is only slow must not be killed."""
_LATE_S: Final = 2.0  # the same, for a new connection that another worker can take
LONGEST_PAUSE_S: Final = 30.0  # between two starts of a worker that cannot start
_FORGET_EVERY_S: Final = 60.0


def worker_count(settings: Settings) -> int:
    """The workers that the settings ask for; of ``auto`` what cores and free memory carry.

    Raises `UsageError` for more than memory carries by the table in `docs/deploy.md`.
    """
    network = 0
    with suppress(OSError):  # whoever opens the bundle says what is wrong
        network = (settings.bundle / MODEL).stat().st_size
    uploads = settings.max_held_bytes + _BYTES_A_PIXEL * settings.max_decoding_pixels
    memory, size = memory_bytes(), _BASE_BYTES + NETWORKS * network
    fitting = max(1, (memory - uploads) // size)
    if settings.workers == "auto":
        fitting = (free_bytes() - uploads) // size
        return max(1, min(cores() // _CORES_A_WORKER, fitting))
    if settings.workers > fitting:
        raise UsageError(
            f"--workers {settings.workers}: each may take {size // MEBIBYTE} MiB, uploads and "
            f"decoding {uploads // MEBIBYTE} MiB, and there are {memory // MEBIBYTE} MiB: use "
            f"{fitting}, or lower --max-decoding-pixels"
        )
    return settings.workers


class _Worker(Process):
    """A process of the group, and the channel on which it gets its connections."""

    def __init__(self, config: uvicorn.Config, settings: Settings, group: WorkerGroup) -> None:
        self.settings, self.group = settings, group
        self.channel, self._end = socket.socketpair()
        self.channel.setblocking(False)
        self.connections_given = 0
        self.failures = 0  # of starts, one after the other
        self.retry_at = 0.0
        super().__init__(config, [])

    def __getstate__(self) -> dict[str, Any]:
        """What the new process gets: with our end of the channel it would never see it close."""
        names = ("settings", "group", "_end", "child_conn")
        return {name: vars(self)[name] for name in names}

    def start(self) -> None:
        super().start()
        self._end.close()

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        from florilege.server.worker import run_worker  # the supervisor needs none of it

        try:
            run_worker(self.settings, self.group, self._end)
        except FlorilegeError as error:  # the supervisor says it, once
            self.child_conn.send_bytes(pickle.dumps(error))
            raise SystemExit(error.exit_code) from None

    @property
    def ready(self) -> bool:
        """Whether it answers."""
        return bool(self.group.get("ready"))

    @property
    def is_hung(self) -> bool:
        """Whether its event loop has not run for long. While it loads there is none."""
        return self._stands_still(HUNG_S)

    @property
    def is_late(self) -> bool:
        """Whether its event loop has not run for seconds: others take new connections."""
        return self._stands_still(_LATE_S)

    def _stands_still(self, seconds: float) -> bool:
        beat = self.group.get("beat")
        return beat > 0 and time.monotonic() - beat > seconds

    def connections(self) -> int:
        """How many connections it has open."""
        return self.connections_given - self.group.get("connections_closed")

    def failure(self) -> FlorilegeError:
        """Why it ended."""
        with suppress(OSError, EOFError, pickle.UnpicklingError):
            # Unpickled without harm: what comes is of our own child, and nothing of a request is in
            # it.
            if self.parent_conn.poll():
                error = pickle.loads(self.parent_conn.recv_bytes())
                if isinstance(error, FlorilegeError):
                    return error
        code = self.exitcode or 0
        reason = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
        return FlorilegeError(f"worker {self.group.number + 1} {reason}; its log may say why")

    def send(self, number: int) -> None:
        """Send a signal."""
        if self.process.is_alive() and self.pid is not None:
            os.kill(self.pid, number)

    def bury(self) -> None:
        """End it, and what it has counted."""
        self.kill()
        self.join()
        self.channel.close()
        self.group.forget()
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        self.group.set("dead_cpu_ms", round(1000 * (usage.ru_utime + usage.ru_stime)))


class _Supervisor(Multiprocess):
    """Runs until a signal, or until the first workers cannot start: then ``failure`` says why."""

    # A worker more or less would change the limits that all of them share.
    handle_ttin = handle_ttou = None  # type: ignore[assignment]

    def __init__(self, settings: Settings, listener: socket.socket, group: WorkerGroup) -> None:
        super().__init__(uvicorn.Config("", workers=group.count, log_config=None), [])
        self.settings, self.group = settings, group
        self.processes: list[_Worker] = []  # type: ignore[assignment]
        self.failure: BaseException | None = None
        self._address = address_of(listener)
        self._dispatcher = Dispatcher(listener, self.processes)
        self._rates = [TimesInFolder(group, what) for what in ("key", "client")]
        self._forget_at = 0.0
        self._agreed_at = time.monotonic()  # when all had the same bundle
        self._last_signal = signal.SIGTERM
        self.terminal_closed = terminal_watch()

    def run(self) -> None:
        """Run until a signal. If this fails, stop the workers: the process would wait for them."""
        try:
            super().run()
        except BaseException:
            self.terminate_all()
            self.join_all()
            raise

    def init_processes(self) -> None:
        """Start one worker and, once it is ready, all others: what fails, fails once."""
        try:
            for number in range(self.group.count):
                self._start(number)
                if number == 0 and self._wait(lambda: self.processes[0].ready):
                    demand_memory(self.group.count, self.processes[0].pid or 0)
                if self.should_exit.is_set():
                    return
            if self._wait(lambda: all(worker.ready for worker in self.processes)):
                self._dispatcher.start()
                log.info("ready: %s with %d workers", self._address, self.group.count)
        except FlorilegeError as error:
            self.failure = error
            self.should_exit.set()

    def _start(self, number: int, failures: int = 0) -> None:
        # The numbers of one that is replaced are still mapped if somebody has deleted their file.
        earlier = self.processes[number : number + 1]
        group = earlier[0].group if earlier else replace(self.group, number=number)
        worker = _Worker(self.config, self.settings, group)
        worker.failures = failures
        self.processes[number : number + 1] = [worker]
        worker.start()

    def _wait(self, condition: Callable[[], bool]) -> bool:
        """Wait for a condition; False if a signal comes first. Raises why a worker ended."""
        while not condition():
            self.handle_signals()
            if self.should_exit.wait(LOOK_S):
                return False
            for worker in self.processes:
                if not worker.process.is_alive():
                    raise worker.failure()
        return True

    def keep_subprocess_alive(self) -> None:
        """Replace workers that died or hang; uvicorn calls this twice a second."""
        for number, worker in enumerate(self.processes):
            if worker.process.is_alive() and not worker.is_hung:
                if worker.failures and worker.ready:
                    self._welcome(worker)
            elif not worker.retry_at:
                self._bury(worker)
            elif time.monotonic() >= worker.retry_at:
                self._start(number, worker.failures)
        self._agree()
        if time.monotonic() >= self._forget_at:
            self._forget_at = time.monotonic() + _FORGET_EVERY_S
            for times in self._rates:
                times.forget()

    def _bury(self, worker: _Worker) -> None:
        reason = "hangs" if worker.process.is_alive() else str(worker.failure())
        # The first start is tried again at once, the next ones ever later: a bundle that is being
        # copied is whole soon, and a damaged one must not keep a core busy.
        pause = min(LONGEST_PAUSE_S, 2.0**worker.failures - 1)
        log.error(
            "worker %d: %s; starting it again in %g s", worker.group.number + 1, reason, pause
        )
        worker.bury()
        worker.failures += 1
        worker.retry_at = time.monotonic() + pause

    def _welcome(self, worker: _Worker) -> None:
        worker.failures = 0
        log.info("worker %d answers again", worker.group.number + 1)
        # It may have another bundle than the others: to be compared at once.
        self._agreed_at = float("-inf")

    def _agree(self) -> None:
        """Let all load again if they have long had different bundles.

        One that is replaced while they load is read by some of them alone.
        """
        now = time.monotonic()
        if len({worker.group.get("model") for worker in self.processes if worker.ready}) < 2:
            self._agreed_at = now
        elif now - self._agreed_at > LONGEST_PAUSE_S:
            self._agreed_at = now
            log.info("the workers have different bundles: they load it again")
            self.handle_hup()

    def handle_hup(self) -> None:
        """Let each worker load bundle, lists and keys anew; it keeps the old if they are bad."""
        if self.terminal_closed():
            self.handle_int()
            return
        for worker in self.processes:
            if worker.ready:
                worker.send(signal.SIGHUP)

    def handle_int(self) -> None:
        """Stop without notice, as Ctrl-C does it without workers."""
        self._last_signal, self.failure = signal.SIGINT, KeyboardInterrupt()
        self.should_exit.set()

    def terminate_all(self) -> None:
        """Tell all workers to stop."""
        for worker in self.processes:
            worker.send(self._last_signal)

    def join_all(self) -> None:
        """Close the port after the notice, or at a second signal, and wait for the last answers."""
        notice_s = self.settings.drain_notice_s if self._last_signal == signal.SIGTERM else 0.0
        closes_at = time.monotonic() + notice_s
        while any(worker.process.is_alive() for worker in self.processes):
            # uvicorn no longer handles signals here: a second one has to be looked for.
            again = {signal.SIGINT, signal.SIGTERM} & {*self.signal_queue}
            self.signal_queue.clear()
            if again:
                self.terminate_all()
                closes_at = 0.0
            if time.monotonic() >= closes_at:
                self._dispatcher.close()
            time.sleep(LOOK_S)
        self._dispatcher.close()
        for worker in self.processes:
            worker.join()
        log.info("stopped")


@contextmanager
def _left_alone(folder: str) -> Iterator[None]:
    """Lock a folder: what cleans up /tmp after some days, as systemd-tmpfiles, then passes it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def supervise(settings: Settings, workers: int, listener: socket.socket) -> None:
    """Run ``workers`` workers behind a port until a signal.

    Raises the error of the first worker if it cannot start, and `KeyboardInterrupt` after Ctrl-C.
    """
    with (
        tempfile.TemporaryDirectory(prefix="florilege-", ignore_cleanup_errors=True) as folder,
        _left_alone(folder),
    ):
        group = WorkerGroup(Path(folder), workers, parent=os.getpid())
        group.create()
        supervisor = _Supervisor(settings, listener, group)
        supervisor.run()
    if supervisor.failure is not None:
        raise supervisor.failure
