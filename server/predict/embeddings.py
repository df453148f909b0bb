"""The features of photos as one NumPy array on disk, row by row.

The array has its final shape from the start. It grows as ``NAME.part`` and gets its name when it
is complete, together with ``NAME.paths.csv``, which names the photo of each row.
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
from florilege.server.predict.photos import Observation, count_photos, display_path
from florilege.server.predict.resumable_output import write_all


class Embeddings:
    """Writes features to a ``.npy`` file; always `close` it.

    Args:
        output: The file; little-endian float32, ``(photos, dimensions)``.
        observations: The photos, in the order of the rows.
        dimensions: Length of a row.
        finished: Number of observations whose rows an earlier run has written.

    Raises:
        UsageError: These rows are missing.
        OSError: The file cannot be written.
    """

    def __init__(
        self, output: Path, observations: Sequence[Observation], dimensions: int, finished: int = 0
    ) -> None:
        self.output, self.observations = output, observations
        self.part = output.with_name(f"{output.name}.part")
        self.paths = output.with_name(f"{output.name}.paths.csv")
        photos, before = count_photos(observations), count_photos(observations[:finished])
        self._file: BinaryIO | None = None
        head = _head((photos, dimensions))
        self._rows, self._dimensions, self._head_size = before, dimensions, len(head)
        if before == photos and output.exists() and not self.part.exists():
            return  # complete already
        size = len(head) + 4 * dimensions * before
        if finished and not (self.part.exists() and self.part.stat().st_size >= size):
            raise UsageError(
                f"{output} cannot be resumed: {self.part.name} is missing or too short; delete the "
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
        """Write the paths of the rows, and give the file its name."""
        if self._file is None:
            return
        os.fsync(self._file.fileno())
        text = io.StringIO(newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow(("row", "path", "observation"))
        photos = ((path, plant.name) for plant in self.observations for path in plant.photos)
        writer.writerows((row, display_path(path), name) for row, (path, name) in enumerate(photos))
        write_atomic(self.paths, text.getvalue().encode())
        self.part.replace(self.output)

    def close(self) -> None:
        """Close the file; delete it if the run finished nothing."""
        if self._file is not None:
            self._file.close()
            if not self._rows:
                self.part.unlink(missing_ok=True)


def _head(shape: tuple[int, int]) -> bytes:
    buffer = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(buffer, header)
    return buffer.getvalue()
