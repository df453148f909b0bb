"""Running the application until it has to stop, and stopping without losing an answer."""

import asyncio
import logging
import math
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from florilege.errors import UsageError
from florilege.server.engine import Engine
from florilege.server.http.connection import Connection

log = logging.getLogger("florilege.server")


class Server(uvicorn.Server):
    """Stops in three steps: not ready any more, no new connections, last answers.

    On SIGTERM `/readyz` turns 503 while requests are still answered, so that a balancer can look
    elsewhere; after `drain_notice_s` the port closes; what is in flight then has `drain_s`.
    Ctrl-C skips the first step.
    """

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self.engine = engine
        self._leaving: asyncio.Task[None] | None = None
        self._leave_requested = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """React to a signal; a second one cuts the notice short."""
        if sig == signal.SIGTERM and not self._leave_requested:
            self._leave_requested = True
            self.engine.leave()  # the main loop sees it within a tenth of a second
        else:
            self.engine.drain()
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second by the main loop; True ends it."""
        if self._leave_requested and self._leaving is None:
            log.info("stopping: not ready any more, the port closes soon")
            self._leaving = asyncio.create_task(self._leave())
        return await super().on_tick(counter)

    async def _leave(self) -> None:
        await asyncio.sleep(self.engine.settings.drain_notice_s)
        self.engine.drain()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, wait for the last answers, and say so."""
        await super().shutdown(sockets)
        log.info("stopped")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start listening and say so."""
        await super().startup(sockets)
        for listening in sockets or []:
            host, port = listening.getsockname()[:2]
            address = f"[{host}]" if ":" in host else host
            model = self.engine.pipeline.model
            log.info(
                "ready: http://%s:%d/ answers for %s %s on %s, %d threads, %d photos may wait",
                *(address, port, model.name, model.version),
                *(self.engine.pipeline.session.provider, self.engine.threads),
                self.engine.queue_limit,
            )


def bind(host: str, port: int) -> socket.socket:
    """Take the port before anything slow happens.

    Raises:
        UsageError: It is in use, or the host is not one of this machine's.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if not host:
            raise OSError("no address is named; 0.0.0.0 means all")
        listening.bind((host, port))
    except (OSError, OverflowError) as error:
        listening.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {error}; choose another with --host or --port"
        ) from error
    return listening


def make_server(app: FastAPI) -> Server:
    """A server for an application that `create_app` built; run it with `run` or `serve`."""
    engine: Engine = app.state.engine
    config = uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        access_log=False,
        log_config=None,
        lifespan="on",
        server_header=False,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=math.ceil(engine.settings.drain_s),
    )
    return Server(config, engine)
