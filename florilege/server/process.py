"""The process of a server: its port, its log, what malloc keeps, how long its threads run.

The log and malloc are those of the whole process, so only a program should set them up, not a
library. Lines about a request contain its id, route, method, status and time, but no address, file
name, query or key.
"""

import ctypes
import json
import logging
import os
import platform
import resource
import select
import signal
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, Protocol

from florilege.errors import UsageError
from florilege.server.settings import LogFormat, Settings

log = logging.getLogger("florilege.server")

_BACKLOG: Final = 2048
LOOK_S: Final = 0.2  # how often the thread looks whether it has to stop


def bind(host: str, port: int) -> socket.socket:
    """The socket that a server listens on, bound before any slow work.

    Raises `UsageError` if the port is in use or the host is not here.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, not 0: where it is 0, asyncio leaves Nagle's algorithm on, and each answer on a
    # connection that is kept waits for the client's acknowledgement, 40 ms.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if not host:
            raise OSError("no address is given; 0.0.0.0 means all")
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise _unusable(host, port, error) from error
    return listener


def listen(listener: socket.socket) -> None:
    """Open a port that is bound.

    Raises `UsageError` if another server, bound to it at the same time, was first: Linux lets
    several have a port of which none listens yet.
    """
    host, port = listener.getsockname()[:2]
    try:
        listener.listen(_BACKLOG)
    except OSError as error:
        raise _unusable(host, port, error) from error


def _unusable(host: str, port: int, error: Exception) -> UsageError:
    reason = str(error).rstrip(".")
    return UsageError(
        f"cannot listen on {host} port {port}: {reason}; choose another with --host or --port"
    )


def address_of(listener: socket.socket) -> str:
    """Its URL."""
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"


class _Target(Protocol):
    """A worker that takes connections."""

    channel: socket.socket  # does not block
    connections_given: int

    @property
    def ready(self) -> bool:
        """Whether it answers; what it got earlier would wait for that."""

    @property
    def is_late(self) -> bool:
        """Whether it has not looked at its connections for seconds."""

    def connections(self) -> int:
        """How many it has open."""


class Dispatcher:
    """Hands out the connections of a port to workers; ``targets`` may change meanwhile.

    Each connection goes to the worker that has the fewest; one that stands still gets none while
    another runs. Where workers accept for themselves, those that happen to be awake take most
    connections, and one that is busy for long keeps what waits for it: a photo is refused while
    other workers are idle. Here only the supervisor listens. If it dies, the port is free at once.
    """

    def __init__(self, listener: socket.socket, targets: Sequence[_Target]) -> None:
        self.targets = targets
        self._listener, self._closing = listener, threading.Event()
        self._thread = threading.Thread(target=self._run, name="dispatcher", daemon=True)

    def start(self) -> None:
        """Listen, and hand out connections from now on. Raises what `listen` raises."""
        listen(self._listener)
        self._listener.settimeout(LOOK_S)
        self._thread.start()

    def close(self) -> None:
        """Close the port; connections in its queue are refused."""
        self._closing.set()
        if self._thread.ident is not None:
            self._thread.join()
        self._listener.close()

    def _run(self) -> None:
        while not self._closing.is_set():
            try:
                connection, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError as error:  # such as too many open files: there may be room soon
                log.error("a connection cannot be accepted: %s", error)
                time.sleep(LOOK_S)
                continue
            with connection:
                self._give(connection)

    def _give(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while not self._closing.is_set():
            full = list[socket.socket]()
            for target in sorted((target for target in self.targets if target.ready), key=_load):
                with suppress(OSError):  # a worker that has just died is passed over
                    try:
                        socket.send_fds(target.channel, [b"+"], [connection.fileno()])
                    except BlockingIOError:  # some 280 came before it looked: they wait there
                        full.append(target.channel)
                    else:
                        target.connections_given += 1
                        return
            if not full:
                return
            select.select([], full, [], LOOK_S)  # the others wait in the queue of the port


def _load(target: _Target) -> tuple[bool, int, int]:
    # The last number lets equal workers take turns; by their order the first would have most.
    return target.is_late, target.connections(), target.connections_given


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 4 * 2**20
"""Blocks of every large picture are larger; those of a phone's JPEG are smaller."""
MOST_FILES = 8192  # a connection without a request takes 4 KB of memory
KEPT_BYTES = 16 * 2**20  # free, at the end of the heap of each thread; a photo takes about half
# The event loop asks for shorter turns than the threads of photos, so that it interrupts them.
# Longer ones of the loop cost photos on quiet cores (docs/decisions/request-path.md).
LOOP_TURN_MS, PHOTO_TURN_MS = 10, 40
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}  # system call; most C libraries have no function
_KEEP_POLICY = 0x08  # that of `chrt`, for example


