"""Run the application until it has to stop, and stop it without losing an answer."""

import asyncio
import logging
import math
import signal
import socket
from types import FrameType

import uvicorn
from fastapi import FastAPI

from florilege.processes.listener import address_of
from florilege.server.engine import Engine
from florilege.server.http.connection import Connection

log = logging.getLogger("florilege.server")


class GracefulServer(uvicorn.Server):
    """Stops in three steps: report not ready, close the port, finish the last answers.

    On SIGTERM `/readyz` returns 503 while requests are still answered, so that load balancers can
    avoid this server. After `drain_notice_s` the port closes; requests in progress have `drain_s`.
    Ctrl-C skips the first step.
    """

    def __init__(self, config: uvicorn.Config, engine: Engine) -> None:
        super().__init__(config)
        self.engine = engine
        self._leaving: asyncio.Task[None] | None = None
        self._leave_requested = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal; a second one ends the notice early."""
        if sig == signal.SIGTERM and not self._leave_requested:
            self._leave_requested = True
            self.engine.leave()  # the main loop sees it within a tenth of a second
        else:
            self.engine.drain()
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second by the main loop; True ends it."""
        if self._leave_requested and self._leaving is None:
            log.info("stopping: not ready, the port closes soon")
            self._leaving = asyncio.create_task(self._leave())
        return await super().on_tick(counter)

    async def _leave(self) -> None:
        await asyncio.sleep(self.engine.settings.drain_notice_s)
        self.engine.drain()
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        log.info("stopped")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or []:
            log.info("ready: %s with %s", address_of(listener), self.description)

    @property
    def description(self) -> str:
        """What answers, in words for the log."""
        engine, model = self.engine, self.engine.pipeline.model
        processor = engine.pipeline.session.provider.removesuffix("ExecutionProvider")
        return (
            f"bundle {model.name}, version {model.version}, on {processor}, "
            f"{engine.threads} threads, queue of {engine.queue_limit} photos"
        )


def make_server(app: FastAPI) -> GracefulServer:
    """A server for an application that `create_app` built; run it with `run` or `serve`."""
    return GracefulServer(server_config(app), app.state.engine)


def server_config(app: FastAPI) -> uvicorn.Config:
    """The settings of uvicorn for an application."""
    engine: Engine = app.state.engine
    return uvicorn.Config(
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
