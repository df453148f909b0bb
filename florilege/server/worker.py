"""One worker: a complete server, whose connections the supervisor accepts."""

import asyncio
import gc
import os
import shutil
import socket
from contextlib import suppress
from functools import partial

from fastapi import FastAPI

from florilege.cores import share_cores
from florilege.errors import FlorilegeError
from florilege.processes import WorkerGroup
from florilege.server.app import create_app
from florilege.server.http.connection import Connection
from florilege.server.process import (
    LOOP_TURN_MS,
    ignore_hangups,
    log_to_stderr,
    request_long_turns,
    tune_malloc,
)
from florilege.server.prometheus import count_together
from florilege.server.serve import GracefulServer, log
from florilege.server.settings import Settings


class _WorkerServer(GracefulServer):
    """Serves the connections that arrive on ``channel``, until that ends with the supervisor."""

    def __init__(self, app: FastAPI, channel: socket.socket, group: WorkerGroup) -> None:
        super().__init__(app)
        self._channel, self._group = channel, group
        self._taken, self.is_orphan = 0, False
        self._opening = set[asyncio.Task[object]]()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self._channel.setblocking(False)
        asyncio.get_running_loop().add_reader(self._channel, self._receive)
        self._group.beat()
        self._group.set("ready", 1)
        log.info("process %d answers with %s", os.getpid(), self.description)

    async def on_tick(self, counter: int) -> bool:
        self._group.beat()
        self._count_connections()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._group.set("ready", 0)
        asyncio.get_running_loop().remove_reader(self._channel)
        # Connections that are here already get their answer, or a refusal.
        self._receive()
        self._channel.close()
        if self._opening:
            await asyncio.wait(self._opening)
        await super().shutdown(sockets)

    def _receive(self) -> None:
        """Take the connections that have arrived."""
        with suppress(BlockingIOError):
            while True:
                try:
                    message, handles, _, _ = socket.recv_fds(self._channel, 1, 1)
                except ConnectionError:
                    message, handles = b"", []
                if not message:
                    self._end()
                    return
                # Also one that is lost because too many files are open: the supervisor has counted
                # it.
                self._taken += 1
                for handle in handles:
                    self._open(socket.socket(fileno=handle))
        self._count_connections()

    def _open(self, connection: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        connection.setblocking(False)
        protocol = partial(
            Connection,
            config=self.config,
            server_state=self.server_state,
            app_state=self.lifespan.state,
            _loop=loop,
        )
        task = asyncio.ensure_future(loop.connect_accepted_socket(protocol, connection))
        self._opening.add(task)
        task.add_done_callback(self._opening.discard)

    def _count_connections(self) -> None:
        current = len(self.server_state.connections) + len(self._opening)
        self._group.set("connections_closed", self._taken - current)

    def _end(self) -> None:
        """Stop without a supervisor: nobody would stop this worker, or give it connections."""
        if not self.should_exit:
            asyncio.get_running_loop().remove_reader(self._channel)
            log.error("the supervisor has ended: finishing the last answers")
            self.engine.drain()
            self.should_exit = self.is_orphan = True


def run_worker(settings: Settings, group: WorkerGroup, channel: socket.socket) -> None:
    """Open the bundle and answer until the supervisor ends or says so.

    Raises what `create_app` raises, and `FlorilegeError` if the folder of the group is gone.
    """
    if not group.folder.exists():
        raise FlorilegeError(
            f"somebody has deleted {group.folder}, which the workers share: restart the server, "
            "and set TMPDIR to a folder that nobody cleans up"
        )
    # A group of its own: Ctrl-C goes to the supervisor alone, which tells all workers in order.
    os.setpgrp()
    ignore_hangups()
    log_to_stderr(settings, worker=group.number + 1)
    tune_malloc()
    request_long_turns(LOOP_TURN_MS)
    share_cores(group.count)
    count_together(group)
    group.set("process", os.getpid())
    app = create_app(settings, group)
    gc.freeze()  # as in a server without workers
    server = _WorkerServer(app, channel, group)
    server.run(sockets=[])
    if server.is_orphan:  # the supervisor would have deleted it
        shutil.rmtree(group.folder, ignore_errors=True)
