"""Run the application until it has to stop, without losing an answer.

Bundle, lists and keys are replaced while requests are being answered.
"""

import asyncio
import logging
import math
import os
import signal
import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, nullcontext, suppress
from pathlib import Path
from types import FrameType
from typing import Final

import uvicorn
from fastapi import FastAPI
from starlette.datastructures import State

from florilege.errors import BundleError, DataError, FlorilegeError
from florilege.files import PIPE_WAIT_S
from florilege.models.bundle import MANIFEST, BundleFolder
from florilege.models.regions import list_files
from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.server.bounds import PixelBudget
from florilege.server.engine import Engine, warm_up
from florilege.server.http.api_keys import ApiKeys
from florilege.server.http.cached_responses import BundleInfo
from florilege.server.http.connection import Connection
from florilege.server.process import address_of, ignore_hangups, listen, terminal_watch
from florilege.server.settings import Settings

log = logging.getLogger("florilege.server")

_PIPE_WAIT_S: Final = 2.0  # in place of keys or a list: a stop waits for a reload
_Fingerprint = tuple[int | str, ...] | None
"""Tells a file or a folder from a changed one; None if there is none."""
Fingerprints = dict[Path, _Fingerprint]


class GracefulServer(uvicorn.Server):
    """Stops in three steps: report not ready, close the port, finish the last answers.

    On SIGTERM `/readyz` returns 503 while requests are still answered, so that load balancers can
    avoid this server. After `drain_notice_s` the port closes; requests in progress have `drain_s`.
    Ctrl-C skips the first step. ``app`` is what `create_app` has built; `run` or `serve` runs it.
    """

    def __init__(self, app: FastAPI) -> None:
        self.engine: Engine = app.state.engine
        config = uvicorn.Config(
            app,
            http=Connection,
            ws="none",
            access_log=False,
            log_config=None,
            lifespan="on",
            server_header=False,
            timeout_keep_alive=30,
            # By IPv4, by IPv6, and by IPv4 on a port that is open to both, as with `--host ::`.
            forwarded_allow_ips=os.getenv("FORWARDED_ALLOW_IPS", "127.0.0.1,::1,::ffff:127.0.0.1"),
            # uvicorn takes whole seconds.
            timeout_graceful_shutdown=math.ceil(self.engine.settings.drain_s),
        )
        super().__init__(config)
        self._leaving: asyncio.Task[None] | None = None
        self._leave_requested = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal; a second one ends the notice early."""
        if sig != signal.SIGTERM:
            self.engine.drain()
            super().handle_exit(sig, frame)
        elif not self._leave_requested:
            self._leave_requested = True
            self.engine.leave()  # the main loop sees it within a tenth of a second
        else:  # uvicorn would raise it again at the end, and the exit code tell of a failure
            self.engine.drain()
            self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Called ten times a second by the main loop; True ends it."""
        # Not in `handle_exit`: a signal handler runs between any two instructions, and may start no
        # task.
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
        if self.force_exit:  # by a second Ctrl-C; uvicorn would leave votes unwritten
            await self.lifespan.shutdown()
        log.info("stopped")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        for listener in sockets or []:
            listen(listener)
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


class Reloader:
    """Reloads bundle, lists and keys: on SIGHUP, or when one of their files has changed.

    Reloads run one after the other. If the bundle or a list cannot be served, or the keys cannot
    be read, the current ones stay in use, until one of the files changes again.
    """

    def __init__(self, state: State) -> None:
        self.state = state  # of the application, whose `about` changes with the bundle
        self.engine: Engine = state.engine
        self.keys: ApiKeys | None = state.keys
        self._requested = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._watched = _WatchedFiles(self.engine.settings)
        self.terminal_closed = terminal_watch()

    def handle_hangup(self) -> None:
        """Reload on SIGHUP, or stop as on Ctrl-C if the terminal was closed."""
        if self.terminal_closed():
            signal.raise_signal(signal.SIGINT)
        else:
            self.request_reload()

    def request_reload(self) -> None:
        """Request a reload, from any thread; ignored before the server is ready."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._requested.set)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Handle reloads while the block runs."""
        self._loop = loop = asyncio.get_running_loop()
        task = asyncio.create_task(self._run())
        on_main_thread = threading.current_thread() is threading.main_thread()
        if on_main_thread:
            loop.add_signal_handler(signal.SIGHUP, self.handle_hangup)
        try:
            yield
        finally:
            if on_main_thread:
                loop.remove_signal_handler(signal.SIGHUP)
                ignore_hangups()  # until the last answers are sent
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task

    async def _run(self) -> None:
        PIPE_WAIT_S.set(_PIPE_WAIT_S)
        poll_s = self.engine.settings.reload_every_s or None
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._requested.wait(), poll_s)
            if not self._requested.is_set() and not self._watched.have_changed():
                continue
            self._requested.clear()
            # Before they are read: what changes meanwhile is a change of its own.
            self._watched.remember()
            await asyncio.to_thread(self._read_keys)
            await self._open_bundle()

    def _read_keys(self) -> None:
        if self.keys is None:
            return
        try:
            log.info("keys read again: %d", self.keys.read())
        except FlorilegeError as error:
            log.error("keeping the current keys: %s", error)

    async def _open_bundle(self) -> None:
        engine, old, outcome = self.engine, self.engine.pipeline, "refused"
        try:
            new, about = await asyncio.to_thread(self._open_warm)
        except FlorilegeError as error:
            log.error("keeping %s %s: %s", old.model.name, old.model.version, error)
        except Exception:  # whatever fails, the old bundle stays in use
            name, version = old.model.name, old.model.version
            log.exception("keeping %s %s: the new bundle cannot be opened", name, version)
        else:
            lists = new.planner.lists
            same_lists = lists.classes == old.planner.lists.classes
            outcome = "unchanged" if new.model == old.model and same_lists else "swapped"
            if outcome == "swapped":
                self.state.about = about
            if new.model != old.model:
                engine.serve(new)
            else:
                engine.pipeline = old if same_lists else old.with_lists(lists)
                await asyncio.to_thread(new.close)
            log.info("%s", _reload_message(old, new, same_lists=same_lists))
        engine.metrics.reloads.labels(outcome).inc()

    def _open_warm(self) -> tuple[Pipeline, BundleInfo]:
        engine = self.engine
        # Workers open a bundle one after the other: only one of them needs memory for two.
        with nullcontext() if engine.group is None else engine.group.lock("reload"):
            pipeline = pipeline_of(engine.settings, engine.pipeline.budget)
            try:
                if pipeline.model != engine.pipeline.model:
                    warm_up(pipeline)
                return pipeline, BundleInfo(pipeline, engine.settings)
            except BaseException:
                pipeline.close()
                raise


