"""What stays within bounds: queues of threads, memory of recent items, pixels being decoded, and
what the event loop does in one pass."""

import asyncio
import sys
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from time import monotonic, monotonic_ns, perf_counter
from typing import Any, Final, Generic, TypeVar

from florilege.models.images import Header
from florilege.processes import Tally, WorkerGroup
from florilege.server.problems import Code, Problem

MAX_WAITING: Final = 128
"""Calls in a queue; 32 clients that ask one after the other never fill it."""

T = TypeVar("T")
# A 50-megapixel PNG takes 250 MB while it is decoded: without a limit every thread could hold the
# largest picture at the same time. JPEGs are decoded at a fraction of their size and rarely wait,
# except those in several scans, whose coefficients are all kept until the last one.
MAX_DECODING_PIXELS = 100_000_000
SMALL_SHARE = 50
CHECK_EVERY_S = 0.5
_ASK_EVERY_S = 0.02
"""Threads of one process wake each other; what another worker gives back has to be looked for."""
STILL_S = 0.1
"""After which an upload that brings no byte stands still, as that of a phone in a tunnel: it may
take 20 s, and while a photo is here small photos lose a tenth of their rate."""
SWITCH_S, HURRIED_SWITCH_S = 0.005, 0.00005
"""How long a thread waits for the interpreter's lock before it asks for it: Python's default, and
while other requests are answered beside a photo. They keep the event loop busy, and the thread of
the photo needed 5 ms each time to get the lock: .08 s in all, at times .6. Among photos alone a
shorter time costs small ones up to a tenth more of the processor."""


