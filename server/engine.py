"""Working on photos: as many threads as cores, a bounded queue, no work for clients that left.

One task is decode, network and set together; on a GPU the network waits for
`florilege.server.inference.batching`.
"""

import asyncio
import math
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from time import monotonic, perf_counter
from typing import TypeVar

from florilege.cores import cores
from florilege.server.answers.pipeline import Outcome, Pipeline, StageTimes
from florilege.server.answers.query import LocalizedQuery
from florilege.server.answers.warmup import warm_up
from florilege.server.background.publisher import AnsweredRequest, Listener, Publisher
from florilege.server.problems import Draining, Loading, Overloaded, QueueTimeout
from florilege.server.prometheus import Metrics
from florilege.server.settings import Settings

MIN_QUEUE, MAX_QUEUE = 16, 300
"""Bounds of a queue sized by measurement."""
UNFAMILIAR = "unfamiliar"
"""Reason under which rejected photos are counted."""

T = TypeVar("T")


class State(Enum):
    """What the server is doing."""

    LOADING = "loading"
    READY = "ready"
    LEAVING = "leaving"  # asked to stop: not ready any more, but still answering
    DRAINING = "draining"  # answering what it has, taking nothing new


class _ClientLeft(Exception):  # an event, not a mistake
    """Nobody waits for this answer any more."""


@dataclass
class PendingRequest:
    """One request between its upload and its answer."""

    photos: Sequence[bytes]
    query: LocalizedQuery
    answer_id: str
    deadline: float
    submitted: float = field(default_factory=perf_counter)
    stages: StageTimes = field(default_factory=StageTimes)
    abandoned: threading.Event = field(default_factory=threading.Event)

    def abandon(self) -> None:
        """Say that nobody waits for the answer any more, and hold its photos no longer."""
        self.abandoned.set()
        self.photos = ()

    def check(self) -> None:
        """Raise `_ClientLeft` or `QueueTimeout` where going on to the next photo helps nobody."""
        if self.abandoned.is_set():
            raise _ClientLeft
        if monotonic() > self.deadline:
            raise QueueTimeout("the photo waited too long in the queue; try again", retry_after=1)