def pipeline_of(settings: Settings, budget: PixelBudget) -> Pipeline:
    """Open the bundle that the settings name, to decode within ``budget``."""
    return open_pipeline(
        settings.bundle,
        device=settings.device,
        runtime=settings.runtime,
        max_pixels=settings.max_pixels,
        budget=budget,
        lists=settings.lists,
        batches=True,
    )


def _reload_message(old: Pipeline, new: Pipeline, *, same_lists: bool) -> str:
    name = f"{new.model.name} {new.model.version}, calibration {new.model.calibration_id}"
    if new.model == old.model:
        return f"{name} is already served" + ("" if same_lists else "; its lists have changed")
    new_ids, old_ids = set(new.bundle.classes.ids), set(old.bundle.classes.ids)
    if new_ids == old_ids:
        return f"{name} is now served"
    added, removed = len(new_ids - old_ids), len(old_ids - new_ids)
    return f"{name} is now served; classes: {added} added, {removed} removed"


class _WatchedFiles:
    """The files of the bundle, lists and keys of a server, and whether they have changed."""

    def __init__(self, settings: Settings) -> None:
        self._bundle, self._lists = BundleFolder(settings.bundle), settings.lists
        self._keys = [] if settings.keys_file is None else [settings.keys_file]
        self._manifest: _Fingerprint = None  # of the `bundle.json` that names
        self._names: Sequence[str] = ()  # these files
        self._known: Fingerprints = {}  # of what is served, or was refused
        self._latest: Fingerprints = {}  # when they were last looked at
        self.remember()

    def remember(self) -> None:
        """Take the files as they are now for known."""
        self._known = self._latest = self._read()

    def have_changed(self) -> bool:
        """Whether a file is new or changed, and none has changed since the last call.

        So files that are being copied are left alone. One that is missing is no change, because it
        may be about to be replaced.
        """
        before, self._latest = self._latest, self._read()
        if self._latest != before:
            return False
        return any(
            mark is not None and mark != self._known.get(path)
            for path, mark in self._latest.items()
        )

    def _read(self) -> Fingerprints:
        files = [*self._bundle_files(), *self._keys]
        folders: Fingerprints = {}
        for word in self._lists:
            with suppress(DataError, OSError):  # it is missing, or an empty folder
                lists = [path for _, path in list_files(word)]
                files += lists
                # The names in the folder too: a list that goes is a change, a file that is missing
                # is none.
                if "=" not in word and Path(word).is_dir():
                    folders[Path(word)] = tuple(path.name for path in lists)
        return folders | {path: _fingerprint(path) for path in files}

    def _bundle_files(self) -> list[Path]:
        """All files of the bundle: while it is copied, `bundle.json` may come before the others."""
        manifest = self._bundle.path / MANIFEST
        mark = _fingerprint(manifest)
        if mark not in (None, self._manifest):
            with suppress(BundleError, OSError):  # it is being written
                self._names = list(self._bundle.read_manifest().files)
                self._manifest = mark
        return [manifest, *(self._bundle.path / name for name in self._names)]


def _fingerprint(path: Path) -> _Fingerprint:
    try:
        status = path.stat()
    except OSError:
        return None
    # The inode too: a file may be replaced by one of equal size and, as `cp -p` and rsync keep it,
    # time.
    return status.st_ino, status.st_mtime_ns, status.st_size
