"""Logits of a split, kept outside memory where they are many, and what they were computed from."""

import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from models.errors import DataError

Logits = NDArray[np.float32]

ROWS_AT_ONCE = 512
LOGITS_AT_ONCE = 1 << 19
"""With many classes this means fewer rows: whoever reads a block makes several copies of it."""
IN_MEMORY_BYTES = 1 << 26
"""Logits of a head up to this size never touch the disk."""


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

    def rows(self, head: str, rows: NDArray[np.int64]) -> Logits:
        """Logits of some rows of a head, in the order asked for, ``(rows, classes)``."""

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
        step = min(ROWS_AT_ONCE, max(1, LOGITS_AT_ONCE // self.classes))
        for start in range(0, len(self.labels), step):
            labels = self.labels[start : start + step]
            file.seek(start * self.classes * 4)
            content = file.read(len(labels) * self.classes * 4)
            yield np.frombuffer(content, np.float32).reshape(len(labels), -1), labels

    def rows(self, head: str, rows: NDArray[np.int64]) -> Logits:
        """Logits of some rows of a head, in the order asked for, ``(rows, classes)``."""
        file, found = self._files[head], np.empty((len(rows), self.classes), dtype=np.float32)
        for place, row in enumerate(rows.tolist()):
            file.seek(row * self.classes * 4)
            found[place] = np.frombuffer(file.read(self.classes * 4), np.float32)
        return found


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """The logits of a split and what they were computed from.

    Attributes:
        logits: By head, in the order of the split's rows.
        split: Name of the split.
        data_sha256: Over the bytes and class ids of all photos, in order.
        model_sha256: Of ``model.onnx``.
        observations: One id a row, shared by photos of one plant; None where unknown.
        features: Features in place of logits, under the head ``features``; None where they were
            not asked for.
        photos: Hash of each photo's bytes, in order; kept along with features.
    """

    logits: ScoredSplit
    split: str
    data_sha256: str
    model_sha256: str
    observations: Sequence[str] | None = None
    features: ScoredSplit | None = None
    photos: tuple[bytes, ...] = ()


def _temporary_file() -> BinaryIO:
    return cast(BinaryIO, tempfile.SpooledTemporaryFile(max_size=IN_MEMORY_BYTES))


def _close(files: tuple[BinaryIO, ...]) -> None:
    for file in files:
        file.close()
