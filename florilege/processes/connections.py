"""The port of a server: who listens on it, and which of several workers gets a connection.

Each goes to the worker that has the fewest; one that stands still gets none while another runs.
Where workers accept for themselves, those that happen to be awake take most connections, and one
that is busy for long keeps what waits for it: a photo is refused while other workers are idle. Here
only the supervisor listens. If it dies, the port is free at once.
"""

import logging
import socket
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Final, Protocol

from florilege.errors import UsageError

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
    return UsageError(
        f"cannot listen on {host} port {port}: {error}; choose another with --host or --port"
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
    """Runs in a thread until it is closed; ``targets`` may change meanwhile."""

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
        for target in sorted((target for target in self.targets if target.ready), key=_load):
            # A worker that has just died, or takes nothing more, is passed over.
            with suppress(OSError):
                socket.send_fds(target.channel, [b"+"], [connection.fileno()])
                target.connections_given += 1
                return


def _load(target: _Target) -> tuple[bool, int, int]:
    return target.is_late, target.connections(), target.connections_given
