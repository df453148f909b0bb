"""The features of photos as one NumPy array on disk, row by row.

The array has its final shape from the start. It grows as ``NAME.part`` and gets its name when it
is complete, together with ``NAME.paths.csv``, which names the photo of each row.
"""

import io
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from florilege.errors import UsageError
from florilege.server.predict.photos import Observation, count_photos, display_path
from florilege.server.predict.resumable_output import Tally, write_all
from florilege.tables import Table, write_table

WriteRows = Callable[[NDArray[np.float32]], None]  # of the next observation, (photos, dimensions)


@contextmanager
def features_file(
    output: Path,
    observations: Sequence[Observation],
    dimensions: int,
    tally: Tally,
    *,
    resumable: bool,
) -> Iterator[WriteRows]:
    """Write a ``.npy`` file while the block runs: little-endian float32, ``(photos, dimensions)``.

    An earlier run has written the rows of the observations that ``tally`` counts as finished. At
    the end ``tally.failed`` is the number of photos whose row is NaN.
    """
    part = output.with_name(f"{output.name}.part")
    photos, rows = count_photos(observations), count_photos(observations[: tally.finished])
    buffer = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (photos, dimensions)}
    np.lib.format.write_array_header_1_0(buffer, header)
    head = buffer.getvalue()
    size = len(head) + 4 * dimensions * rows
    if rows == photos and output.exists() and not part.exists():
        output.replace(part)  # the earlier run was stopped after it had completed this file
    if rows and not (part.exists() and part.stat().st_size >= size):
        raise UsageError(
            f"{output} cannot be resumed: {part.name} is missing or too short; delete the .part of "
            "the answers too, and start again without --resume"
        )
    try:
        if not rows:
            part.write_bytes(head)
        with part.open("ab", buffering=0) as file:
            file.truncate(size)
            yield lambda features: write_all(file, features.astype("<f4").tobytes())
            os.fsync(file.fileno())
        tally.failed = int(np.isnan(np.load(part, mmap_mode="r")[:, 0]).sum())
        write_table(output.with_name(f"{output.name}.paths.csv"), _paths(observations))
        part.replace(output)
    finally:
        if not (resumable and tally.finished):
            part.unlink(missing_ok=True)


def _paths(observations: Sequence[Observation]) -> Table:
    """The photo of each row."""
    photos = [(each.name or "", path) for each in observations for path in each.photos]
    return {
        "row": [str(row) for row in range(len(photos))],
        "path": [display_path(path) for _, path in photos],
        "observation": [name for name, _ in photos],
    }
