"""How a worker takes its connections."""

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from florilege.processes.worker_group import WorkerGroup
from florilege.server.worker import _WorkerServer


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
