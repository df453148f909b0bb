"""Process photos: a pool of threads, a bounded queue, no work for clients that disconnected.

One task decodes, runs the network and computes the set; on a GPU the network runs in batches.
"""

import asyncio
import io
import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import cache, partial
from hashlib import sha256
from time import perf_counter
from typing import Any, Generic, TypeVar
from zlib import crc32

import numpy as np
from PIL import Image

from florilege.calibration.view import PLAIN
from florilege.cores import cores
from florilege.models.session import Outputs
from florilege.processes import Tally, WorkerGroup
from florilege.server.answers.pipeline import Outcome, Pipeline, StageTimes
from florilege.server.answers.query import IdentifyQuery
from florilege.server.bounds import BoundedThread, RecentItems, draining, run_in
from florilege.server.problems import Code, Problem
from florilege.server.process import PHOTO_TURN_MS, request_long_turns
from florilege.server.prometheus import Metrics
from florilege.server.publisher import Publisher, open_listeners
from florilege.server.settings import Settings

MIN_QUEUE, MAX_QUEUE = 16, 300  # bounds of a queue limit that is measured

T = TypeVar("T")


class _State(Enum):
    """What the server is doing."""

    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"  # stopping: not ready, but still answering
    DRAINING = "draining"  # finishing accepted requests, refusing new ones


class _ClientLeft(Exception):  # an event, not an error
    """The client disconnected before its answer."""


@dataclass
class PendingRequest(Generic[T]):
    """One request between its upload and its answer, and the work that gives the answer."""

    photos: Sequence[bytes]
    work: Callable[[Pipeline, Sequence[bytes], "PendingRequest[T]"], T]
    timeout_s: float
    submitted: float = field(default_factory=perf_counter)
    stages: StageTimes = field(default_factory=lambda: StageTimes(float))

    def abandon(self) -> None:
        """Release the photos; work on a request without photos stops, or never starts."""
        self.photos = ()

    def check(self) -> None:
        """Raise `_ClientLeft` if it is abandoned, a `Problem` if it took too long."""
        if not self.photos:
            raise _ClientLeft
        if perf_counter() > self.submitted + self.timeout_s:
            detail = "the photo waited too long in the queue; try again"
            raise Problem(Code.QUEUE_TIMEOUT, detail, retry_after=1)