class Engine:
    """Runs a `Pipeline` for many requests at once."""

    def __init__(
        self,
        pipeline: Pipeline,
        settings: Settings,
        metrics: Metrics,
        publisher: Publisher | None = None,
    ) -> None:
        self.pipeline = pipeline
        self.settings = settings
        self.metrics = metrics
        self.state = State.LOADING
        self.threads = settings.threads or pipeline.session.concurrency
        self.queue_limit = settings.queue_limit or MIN_QUEUE
        self._running = set[asyncio.Future[Outcome]]()
        self._retiring = set[asyncio.Task[None]]()
        self.depth = 0  # photos submitted and not finished
        self.service_s = 0.1  # moving mean of the seconds one photo takes
        self._pool = ThreadPoolExecutor(self.threads, thread_name_prefix="photo")
        self._side_thread = ThreadPoolExecutor(1, thread_name_prefix="side")
        self.publisher = publisher or Publisher((), metrics)
        metrics.queue_depth.set_function(lambda: self.depth)
        metrics.decoding_pixels.set_function(lambda: self.pipeline.budget.pixels_in_use)

    async def start(self) -> None:
        """Answer a few made-up photos, size the queue by the time they take, and be ready."""
        loop = asyncio.get_running_loop()
        self.service_s = await loop.run_in_executor(self._pool, warm_up, self.pipeline)
        if self.settings.queue_limit is None:
            a_second_of_work = round(min(self.threads, cores()) / self.service_s)
            self.queue_limit = min(MAX_QUEUE, max(MIN_QUEUE, a_second_of_work))
        self._say_what_is_served()
        self.publisher.start()
        self.state = State.READY

    def serve(self, pipeline: Pipeline, listeners: Callable[[], Sequence[Listener]]) -> None:
        """Answer with another bundle from now on; what is being answered keeps the old one.

        Its ``listeners`` are opened after the old ones have processed every queued answer.
        """
        old, self.pipeline = self.pipeline, pipeline
        retiring = asyncio.create_task(_retire(old, set(self._running)))
        self._retiring.add(retiring)
        retiring.add_done_callback(self._retiring.discard)
        self.publisher.replace_listeners(listeners)
        self._say_what_is_served()

    def _say_what_is_served(self) -> None:
        model, record = self.pipeline.model, self.pipeline.record
        self.metrics.model_info.clear()
        self.metrics.model_info.labels(**model.model_dump()).set(1)
        self.metrics.model_loaded.set_to_current_time()
        self.metrics.set_size_target.set(record.point("average_k").row.size)

    def leave(self) -> None:
        """Turn `/readyz` to 503, so that balancers look elsewhere; requests are still answered."""
        self.state = State.LEAVING

    def drain(self) -> None:
        """Take nothing new from now on."""
        self.state = State.DRAINING

    def close(self) -> None:
        """Wait for the tasks that run, drop the others."""
        self.drain()
        for pool in (self._pool, self._side_thread):
            pool.shutdown(wait=True, cancel_futures=True)
        self.pipeline.close()
        self.publisher.close()

    def check_ready(self) -> None:
        """Raise `Loading` or `Draining` unless balancers should send requests here."""
        self.check_accepting()
        if self.state is State.LEAVING:
            raise _draining()

    def check_accepting(self) -> None:
        """Raise `Loading` or `Draining` unless a request that has come is answered."""
        if self.state is State.LOADING:
            raise Loading("the model is being loaded; try again in a second", retry_after=1)
        if self.state is State.DRAINING:
            raise _draining()

    def submit(self, job: PendingRequest) -> asyncio.Future[Outcome]:
        """Queue a job; its outcome is a `Problem` where the photos cannot be answered, and
        `ClientLeft` where the job was abandoned while it waited.

        Raises:
            Overloaded: The queue is full.
            Draining: The server is stopping.
        """
        size = len(job.photos)
        if self.depth > 0 and self.depth + size > self.queue_limit:
            raise Overloaded(
                f"{self.depth} photos are waiting already; try again later",
                limit=self.queue_limit,
                retry_after=self.seconds_of_work(),
            )
        self.depth += size
        try:
            running = asyncio.get_running_loop().run_in_executor(self._pool, self._work, job)
        except RuntimeError as error:  # the pool is shut down
            self.depth -= size
            raise _draining() from error
        self._running.add(running)
        running.add_done_callback(partial(self._finished, size))
        return running

    def _finished(self, size: int, running: asyncio.Future[Outcome]) -> None:
        self._running.discard(running)
        self.depth -= size

    async def in_side_thread(self, work: Callable[..., T], *arguments: object) -> T:
        """Do what takes milliseconds beside the event loop, one such thing at a time.

        More threads would take the interpreter from the loop more often, and be done no sooner.
        """
        loop = asyncio.get_running_loop()
        try:
            running = loop.run_in_executor(self._side_thread, work, *arguments)
        except RuntimeError as error:  # it is shut down
            raise _draining() from error
        try:
            return await running
        finally:
            del running  # it may hold an exception, whose traceback holds this frame

    def deadline(self) -> float:
        """Until when, on the monotonic clock, a request that is submitted now may wait."""
        return monotonic() + self.settings.queue_timeout_s

    def observe(self, outcome: Outcome, job: PendingRequest) -> None:
        """Count one answered request, and tell those who take note of it."""
        result = outcome.answer
        verdict = result.rejection.verdict
        self.metrics.verdicts.labels(verdict).inc()
        if verdict == "rejected":
            self.metrics.rejected.labels(UNFAMILIAR).inc()
        if result.model is self.pipeline.model:  # not one of a bundle that is gone
            self.publisher.publish(
                AnsweredRequest(logits=outcome.logits, restricted=outcome.restricted)
            )
        if result.set.size == 0:
            self.metrics.empty_sets.inc()
        if outcome.restricted:
            self.metrics.restricted_set_size.observe(result.set.size)
        else:
            self.metrics.set_size.observe(result.set.size)
            if result.results:
                self.metrics.top_score.observe(result.results[0].score)
        for stage, seconds in job.stages.seconds.items():
            self.metrics.stage_seconds.labels(stage).observe(seconds)

    def seconds_of_work(self) -> int:
        """Whole seconds until what waits now should be done, at least one."""
        return max(1, math.ceil(self.depth * self.service_s / self.threads))

    def _work(self, job: PendingRequest) -> Outcome:
        started = job.stages.add("queue", job.submitted)
        photos = job.photos  # before it is checked: `abandon` takes them away
        job.check()
        stages = job.stages
        result = self.pipeline(photos, job.query, job.answer_id, stages=stages, check=job.check)
        each = (perf_counter() - started) / len(photos)
        self.service_s += 0.05 * (each - self.service_s)  # one writer's loss does not matter here
        return result


async def _retire(old: Pipeline, jobs: set[asyncio.Future[Outcome]]) -> None:
    """Close a pipeline once all that may use it is done."""
    if jobs:
        await asyncio.wait(jobs)
    await asyncio.to_thread(old.close)


def _draining() -> Draining:
    return Draining("this server is stopping; try again, another one may answer", retry_after=1)
