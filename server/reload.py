"""Changing to another bundle, other lists and other keys, while requests are being answered."""

import asyncio
import logging
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from starlette.datastructures import State

from florilege.errors import FlorilegeError
from florilege.models.bundle.bundle_manifest import MANIFEST
from florilege.models.class_lists import list_files
from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.server.answers.warmup import warm_up
from florilege.server.background.factory import open_listeners
from florilege.server.engine import Engine
from florilege.server.http.api_keys import ApiKeys
from florilege.server.http.bundle_info import BundleInfo
from florilege.server.settings import Settings

log = logging.getLogger("florilege.server")

Fingerprint = tuple[int, int, int] | None


class Reloader:
    """Opens bundle, lists and keys again: on SIGHUP, or when a file of them has changed.

    Changes follow one another, however many are requested. A bundle or list that cannot be served,
    or keys that cannot be read, change nothing.
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
        """Ask for it, from any thread; ignored before the server is ready."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._requested.set)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """React while the block runs."""
        self._loop = loop = asyncio.get_running_loop()
        tasks = [asyncio.create_task(self._run())]
        if self.engine.settings.reload_every_s:
            tasks.append(asyncio.create_task(self._look()))
        in_charge = threading.current_thread() is threading.main_thread()
        if in_charge:
            loop.add_signal_handler(signal.SIGHUP, self.request_reload)
        try:
            yield
        finally:
            if in_charge:
                loop.remove_signal_handler(signal.SIGHUP)
                ignore_hangups()  # the last answers come first
            for task in tasks:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _run(self) -> None:
        while True:
            await self._requested.wait()
            self._requested.clear()
            self._fingerprints = self._read_fingerprints()
            self._read_keys()
            await self._open_bundle()

    async def _look(self) -> None:
        while True:
            await asyncio.sleep(self.engine.settings.reload_every_s)
            now = zip(self._read_fingerprints(), self._fingerprints, strict=True)
            if any(new not in (None, old) for new, old in now):
                self.request_reload()

    def _read_fingerprints(self) -> list[Fingerprint]:
        return [_fingerprint(path) for path in self._files]

    def _read_keys(self) -> None:
        if self.keys is None:
            return
        try:
            self.keys.read()
        except FlorilegeError as error:
            log.error("the keys stay as they were: %s", error)
        else:
            log.info("%d keys are known", len(self.keys))

    async def _open_bundle(self) -> None:
        engine, old = self.engine, self.engine.pipeline
        try:
            new, about = await asyncio.to_thread(self._open_warm)
        except FlorilegeError as error:
            outcome = "refused"
            log.error("%s %s stays: %s", old.model.name, old.model.version, error)
        except Exception:  # whatever it is, the old bundle stays
            outcome = "refused"
            log.exception(
                "%s %s stays: another cannot be opened", old.model.name, old.model.version
            )
        else:
            same_lists = new.lists.classes == old.lists.classes
            outcome = "unchanged" if new.model == old.model and same_lists else "swapped"
            if outcome == "swapped":
                self.state.about = about
            if new.model == old.model:
                engine.pipeline = old if same_lists else replace(old, lists=new.lists)
                await asyncio.to_thread(new.close)
            else:
                engine.serve(new, partial(open_listeners, engine.settings, new, engine.metrics))
            log.info("%s", _reload_message(old, new))
        engine.metrics.reloads.labels(outcome).inc()

    def _open_warm(self) -> tuple[Pipeline, BundleInfo]:
        """The bundle that is there now, ready to answer at once."""
        pipeline = pipeline_of(self.engine.settings)
        try:
            if pipeline.model != self.engine.pipeline.model:
                warm_up(pipeline)
            return pipeline, BundleInfo(pipeline, self.engine.settings)
        except BaseException:
            pipeline.close()
            raise


def pipeline_of(settings: Settings) -> Pipeline:
    """The bundle that a server is to answer with.

    Raises:
        BundleError: It is damaged or not calibrated.
        DataError: A list cannot be used.
    """
    return open_pipeline(
        settings.bundle,
        device=settings.device,
        runtime=settings.runtime,
        max_pixels=settings.max_pixels,
        max_decoding_pixels=settings.max_decoding_pixels,
        lists=settings.lists,
        batches=True,
    )


def _reload_message(old: Pipeline, new: Pipeline) -> str:
    """What came of opening a bundle again, for the log."""
    name = f"{new.model.name} {new.model.version}, calibration {new.model.calibration_id}"
    if new.model == old.model:
        other = new.lists.classes != old.lists.classes
        return f"{name} is served already" + ("; its lists have changed" if other else "")
    new_ids, old_ids = set(new.bundle.classes.ids), set(old.bundle.classes.ids)
    if new_ids == old_ids:
        return f"{name} is served now"
    added, removed = len(new_ids - old_ids), len(old_ids - new_ids)
    return f"{name} is served now; classes: {added} new, {removed} gone"


def _fingerprint(path: Path) -> Fingerprint:
    """What changes when another file is put at a path; None while none is there."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns, status.st_size


def ignore_hangups() -> None:
    """Let SIGHUP do nothing: before a server is ready, and once it stops, nothing can change."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
