"""The features of photos as one NumPy array on disk, row by row.

The array has its final shape from the start: it grows as ``NAME.part`` and takes its name when it
is complete, together with ``NAME.paths.csv``, which says whose each row is.
"""

import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from florilege.errors import UsageError
from florilege.files import write_atomic
from florilege.server.predict.photos import Observation, display_path
from florilege.server.predict.resumable_output import write_all


class Embeddings:
    """Features on their way to a ``.npy`` file; `close` it whatever happens.

    Args:
        output: The file; little-endian float32, ``(photos, dimensions)``.
        observations: Whose photos they are; rows are in this order.
        dimensions: Length of a row.
        finished: Observations whose rows an earlier run has written.

    Raises:
        UsageError: These rows are gone.
        OSError: The file cannot be written.
    """

    def __init__(
        self, output: Path, observations: Sequence[Observation], dimensions: int, finished: int = 0
    ) -> None:
        self.output, self.observations = output, observations
        self.part = output.with_name(f"{output.name}.part")
        self.paths = output.with_name(f"{output.name}.paths.csv")
        photos, before = _count_photos(observations), _count_photos(observations[:finished])
        self._file: BinaryIO | None = None
        head = _head((photos, dimensions))
        self._rows, self._dimensions, self._head_size = before, dimensions, len(head)
        if before == photos and output.exists() and not self.part.exists():
            return  # complete already
        size = len(head) + 4 * dimensions * before
        if finished and not (self.part.exists() and self.part.stat().st_size >= size):
            raise UsageError(
                f"{output} cannot be resumed: {self.part.name} is gone or too short; delete the "
                ".part of the answers too, and start again without --resume"
            )
        self._file = self.part.open("r+b" if finished else "wb", buffering=0)
        if not finished:
            write_all(self._file, head)
        self._file.truncate(size)
        self._file.seek(size)

    def count_failed(self) -> int:
        """How many photos failed in an earlier run: their rows are NaN."""
        if not self._rows:
            return 0
        path = self.part if self.part.exists() else self.output
        rows = np.memmap(path, "<f4", "r", self._head_size, (self._rows, self._dimensions))
        return int(np.isnan(rows[:, 0]).sum())

    def add(self, features: NDArray[np.float32]) -> None:
        """Write the rows of the next observation, ``(photos, dimensions)``."""
        assert self._file is not None
        self._rows += len(features)
        write_all(self._file, features.astype("<f4").tobytes())

    def finish(self) -> None:
        """Say whose the rows are, and give the file its name."""
        if self._file is None:
            return
        os.fsync(self._file.fileno())
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("row", "path", "observation"))
        photos = ((path, one.name) for one in self.observations for path in one.photos)
        writer.writerows((row, display_path(path), name) for row, (path, name) in enumerate(photos))
        write_atomic(self.paths, text.getvalue().encode())
        self.part.replace(self.output)

    def close(self) -> None:
        """Let go of the file; nothing is left of a run that finished nothing."""
        if self._file is not None:
            self._file.close()
            if not self._rows:
                self.part.unlink(missing_ok=True)


def _count_photos(observations: Sequence[Observation]) -> int:
    return sum(len(one.photos) for one in observations)


def _head(shape: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    about = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, about)
    return buffer.getvalue()
