"""Run the application, and stop it without losing an answer; its log, and what malloc keeps.

The log and malloc belong to the whole process, so only a program should set them, not a library.
"""

import asyncio
import ctypes
import json
import logging
import math
import signal
import socket
import sys
from contextlib import suppress
from datetime import UTC, datetime
from types import FrameType

import uvicorn
from fastapi import FastAPI

from florilege.errors import UsageError
from florilege.server.engine import Engine
from florilege.server.http.connection import Connection
from florilege.server.settings import LogFormat, LogLevel

log = logging.getLogger("florilege.server")

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 4 * 2**20
"""Blocks of every large picture are larger; those of a phone's JPEG are smaller."""
KEPT_BYTES = 16 * 2**20  # free, at the end of the heap of each thread; a photo takes about half


class _Server(uvicorn.Server):
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
            host, port = listener.getsockname()[:2]
            address = f"[{host}]" if ":" in host else host
            model = self.engine.pipeline.model
            log.info(
                "ready: http://%s:%d/ serves %s %s on %s, %d threads, queue of %d photos",
                *(address, port, model.name, model.version),
                *(self.engine.pipeline.session.provider, self.engine.threads),
                self.engine.queue_limit,
            )


def bind(host: str, port: int) -> socket.socket:
    """Bind the port before any slow work; `UsageError` if it is in use or the host is not here."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        if not host:
            raise OSError("no address is given; 0.0.0.0 means all")
        listener.bind((host, port))
    except (OSError, OverflowError) as error:
        listener.close()
        raise UsageError(
            f"cannot listen on {host} port {port}: {error}; choose another with --host or --port"
        ) from error
    return listener


def make_server(app: FastAPI) -> uvicorn.Server:
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
    return _Server(config, engine)


class _LineFormatter(logging.Formatter):
    """``TIME LEVEL message name=value ...``, or one JSON object; the names are ``fields``.

    Lines about a request contain its id, route, method, status and time, but no address, file name,
    query or key.
    """

    def __init__(self, form: LogFormat) -> None:
        super().__init__()
        self._form = form

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record; as text, a traceback adds lines."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, message = record.levelname, record.getMessage()
        fields: dict[str, object] = getattr(record, "fields", {})
        trace = self.formatException(record.exc_info) if record.exc_info else None
        if self._form == "json":
            entry = {"time": time, "level": level.lower(), "message": message, **fields}
            return json.dumps(entry | ({"exception": trace} if trace else {}), ensure_ascii=False)
        words = [time, level, message, *(f"{name}={value}" for name, value in fields.items())]
        return " ".join(words) + (f"\n{trace}" if trace else "")


def log_to_stderr(form: LogFormat, level: LogLevel) -> None:
    """Log this level and above to stderr; of uvicorn, only warnings and errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter(form))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


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
