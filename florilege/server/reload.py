"""Replace the bundle, lists and keys while requests are being answered."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from starlette.datastructures import State

from florilege.errors import FlorilegeError
from florilege.models.bundle.staging import MANIFEST
from florilege.models.class_lists import list_files
from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.server.engine import Engine, warm_up
from florilege.server.http.api_keys import ApiKeys
from florilege.server.http.cached_responses import BundleInfo
from florilege.server.settings import Settings

log = logging.getLogger("florilege.server")

Fingerprint = tuple[int, int, int] | None


class Reloader:
    """Reloads bundle, lists and keys: on SIGHUP, or when one of their files has changed.

    Reloads run one after the other. If the bundle or a list cannot be served, or the keys cannot
    be read, the current ones stay in use.
    """

    def __init__(self, state: State) -> None:
        self.state = state  # of the application, whose `about` changes with the bundle
        self.engine: Engine = state.engine
        self.keys: ApiKeys | None = state.keys
        self._requested = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        settings = self.engine.settings
        keys = [] if settings.keys_file is None else [settings.keys_file]
        lists = [file for word in settings.lists for _, file in list_files(word)]
        self._files = [settings.bundle / MANIFEST, *keys, *lists]
        self._fingerprints = self._read_fingerprints()

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
            loop.add_signal_handler(signal.SIGHUP, self.request_reload)
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
        poll_s = self.engine.settings.reload_every_s or None
        while True:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._requested.wait(), poll_s)
            if not self._requested.is_set():
                now = zip(self._read_fingerprints(), self._fingerprints, strict=True)
                if all(new in (None, old) for new, old in now):
                    continue
            self._requested.clear()
            self._fingerprints = self._read_fingerprints()
            self._read_keys()
            await self._open_bundle()

    def _read_fingerprints(self) -> list[Fingerprint]:
        return [_fingerprint(path) for path in self._files]

    def _read_keys(self) -> None:
        if self.keys is None:
            return
        try:
            log.info("read %d keys", self.keys.read())
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
            same_lists = new.lists.classes == old.lists.classes
            outcome = "unchanged" if new.model == old.model and same_lists else "swapped"
            if outcome == "swapped":
                self.state.about = about
            if new.model != old.model:
                engine.serve(new)
            else:
                engine.pipeline = old if same_lists else replace(old, lists=new.lists)
                await asyncio.to_thread(new.close)
            log.info("%s", _reload_message(old, new, same_lists=same_lists))
        engine.metrics.reloads.labels(outcome).inc()

    def _open_warm(self) -> tuple[Pipeline, BundleInfo]:
        pipeline = pipeline_of(self.engine.settings)
        try:
            if pipeline.model != self.engine.pipeline.model:
                warm_up(pipeline)
            return pipeline, BundleInfo(pipeline, self.engine.settings)
        except BaseException:
            pipeline.close()
            raise


def pipeline_of(settings: Settings) -> Pipeline:
    """Open the bundle that the settings name."""
    return open_pipeline(
        settings.bundle,
        device=settings.device,
        runtime=settings.runtime,
        max_pixels=settings.max_pixels,
        max_decoding_pixels=settings.max_decoding_pixels,
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


def _fingerprint(path: Path) -> Fingerprint:
    """Inode, time and size of a file, which tell it from a newer one; None if there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def ignore_hangups() -> None:
    """Ignore SIGHUP: a server cannot reload before it is ready or while it stops."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
