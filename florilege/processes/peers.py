"""Workers of one server ask each other for what only one of them remembers."""

import threading
from collections.abc import Callable
from contextlib import suppress
from multiprocessing import AuthenticationError, current_process
from multiprocessing.connection import Client, Listener
from pathlib import Path
from typing import Final, Generic, TypeVar

from florilege.processes.worker_group import WorkerGroup

_ANSWER_S: Final = 1.0  # that another worker may take; it only looks into a dictionary
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
        self._closing = False
        own.unlink(missing_ok=True)  # of a worker that died
        self._listener = Listener(str(own), "AF_UNIX", backlog=64, authkey=self._key)
        threading.Thread(target=self._serve, name="peers", daemon=True).start()

    def ask(self, question: Q) -> A | None:
        """The first answer of another worker; None if none has one."""
        for number in range(self._group.count):
            if number == self._group.number:
                continue
            # One that has died or does not answer in time knows nothing.
            with suppress(OSError, EOFError, AuthenticationError):
                with Client(str(self._address(number)), "AF_UNIX", authkey=self._key) as connection:
                    connection.send(question)
                    answer: A | None = connection.recv() if connection.poll(_ANSWER_S) else None
                if answer is not None:
                    return answer
        return None

    def close(self) -> None:
        """Answer no more questions."""
        self._closing = True
        with suppress(FileNotFoundError):  # the folder is gone already
            self._listener.close()

    def _serve(self) -> None:
        while not self._closing:
            try:
                with self._listener.accept() as connection:
                    connection.send(self._find(connection.recv()))
            except (OSError, EOFError, AuthenticationError):
                continue  # who asked has left

    def _address(self, number: int) -> Path:
        return self._group.folder / f"worker-{number}.sock"