class Engine:
    """Runs a `Pipeline` for many requests at once; ``group`` are the workers it is one of."""

    def __init__(
        self,
        pipeline: Pipeline,
        settings: Settings,
        metrics: Metrics,
        group: WorkerGroup | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.settings = settings
        self.metrics = metrics
        self.group, self.workers = group, 1 if group is None else group.count
        listeners = open_listeners(settings, pipeline, metrics, group)
        self.publisher = Publisher(listeners, metrics)
        self.state = _State.LOADING
        self.threads = settings.threads or pipeline.session.concurrency
        self.queue_limit = settings.queue_limit or MIN_QUEUE
        self._running = set[asyncio.Future[Any]]()
        self._retiring = set[asyncio.Task[None]]()
        self.photos = Tally() if group is None else group.tally("photos")  # not finished
        self.service_s = 0.1  # moving mean of the seconds one photo takes
        turns = partial(request_long_turns, PHOTO_TURN_MS)
        self._pool = ThreadPoolExecutor(self.threads, "photo", initializer=turns)
        # A thread each, so that lists, similar names and metrics never hold up the form of a photo.
        self.forms = BoundedThread("forms", limit=MAX_QUEUE, timeout_s=settings.queue_timeout_s)
        self.lookups = BoundedThread("lookups", timeout_s=settings.queue_timeout_s)
        self.reports = BoundedThread("reports", timeout_s=settings.queue_timeout_s)  # of operations
        self.cache = _OutputCache(math.ceil(settings.cache_answers / self.workers), metrics)
        metrics.queue_depth.set_function(lambda: [((), self.depth)])
        metrics.decoding_pixels.set_function(lambda: [((), self.pipeline.budget.pixels_in_use)])

    @property
    def depth(self) -> int:
        """Photos submitted and not finished, to all workers."""
        return self.photos.total

    async def start(self) -> None:
        """Answer a few synthetic photos, size the queue by their time, then become ready."""
        loop = asyncio.get_running_loop()
        self.service_s = await loop.run_in_executor(self._pool, warm_up, self.pipeline)
        if self.settings.queue_limit is None:
            # On a GPU most threads wait for their batch: no more photos a second than cores decode.
            photos_per_second = round(min(self.threads, cores()) / self.service_s)
            self.queue_limit = min(MAX_QUEUE, max(MIN_QUEUE, photos_per_second)) * self.workers
        self._record_model()
        self.state = _State.READY

    def serve(self, pipeline: Pipeline) -> None:
        """Switch to another bundle and new listeners; requests in progress keep the old one."""
        old, self.pipeline = self.pipeline, pipeline
        task = asyncio.create_task(_retire(old, set(self._running)))
        # Held here: asyncio refers to tasks weakly, and may lose one that nobody else holds.
        self._retiring.add(task)
        task.add_done_callback(self._retiring.discard)
        self.publisher.replace_listeners(
            partial(open_listeners, self.settings, pipeline, self.metrics, self.group)
        )
        self._record_model()

    def _record_model(self) -> None:
        model, record = self.pipeline.model, self.pipeline.record
        self.metrics.model_info.set_function(lambda: [([*model.model_dump().values()], 1)])
        if self.group is not None:
            # Workers share integers alone; the supervisor compares these to find different bundles.
            name = f"{model.bundle_sha256}{model.calibration_id}".encode()
            self.group.set("model", crc32(name))
        self.metrics.model_loaded.set_to_current_time()
        self.metrics.set_size_target.set(record.point(PLAIN, record.setting("average_k")).row.size)

    def leave(self) -> None:
        """Turn `/readyz` to 503 for load balancers; requests are still answered."""
        self.state = _State.LEAVING

    def drain(self) -> None:
        """Refuse new requests from now on."""
        self.state = _State.DRAINING

    def close(self) -> None:
        """Wait for the running tasks and drop the others."""
        self.drain()
        # Photos first: a pipeline may only be closed when no call is running.
        self._pool.shutdown(wait=True, cancel_futures=True)
        self.forms.close()
        self.lookups.close()
        self.reports.close()
        self.pipeline.close()
        self.publisher.close()

    def check_ready(self) -> None:
        """Raise a `Problem` unless load balancers should send requests here."""
        self.check_accepting()
        if self.state is _State.LEAVING:
            raise draining()

    def check_accepting(self) -> None:
        """Raise a `Problem` unless new requests are accepted."""
        if self.state is _State.LOADING:
            detail = "the model is being loaded; try again in a second"
            raise Problem(Code.LOADING, detail, retry_after=1)
        if self.state is _State.DRAINING:
            raise draining()

    def submit(self, job: PendingRequest[T]) -> asyncio.Future[T]:
        """Queue a job, or raise a `Problem` if the queue is full or the server is stopping.

        The future raises `_ClientLeft` if the job is abandoned while it waits.
        """
        # Alone, more photos than the limit are answered too, or they never could be.
        size = len(job.photos)
        if not self.photos.add_within(size, self.queue_limit, alone=True):
            raise Problem(
                Code.OVERLOADED,
                f"{self.depth} photos are waiting already; try again later",
                limit=self.queue_limit,
                retry_after=self.seconds_of_work(),
            )
        try:
            future = run_in(self._pool, self._process, job)
        except Problem:
            self.photos.release(size)
            raise
        self._running.add(future)

        def finished(future: asyncio.Future[T]) -> None:
            self._running.discard(future)
            self.photos.release(size)

        future.add_done_callback(finished)
        return future

    def observe(self, outcome: Outcome) -> None:
        """Count one prediction set and publish its logits to the listeners."""
        result, metrics = outcome.answer, self.metrics
        verdict, size = result.rejection.verdict, result.set.size
        metrics.verdicts.labels(verdict).inc()
        if verdict == "rejected":
            metrics.rejected.labels("unfamiliar").inc()
        if result.model is self.pipeline.model:  # not of a replaced bundle
            self.publisher.publish(outcome.logits, restricted=outcome.restricted)
        if size == 0:
            metrics.empty_sets.inc()
        if outcome.restricted:
            metrics.restricted_set_size.observe(size)
        else:
            metrics.set_size.observe(size)
            if result.results and result.results[0].rank == 1:
                metrics.top_score.observe(result.results[0].score)

    def seconds_of_work(self) -> int:
        """Estimated whole seconds until the current queue is processed, at least one."""
        return max(1, math.ceil(self.depth * self.service_s / (self.threads * self.workers)))

    def _process(self, job: PendingRequest[T]) -> T:
        started = perf_counter()
        job.stages["queue"] += started - job.submitted
        # Before the check: a client that leaves right after it clears them.
        photos = job.photos
        job.check()
        result = job.work(self.pipeline, photos, job)
        seconds = (perf_counter() - started) / len(photos)
        self.service_s += 0.05 * (seconds - self.service_s)  # a lost update does no harm
        return result


async def _retire(old: Pipeline, jobs: set[asyncio.Future[Any]]) -> None:
    """Close a pipeline after the jobs that may use it."""
    if jobs:
        await asyncio.wait(jobs)
    await asyncio.to_thread(old.close)


def warm_up(pipeline: Pipeline) -> float:
    """Answer a synthetic photo three times; returns the seconds that one answer takes."""
    photo, seconds = _sample_photo(), []
    for _ in range(3):
        started = perf_counter()
        pipeline([photo], IdentifyQuery(), "warm-up")
        seconds.append(perf_counter() - started)
    # The least: the first answer also pays for the memory and caches of the runtime.
    return max(1e-4, min(seconds))


@cache  # each reload needs it again
def _sample_photo() -> bytes:
    """A JPEG of the size a phone application sends, smooth with some noise, always the same."""
    (width, height), generator = (1024, 768), np.random.default_rng(0)
    # A photo has 172 kB at this quality; one of pure noise would have 595 and decode more slowly.
    coarse = generator.integers(0, 256, (height // 32, width // 32, 3), dtype=np.uint8)
    smooth = np.asarray(Image.fromarray(coarse).resize((width, height)), dtype=np.int16)
    noisy = smooth + generator.integers(-12, 13, smooth.shape, dtype=np.int8)
    buffer = io.BytesIO()
    Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


class _OutputCache:
    """The outputs for the last ``limit`` photos, the least recent dropped first. Thread-safe.

    Sets are drawn anew from them, so no answer depends on an earlier query, list or threshold.
    """

    def __init__(self, limit: int, metrics: Metrics) -> None:
        self.limit, self._lookups = limit, metrics.cache_lookups
        self._recent = RecentItems[Outputs](limit)

    def outputs(self, owner: tuple[str, ...], photo: bytes, run: Callable[[], Outputs]) -> Outputs:
        """The outputs for a photo: those cached for this ``owner``, or else those of ``run``."""
        if not self.limit:
            return run()
        name = (*owner, sha256(photo).hexdigest())
        outputs = self._recent.find(name, renew=True)
        self._lookups.labels("miss" if outputs is None else "hit").inc()
        if outputs is None:
            outputs = run()
            self._recent.add(name, outputs)
        return outputs
