"""Logits of a whole split, computed the way the server computes them.

One photo at a time goes through decoder and network, in a thread pool: no batch that could
change a last digit, and the very code that answers requests. What comes out is kept in a
temporary file, so that memory does not grow with photos times classes.
"""

import hashlib
import os
import tempfile
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import BinaryIO, NamedTuple, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from data.dataset import Split
from models.bundle import MODEL, Bundle
from models.errors import DataError
from models.images import ImageError, load
from models.progress import progress
from models.session import Session

Logits = NDArray[np.float32]

ROWS_AT_ONCE = 512
IN_MEMORY_BYTES = 1 << 26
"""Logits of a head up to this size never touch the disk."""
NAMES_SHOWN = 10


class ScoredSplit(Protocol):
    """Logits and labels of a split, read block by block as often as wanted."""

    @property
    def heads(self) -> tuple[str, ...]:
        """Names of the heads."""

    @property
    def labels(self) -> NDArray[np.int64]:
        """True class indices, shape ``(rows,)``."""

    @property
    def classes(self) -> int:
        """Number of classes."""

    def blocks(self, head: str) -> Iterator[tuple[Logits, NDArray[np.int64]]]:
        """Logits ``(batch, classes)`` of a head with their labels ``(batch,)``, rows in order."""

    def close(self) -> None:
        """Give back what holds the logits."""


class LogitStore:
    """Logits of some heads, appended row by row and read in blocks; a :class:`ScoredSplit`.

    ``close()`` deletes what was kept; so does forgetting the store.

    Args:
        heads: Names of the heads.
        classes: Number of classes.
        labels: True class indices of the rows to come, shape ``(rows,)``.
    """

    def __init__(self, heads: tuple[str, ...], classes: int, labels: NDArray[np.int64]) -> None:
        self.heads, self.classes, self.labels = heads, classes, labels
        self._files = {head: _temporary_file() for head in heads}
        self.close = weakref.finalize(self, _close, tuple(self._files.values()))

    def append(self, logits: dict[str, Logits]) -> None:
        """Add the next rows, ``(batch, classes)`` for each head.

        Raises:
            DataError: The temporary folder is full.
        """
        try:
            for head, file in self._files.items():
                file.write(np.ascontiguousarray(logits[head], dtype=np.float32).tobytes())
        except OSError as error:
            raise DataError(
                f"scores cannot be kept in {tempfile.gettempdir()} ({error.strerror}): free space "
                "there, or name another folder with the environment variable TMPDIR"
            ) from error

    def blocks(self, head: str) -> Iterator[tuple[Logits, NDArray[np.int64]]]:
        """Logits ``(batch, classes)`` of a head with their labels ``(batch,)``, rows in order."""
        file = self._files[head]
        for start in range(0, len(self.labels), ROWS_AT_ONCE):
            labels = self.labels[start : start + ROWS_AT_ONCE]
            file.seek(start * self.classes * 4)
            content = file.read(len(labels) * self.classes * 4)
            yield np.frombuffer(content, np.float32).reshape(len(labels), -1), labels


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """The logits of a split and what they were computed from.

    Attributes:
        logits: By head, in the order of the split's rows.
        split: Name of the split.
        data_sha256: Over the bytes and class ids of all photos, in order.
        model_sha256: Of ``model.onnx``.
    """

    logits: ScoredSplit
    split: str
    data_sha256: str
    model_sha256: str


def score_split(bundle: Bundle, split: Split, *, device: str = "auto") -> Scoring:
    """Run every photo of a split through the bundle.

    Args:
        bundle: An opened bundle.
        split: The photos; labels index the bundle's classes.
        device: ``auto``, ``cpu`` or ``cuda``.

    Raises:
        DataError: The split is empty, or photos cannot be read; the message lists them.
    """
    if not len(split):
        raise DataError(f"split {split.name!r} has no photos: name another with --split")
    session = Session(bundle, device=device)

    def score(row: int) -> _Scored:
        return _score(session, bundle, split, row)

    store = LogitStore(tuple(bundle.heads), len(bundle.classes), split.labels)
    try:
        with progress(len(split), f"scoring {split.name}") as advance:
            data_sha256 = _gather(in_order(score, len(split)), store, bundle, split, advance)
    except BaseException:
        store.close()
        raise
    return Scoring(
        logits=store,
        split=split.name,
        data_sha256=data_sha256,
        model_sha256=bundle.manifest.files[MODEL],
    )


def _gather(
    results: Iterator["_Scored"],
    store: LogitStore,
    bundle: Bundle,
    split: Split,
    advance: Callable[[int], None],
) -> str:
    """Keep the logits of every row; gives the hash of the data."""
    digest, failures = hashlib.sha256(), list[str]()
    for row, scored in enumerate(results):
        advance(1)
        if isinstance(scored.outcome, str):
            failures.append(scored.outcome)
        elif not failures:
            store.append(scored.outcome)
        digest.update(scored.sha256)
        digest.update(bundle.classes.ids[split.labels[row]].encode() + b"\0")
    _refuse(failures, len(split))
    return digest.hexdigest()


class _Scored(NamedTuple):
    outcome: dict[str, Logits] | str  # the logits, or why there are none
    sha256: bytes  # of the photo


def _score(session: Session, bundle: Bundle, split: Split, row: int) -> _Scored:
    try:
        content = split.read(row)
        image = load(content, bundle.preprocess)
    except (OSError, ImageError) as error:
        return _Scored(f"{split.names[row]}: {error}", b"")
    return _Scored(session.logits(image[np.newaxis]), hashlib.sha256(content).digest())


def in_order(work: Callable[[int], _Scored], count: int) -> Iterator[_Scored]:
    """``work(0)``, ``work(1)``, ... computed by as many threads as there are cores."""
    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        rows = iter(range(count))
        waiting: deque[Future[_Scored]] = deque(
            pool.submit(work, row) for row in islice(rows, 4 * workers)
        )
        while waiting:
            yield waiting.popleft().result()
            waiting.extend(pool.submit(work, row) for row in islice(rows, 1))


def _refuse(failures: list[str], rows: int) -> None:
    if not failures:
        return
    shown = "\n".join(f"  {failure}" for failure in failures[:NAMES_SHOWN])
    more = len(failures) - NAMES_SHOWN
    rest = f"\n  and {more} more" if more > 0 else ""
    raise DataError(
        f"{len(failures)} of {rows} photos cannot be read; remove or mend them and start again "
        f"(`florilege data check` lists all):\n{shown}{rest}"
    )


def _temporary_file() -> BinaryIO:
    return cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES))


def _close(files: tuple[BinaryIO, ...]) -> None:
    for file in files:
        file.close()
