"""What the network says about the photos of a split, kept in files and read back in blocks."""

import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from models.errors import DataError

Outputs = NDArray[np.float32]
Labels = NDArray[np.int64]

FEATURES = "features"
"""Name of the output that holds what the last layer is given."""

ROWS_AT_ONCE = 512
NUMBERS_AT_ONCE = 1 << 19
"""With many columns this means fewer rows: whoever reads a block makes several copies of it."""


def rows_at_once(columns: int) -> int:
    """How many rows of ``columns`` numbers are read together, at least one."""
    return min(ROWS_AT_ONCE, max(1, NUMBERS_AT_ONCE // columns))


class OutputStore:
    """Outputs of a network, such as the logits of each head, appended row by row.

    They are kept in temporary files, so that memory grows neither with the rows nor with the
    classes. ``close()`` deletes them; so does forgetting the store.

    Attributes:
        labels: True class indices, shape ``(rows,)``.

    Args:
        columns: Numbers in a row of each output, by its name.
        labels: True class indices of the rows to come, shape ``(rows,)``.

    Raises:
        DataError: There is no temporary folder to write to.
    """

    def __init__(self, columns: Mapping[str, int], labels: Labels) -> None:
        self.labels = labels
        self._columns = dict(columns)
        try:
            self._files = {name: _temporary_file() for name in columns}
        except OSError as error:
            raise _no_room(error) from error
        self.close = weakref.finalize(self, _close, tuple(self._files.values()))

    def append(self, outputs: Mapping[str, Outputs]) -> None:
        """Add the next rows, ``(batch, columns)`` of each output.

        Raises:
            DataError: The temporary folder is full.
        """
        try:
            for name, file in self._files.items():
                file.write(np.ascontiguousarray(outputs[name], dtype=np.float32).tobytes())
        except OSError as error:
            raise _no_room(error) from error

    def blocks(self, *names: str) -> Iterator[tuple[tuple[Outputs, ...], Labels]]:
        """Outputs of the same rows and their labels, all rows in order.

        What belongs together is read together: a block has the same rows of every output.

        Args:
            names: The outputs; each block has them in this order, ``(batch, columns)``.
        """
        step = rows_at_once(max(self._columns[name] for name in names))
        for start in range(0, len(self.labels), step):
            labels = self.labels[start : start + step]
            yield tuple(self._read(name, start, len(labels)) for name in names), labels

    def rows(self, name: str, rows: NDArray[np.int64]) -> Outputs:
        """Some rows of an output in the order asked for, ``(rows, columns)``."""
        found = np.empty((len(rows), self._columns[name]), dtype=np.float32)
        for place, row in enumerate(rows.tolist()):
            found[place] = self._read(name, row, 1)
        return found

    def _read(self, name: str, first: int, count: int) -> Outputs:
        file, width = self._files[name], self._columns[name]
        file.seek(first * width * 4)
        return np.frombuffer(file.read(count * width * 4), np.float32).reshape(count, width)


@dataclass(frozen=True, kw_only=True)
class Scoring:
    """What the network says about a split, and what that was computed from.

    Attributes:
        outputs: By name: the logits of each head, and :data:`FEATURES` where they were asked for.
        heads: Names of the heads.
        split: Name of the split.
        data_sha256: Over the bytes and class ids of all photos, in order.
        model_sha256: Of ``model.onnx``.
        observations: One id a row, shared by photos of one plant; None where unknown.
        photos: Hash of each photo's bytes, in order.
    """

    outputs: OutputStore
    heads: tuple[str, ...]
    split: str
    data_sha256: str
    model_sha256: str
    observations: Sequence[str] | None = None
    photos: tuple[bytes, ...] = ()

    @property
    def labels(self) -> Labels:
        """True class indices, shape ``(rows,)``."""
        return self.outputs.labels

    def close(self) -> None:
        """Delete the outputs."""
        self.outputs.close()


def _no_room(error: OSError) -> DataError:
    try:
        folder = tempfile.gettempdir()
    except OSError:
        folder = "a temporary folder"
    return DataError(
        f"scores cannot be kept in {folder} ({error.strerror or error}): free space there, or name "
        "another folder with the environment variable TMPDIR"
    )


def _temporary_file() -> BinaryIO:
    return cast(BinaryIO, tempfile.TemporaryFile())


def _close(files: tuple[BinaryIO, ...]) -> None:
    for file in files:
        file.close()