class BoundedThread:
    """Runs one call at a time, in order; refuses those that are too many or wait too long.

    More threads would take the GIL from the event loop more often and finish no sooner. Work of a
    different kind gets a thread of its own, so that one kind never waits for another. ``refusal``
    is the code of a refused call, by default `Code.OVERLOADED` or `Code.QUEUE_TIMEOUT`.
    """

    def __init__(
        self,
        name: str,
        *,
        timeout_s: float,
        limit: int = MAX_WAITING,
        refusal: Code | None = None,
        retry_after: int = 1,
    ) -> None:
        self.name, self.limit, self.timeout_s, self.depth = name, limit, timeout_s, 0
        self._refusal, self._retry_after = refusal, retry_after
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[..., T], *arguments: Any) -> T:
        """The result of a call; call this in the event loop.

        Raises a `Problem` if the queue is full, the call waited too long or the thread is closed.
        """
        if self.depth >= self.limit:
            detail = f"{self.depth} requests wait for the thread {self.name!r}; try again later"
            raise self._refuse(Code.OVERLOADED, detail, limit=self.limit)
        future: asyncio.Future[T] = run_in(
            self._pool, self._start, perf_counter(), work, *arguments
        )
        # Only the event loop counts, and it calls `_finished`: no lock is needed.
        self.depth += 1
        future.add_done_callback(self._finished)
        try:
            return await future
        finally:
            # It may hold an exception, whose traceback holds this frame: a cycle that lives until
            # collected.
            del future

    def close(self) -> None:
        """Wait for the running call and drop the others."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def _finished(self, _: object) -> None:
        self.depth -= 1

    def _start(self, submitted: float, work: Callable[..., T], *arguments: Any) -> T:
        if perf_counter() > submitted + self.timeout_s:
            detail = f"the request waited more than {self.timeout_s:g} seconds; try again"
            raise self._refuse(Code.QUEUE_TIMEOUT, detail)
        return work(*arguments)

    def _refuse(self, code: Code, detail: str, *, limit: int | None = None) -> Problem:
        return Problem(self._refusal or code, detail, limit=limit, retry_after=self._retry_after)


def run_in(pool: ThreadPoolExecutor, work: Callable[..., T], *arguments: Any) -> asyncio.Future[T]:
    """Call ``work`` in a pool; a `Problem` if the pool is shut down."""
    try:
        return asyncio.get_running_loop().run_in_executor(pool, work, *arguments)
    except RuntimeError as error:
        raise draining() from error


def draining() -> Problem:
    """The `Problem` of a request to a server that is stopping."""
    detail = "this server is stopping; try again, another one may answer"
    return Problem(Code.DRAINING, detail, retry_after=1)


class RecentItems(Generic[T]):
    """The most recent items by name, of total weight up to ``limit``. Thread-safe."""

    def __init__(self, limit: int, weigh: Callable[[T], int] = lambda _: 1) -> None:
        self.limit, self._weigh, self._weight = limit, weigh, 0
        self._by_name: OrderedDict[Hashable, T] = OrderedDict()
        self._lock = threading.Lock()

    def add(self, name: Hashable, item: T) -> None:
        """Add an item, and drop the oldest while they weigh too much."""
        # One that exceeds the limit alone would push out all others, and then not stay itself.
        if (weight := self._weigh(item)) > self.limit:
            return
        with self._lock:
            if (replaced := self._by_name.pop(name, None)) is not None:
                self._weight -= self._weigh(replaced)
            self._by_name[name] = item
            self._weight += weight
            while self._weight > self.limit:
                self._weight -= self._weigh(self._by_name.popitem(last=False)[1])

    def find(self, name: Hashable, *, renew: bool = False) -> T | None:
        """The item of this name, with ``renew`` now the latest; None if unknown or dropped."""
        with self._lock:
            if renew and name in self._by_name:
                self._by_name.move_to_end(name)
            return self._by_name.get(name)


class EventLoopTurns:
    """One piece of work in a pass of the event loop, for all that would make a photo wait.

    Thirty-two clients that ask what costs nothing fill each pass with 32 requests. A photo takes
    ten passes; while one is here, others begin one after the other.
    """

    photos = 0  # whole and not yet answered

    def __init__(self) -> None:
        self._turn, self.last_bytes_at = asyncio.Lock(), -STILL_S  # of any upload

    async def begin(self, *, is_large: bool) -> None:
        """Let a request begin: a photo at once, others when it is their turn."""
        if is_large:
            sys.setswitchinterval(SWITCH_S)  # until the next one takes a turn
        elif self.photos > 0 or monotonic() < self.last_bytes_at + STILL_S:
            await self.take()

    async def take(self) -> None:
        """Wait for a turn; it ends with the current pass."""
        sys.setswitchinterval(HURRIED_SWITCH_S)
        # asyncio.Lock is fair, and what `call_soon` gets runs in the next pass: one begins in each,
        # in the order of arrival.
        await self._turn.acquire()
        asyncio.get_running_loop().call_soon(self._turn.release)


class PixelBudget:
    """Pixels that all threads of all workers may hold; pictures that exceed the budget wait.

    They are served in order of arrival, so that smaller ones never delay a large one forever. A
    picture larger than the budget is decoded when nothing else is held. Pictures up to a fiftieth
    of the budget, which is nearly all photos, are not counted and never wait.
    """

    def __init__(self, limit: int = MAX_DECODING_PIXELS, group: WorkerGroup | None = None) -> None:
        self.limit = limit
        self._held = Tally() if group is None else group.tally("decoding_pixels")
        # Since when the first picture of each worker waits: the oldest of these has its turn.
        self._since = Tally() if group is None else group.tally("decoding_since")
        self._single = group is None
        self._turns: deque[object] = deque()
        self._changed = threading.Condition()

    @property
    def pixels_in_use(self) -> int:
        """The pixels held now."""
        return self._held.total

    @contextmanager
    def hold(self, pixels: int, check: Callable[[], None] = lambda: None) -> Iterator[None]:
        """Wait until ``pixels`` fit the budget, and hold them until the block ends.

        ``check`` is called every half second while waiting; an exception it raises ends the wait.
        """
        if pixels <= self.limit // SMALL_SHARE:
            yield
            return
        turn = object()
        with self._changed:
            self._turns.append(turn)
            try:
                while self._turns[0] is not turn or not self._take(pixels):
                    self._changed.wait(CHECK_EVERY_S if self._single else _ASK_EVERY_S)
                    check()
            finally:
                if self._turns[0] is turn:
                    self._since.own = 0
                self._turns.remove(turn)
                self._changed.notify_all()
        try:
            yield
        finally:
            with self._changed:
                self._held.release(pixels)
                self._changed.notify_all()

    def _take(self, pixels: int) -> bool:
        """Hold the pixels of the first picture of this worker, if it is its turn and they fit."""
        # Monotonic time is one clock for all processes of a machine, so that workers compare
        # theirs.
        self._since.own = since = self._since.own or monotonic_ns()
        earlier = any(0 < other < since for other in self._since.others)
        return not earlier and self._held.add_within(pixels, self.limit, alone=True)


def pixels_to_hold(header: Header, *, least: int, max_pixels: int) -> int:
    """Pixels that decoding a picture holds; it is not shrunk below a side of ``least``."""
    pixels = header.width * header.height
    if pixels > max_pixels:  # refused by the decoder
        return 0
    if not header.shrinks:
        return pixels + header.more_pixels
    # libjpeg shrinks by 1, 2, 4 or 8 while it decodes; Pillow's `draft` chooses the same factor.
    most = max(1, min(header.width, header.height) // least)
    return pixels // next(factor for factor in (8, 4, 2, 1) if factor <= most) ** 2
