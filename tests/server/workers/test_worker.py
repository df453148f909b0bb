"""How a worker takes its connections."""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from florilege.errors import FlorilegeError
from florilege.processes import WorkerGroup
from florilege.server.settings import Settings
from florilege.server.worker import _WorkerServer, run_worker


def test_without_the_folder_of_the_group_a_worker_says_what_to_do(tmp_path: Path) -> None:
    group, channel = WorkerGroup(tmp_path / "gone", 2), socket.socket()
    with channel, pytest.raises(FlorilegeError, match=r"deleted .*gone.* restart the server"):
        run_worker(Settings(bundle=tmp_path), group, channel)


def test_a_connection_that_is_lost_on_the_way_is_not_counted_as_open(tmp_path: Path) -> None:
    """The kernel drops it where the worker has too many files open."""
    group = WorkerGroup(tmp_path, 1)
    group.create()
    supervisor, channel = socket.socketpair()
    with supervisor, channel:
        channel.setblocking(False)
        server: Any = object.__new__(_WorkerServer)
        server._channel, server._group, server._taken, server._opening = channel, group, 0, set()
        server.server_state = SimpleNamespace(connections=set())
        supervisor.send(b"+")
        server._receive()
        supervisor.send(b"+")
        server._receive()
    assert group.get("connections_closed") == 2
