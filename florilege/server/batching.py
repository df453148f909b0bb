"""Dynamic batching on a GPU: threads decode, and the network runs on the photos that are ready.

Photos that are decoded while a batch runs form the next one. So no photo waits for a batch to
fill, and batches grow with the load. On a CPU photos are not batched: batches gain at most 8 %
there, and one slow photo would delay the others.
"""

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from florilege.cores import cores
from florilege.errors import FlorilegeError
from florilege.models.bundle import MODEL
from florilege.models.images import Header, load
from florilege.models.runtime import CPU, CUDA, open_graph
from florilege.models.session import FixedBatch, Floats, Outputs, Session

log = logging.getLogger("florilege.server")

SIZES: Final = (1, 2, 4, 8, 16, 32)  # of batches; a batch is padded to the next size
LARGEST: Final = SIZES[-1]
TOLERANCE: Final = 1e-3
"""Maximum difference from the logits of single photos, as a share of the largest."""


@dataclass(frozen=True)
class _DecodedPhoto:
    """A decoded photo, and the future of its row of each output of the graph."""

    pixels: NDArray[np.uint8]
    row: Future[dict[str, Floats]] = field(default_factory=Future)


class BatchingSession:
    """Runs the network on batches of the photos that are ready; any thread may call it.

    If ``replayed``, each batch size is captured once and replayed, as a CUDA graph. Opening fails
    if the runtime or the GPU fails, or if the logits of batches differ from those of single photos.
    """

    def __init__(self, session: Session, *, replayed: bool) -> None:
        self.session, self.provider = session, session.provider
        self.dimensions, self.concurrency = session.dimensions, cores() + LARGEST
        self._decoding = ThreadPoolExecutor(cores(), "decode")  # in the order of arrival
        self._decoded = SimpleQueue[_DecodedPhoto]()
        # One thread opens and runs it all: a captured graph belongs to the thread that captured it.
        self._network = ThreadPoolExecutor(1, "network")
        self._batches = self._network.submit(_open_batches, session, replayed).result()

    def infer(
        self, photo: Header | Image, *, max_pixels: int, features: bool = False
    ) -> tuple[Outputs, float]:
        """As `Session.infer`; the seconds count until the photo's batch is done."""
        preprocess = self.session.bundle.preprocess
        pixels = self._decoding.submit(load, photo, preprocess, max_pixels=max_pixels).result()
        started, waiting = perf_counter(), _DecodedPhoto(pixels)
        self._decoded.put(waiting)
        self._network.submit(self._run_batch)
        try:
            row = waiting.row.result()
        finally:
            del waiting  # it may hold an exception, whose traceback holds this frame
        return self.session.check_outputs(row, 1, features=features), perf_counter() - started

    def close(self) -> None:
        """Stop its threads. No call may be running."""
        self._decoding.shutdown()
        self._network.shutdown()

    def _run_batch(self) -> None:
        """Run the photos that are ready, if an earlier batch has left any."""
        group = [self._decoded.get() for _ in range(min(self._decoded.qsize(), LARGEST))]
        if not group:
            return
        try:
            smallest = next(batch for batch in self._batches if batch.size >= len(group))
            outputs = smallest.run([waiting.pixels for waiting in group])
        except Exception as error:  # whatever fails, the next batch may succeed
            _fail(group, error)
        else:
            for number, waiting in enumerate(group):
                row = {name: rows[number : number + 1] for name, rows in outputs.items()}
                waiting.row.set_result(row)
        finally:
            group.clear()  # the traceback of an error holds this frame


def _fail(group: list[_DecodedPhoto], error: Exception) -> None:
    """Fail a group outside `_run_batch`, whose variables the traceback keeps alive."""
    for waiting in group:
        waiting.row.set_exception(error)


def in_batches(session: Session) -> Session | BatchingSession:
    """A session that runs batches, replayed if possible; ``session`` itself if batches fail."""
    for replayed in (True, False):
        try:
            return BatchingSession(session, replayed=replayed)
        except Exception as error:  # the runtime's own, of no common class
            kind = "replayed batches" if replayed else "batches"
            log.warning("%s cannot be used on %s: %s", kind, session.provider, error)
    return session


def _open_batches(session: Session, replayed: bool) -> list[FixedBatch]:
    """Open a batch of each size, and check that it agrees with single photos."""
    graph = open_graph(
        session.bundle.read(MODEL),
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
    singles = [session.logits(picture[np.newaxis]) for picture in pictures]
    for head, output in session.heads.items():
        expected = np.concatenate([single[head] for single in singles])
        difference = float(np.abs(outputs[output] - expected).max())
        if not difference <= TOLERANCE * float(np.abs(expected).max()):
            raise FlorilegeError(
                f"batches of {batch.size} give logits of head {head} up to {difference:g} away "
                "from those of single photos"
            )