class _LineFormatter(logging.Formatter):
    """``TIME LEVEL message name=value ...``, or one JSON object; the names are ``fields``.

    The lines of one of several workers name it.
    """

    def __init__(self, form: LogFormat, worker: int | None = None) -> None:
        super().__init__()
        self._form, self._worker = form, {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record; as text, a traceback adds lines."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, message = record.levelname, record.getMessage()
        fields: dict[str, object] = {**self._worker, **getattr(record, "fields", {})}
        trace = self.formatException(record.exc_info) if record.exc_info else None
        if self._form == "json":
            entry = {"time": time, "level": level.lower(), "message": message, **fields}
            return json.dumps(entry | ({"exception": trace} if trace else {}), ensure_ascii=False)
        words = [time, level, message, *(f"{name}={value}" for name, value in fields.items())]
        return " ".join(words) + (f"\n{trace}" if trace else "")


def log_to_stderr(settings: Settings, worker: int | None = None) -> None:
    """Log to stderr as the settings say; of uvicorn, only errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter(settings.log_format, worker))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    # They warn of every damaged request, which metrics count: strangers could fill the log.
    for library in ("uvicorn", "python_multipart"):
        logging.getLogger(library).setLevel(logging.ERROR)


def tune_malloc() -> None:
    """Return freed blocks of 4 MiB and more to the system, and keep smaller ones.

    Whenever glibc frees a block that it returns to the system, it raises the size from which it
    does so, up to 32 MiB. After a few large pictures every thread keeps its peak memory: four
    threads that decoded one 50-megapixel PNG each, one after the other, held 1.26 GB, not 0.49.
    An explicit size stays fixed. But then glibc also returns the end of a heap as soon as 128 KiB
    of it are free, and each photo gets its memory page by page: 575 pages for a photo of 250 KB,
    2,200 for one of 12 megapixels, 3 and 5 % of its total time.
    """
    with suppress(OSError, AttributeError):  # only glibc has these settings
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def request_long_turns(milliseconds: int) -> None:
    """Ask Linux to let this thread run so long before others have their turn, from Linux 6.12 on.

    Threads that this one starts ask for the same; the default is at most 3 ms. Beside other
    programs a turn often ends while its thread holds the interpreter's lock, and then all threads
    of the server wait until it has another one. A thread that asks for less still interrupts.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if sys.platform != "linux" or number is None:
        return
    # The call sets the priority too, of this thread: to what it is already.
    nice = os.getpriority(os.PRIO_PROCESS, 0)
    # `struct sched_attr`, whose first version has 48 bytes (sched_setattr(2)): size, policy, flags,
    # nice, priority, runtime, deadline, period. Runtime is the turn, from Linux 6.12 on.
    attributes = struct.pack("=IIQiIQQQ", 48, 0, _KEEP_POLICY, nice, 0, milliseconds * 10**6, 0, 0)
    # It says nothing where it fails: older systems and some containers refuse, and that is all.
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)


def allow_connections() -> None:
    """Let this process and its workers open as many files as connections may need.

    Systems allow 1,024 unless a program asks for more: that many clients which send nothing would
    keep all others out.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def terminal_watch() -> Callable[[], bool]:
    """Tells whether the terminal in which this process was started has been closed since.

    Its end comes as SIGHUP, which would otherwise mean a reload: a server whose window is closed
    would run on unseen and keep its port.
    """
    started_there = sys.stderr.isatty()
    return lambda: started_there and not sys.stderr.isatty()


def end_with_terminal() -> None:
    """Until a server is ready, SIGHUP stops it if its terminal was closed, and is else ignored."""
    closed = terminal_watch()
    signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGINT) if closed() else 0)


def ignore_hangups() -> None:
    """Ignore SIGHUP: a worker cannot reload before it is ready, nor a server while it stops."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
