"""On a GPU: threads decode, and the network runs on whatever photos are ready.

While one batch runs, the photos that are decoded meanwhile gather for the next. So nobody waits for
a batch to fill, and the more there is to do, the larger they are. On a CPU there is none of this:
batches gain at most 8 % there, and one slow photo would hold up its neighbours.
"""

import logging
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import perf_counter
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from florilege.cores import cores
from florilege.errors import FlorilegeError
from florilege.models.bundle.bundle import MODEL
from florilege.models.fixed_batch import FixedBatch
from florilege.models.images import Header, load
from florilege.models.runtime import CPU, CUDA
from florilege.models.session import Floats, Outputs, Session, open_graph

log = logging.getLogger("florilege.server")

SIZES: Final = (1, 2, 4, 8, 16, 32)
"""Of batches; each is padded to the next of them."""
LARGEST: Final = SIZES[-1]
TOLERANCE: Final = 1e-3
"""How far logits may be from those of one photo at a time, as a share of the largest."""


class InferenceBackend(Protocol):
    """What runs the network of a pipeline; any number of threads may call it at once."""

    provider: str
    dimensions: int | None  # of the features; None if there are none
    concurrency: int  # threads that keep it busy

    def infer(
        self, photo: Header, *, max_pixels: int, features: bool = False
    ) -> tuple[Outputs, float]:
        """As `Session.infer`."""

    def close(self) -> None:
        """End its threads, once nobody calls it any more."""


class SessionBackend(Session):
    """Runs the network on each photo in the thread that asks; nothing waits, nothing is to end."""

    def close(self) -> None:
        """See the class."""


@dataclass(frozen=True)
class _Waiting:
    """A decoded photo, and its row of each output of the graph once there is one."""

    pixels: NDArray[np.uint8]
    row: Future[dict[str, Floats]] = field(default_factory=Future)


class BatchingBackend:
    """Runs the network on the photos that are ready.

    Args:
        session: Whose network it is.
        replayed: Whether each size of batch is captured once and replayed, as a CUDA graph.

    Raises:
        Exception: Whatever the runtime or the GPU refuse, or batches give other numbers than
            single photos.
    """

    def __init__(self, session: Session, *, replayed: bool) -> None:
        self.session, self.provider = session, session.provider
        self.dimensions, self.concurrency = session.dimensions, cores() + LARGEST
        self._decoding = ThreadPoolExecutor(cores(), "decode")  # first come, first served
        self._decoded: SimpleQueue[_Waiting | None] = SimpleQueue()
        ready = Future[None]()
        # One thread opens and runs it all: a captured graph belongs to the thread that captured it.
        self._thread = threading.Thread(target=self._run, args=(replayed, ready), daemon=True)
        self._thread.start()
        ready.result()

    def infer(
        self, photo: Header, *, max_pixels: int, features: bool = False
    ) -> tuple[Outputs, float]:
        """As `Session.infer`; the seconds are those until the photo's batch was done."""
        preprocess = self.session.bundle.preprocess
        pixels = self._decoding.submit(load, photo, preprocess, max_pixels=max_pixels).result()
        started, waiting = perf_counter(), _Waiting(pixels)
        self._decoded.put(waiting)
        try:
            row = waiting.row.result()
        finally:
            del waiting  # it may hold an exception, whose traceback holds this frame
        return self.session.check_outputs(row, 1, features=features), perf_counter() - started

    def close(self) -> None:
        """End its threads; nobody may be looking any more."""
        self._decoding.shutdown()
        self._decoded.put(None)
        self._thread.join()

    def _run(self, replayed: bool, ready: Future[None]) -> None:
        try:
            batches = _open_batches(self.session, replayed)
        except BaseException as error:
            ready.set_exception(error)
            return
        ready.set_result(None)
        for group in self._groups():
            _run_batch(batches, group)
            group.clear()  # no photo is held while nobody wants another

    def _groups(self) -> Iterator[list[_Waiting]]:
        """What is ready, as soon as anything is, until it is closed."""
        closed = False
        while not closed:
            ready = [self._decoded.get()]
            ready += [self._decoded.get() for _ in range(min(self._decoded.qsize(), LARGEST - 1))]
            closed = None in ready
            group = [each for each in ready if each is not None]
            ready.clear()
            if group:
                yield group


def _run_batch(batches: list[FixedBatch], group: list[_Waiting]) -> None:
    try:
        fitting = next(batch for batch in batches if batch.size >= len(group))
        outputs = fitting.run([each.pixels for each in group])
    except Exception as error:  # whatever it is, the next batch may do
        _fail(group, error)
    else:
        for number, each in enumerate(group):
            each.row.set_result({name: rows[number : number + 1] for name, rows in outputs.items()})


def _fail(group: list[_Waiting], error: Exception) -> None:
    """In a frame of its own: the traceback holds that of `_run_batch`, and all it names."""
    for each in group:
        each.row.set_exception(error)


def in_batches(session: SessionBackend) -> InferenceBackend:
    """A backend with batches, replayed where that works; the session itself where they do not."""
    for replayed in (True, False):
        try:
            return BatchingBackend(session, replayed=replayed)
        except Exception as error:  # the runtime's own, of no common class
            which = "replayed batches" if replayed else "batches"
            log.warning("%s cannot be used on %s: %s", which, session.provider, error)
    return session


def _open_batches(session: Session, replayed: bool) -> list[FixedBatch]:
    """A batch of each size, captured, and found to agree with single photos."""
    graph = open_graph(
        session.bundle.read(MODEL),
        threads=1,
        providers=[CUDA, CPU] if session.provider == CUDA else [CPU],
        replayed=replayed,
    )
    batches = [FixedBatch(session, graph, size) for size in SIZES]
    for batch in batches:
        for seed in range(2):  # the second is a replay
            _compare(session, batch, seed)
    return batches


def _compare(session: Session, batch: FixedBatch, seed: int) -> None:
    side, random = session.bundle.preprocess.image_size, np.random.default_rng(seed)
    pictures = random.integers(0, 256, (batch.size, side, side, 3), dtype=np.uint8)
    outputs = batch.run(list(pictures))
    singles = [session.logits(each[np.newaxis]) for each in pictures]
    for head, output in session.heads.items():
        expected = np.concatenate([single[head] for single in singles])
        furthest = float(np.abs(outputs[output] - expected).max())
        if not furthest <= TOLERANCE * float(np.abs(expected).max()):
            raise FlorilegeError(
                f"batches of {batch.size} give logits of head {head} up to {furthest:g} away from "
                "those of single photos"
            )
