"""Reading a score log back, in blocks, so that memory does not grow with the traffic."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from calibration.live.score_log import NAME, LogHeader
from models.errors import DataError
from models.rotating import numbered_files

PHOTOS_AT_ONCE = 512
HEADER_BYTES = 4096

Logits = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ScoreLog:
    """A log on disk, as it was when it was opened."""

    header: LogHeader
    requests: dict[int, int]  # how many are complete, by their number of photos
    torn: int  # photos left out: torn, or of an incomplete request
    files: tuple[tuple[Path, int], ...]  # those that are read, oldest first, with their sizes

    def blocks(self, *, photos: int = 1) -> Iterator[Logits]:
        """Logits of the requests with this many photos, oldest first.

        Yields:
            float32, shape ``(requests, photos, classes)``, about 512 photos at once.
        """
        for path, size in self.files:
            for block in _read(path, size, self.header):
                rows = _whole(block)
                chosen = rows[block["photos"][rows] == photos]
                if chosen.size:
                    yield block["logits"][chosen].reshape(-1, photos, self.header.classes)


def open_score_log(folder: str | Path, *, model_sha256: str | None = None) -> ScoreLog:
    """Open the log in a folder and count what is in it.

    A torn end, which a crash leaves in a file, is left out and counted.

    Args:
        folder: Where the server wrote it.
        model_sha256: Hash of the graph to be calibrated; by default, that of the newest file.

    Raises:
        DataError: No file of this network, or one that is not a score log of this version.
    """
    found = [file for path in numbered_files(folder, NAME) if (file := _look_at(path)) is not None]
    if not found:
        raise DataError(
            f"{folder} holds no score log: start the server with a score log and wait for traffic"
        )
    wanted = model_sha256 or found[-1][0].model_sha256
    matching = [header for header, _, _ in found if header.model_sha256 == wanted]
    if not matching:
        raise DataError(
            f"the score log in {folder} was written by a different network from the bundle's: "
            "collect traffic with this bundle first"
        )
    header = matching[-1]
    files = tuple((path, size) for its, path, size in found if its == header)
    requests, torn = _count(files, header)
    return ScoreLog(header=header, requests=requests, torn=torn, files=files)


def _look_at(path: Path) -> tuple[LogHeader, Path, int] | None:
    """A file with its header and size; None where it ends within the header, or is gone."""
    try:
        with path.open("rb") as file:
            line, size = file.readline(HEADER_BYTES), file.seek(0, os.SEEK_END)
    except FileNotFoundError:  # rotated away since it was listed
        return None
    if not line.endswith(b"\n"):
        return None
    try:
        return LogHeader.model_validate_json(line), path, size
    except ValidationError as error:
        raise DataError(
            f"{path}: the first line is not a header of a score log, or an earlier version of "
            "florilege wrote it: remove the file, or have the server log to a new folder"
        ) from error


def _count(files: tuple[tuple[Path, int], ...], header: LogHeader) -> tuple[dict[int, int], int]:
    photos, torn = np.zeros(256, dtype=np.int64), 0
    for path, size in files:
        torn += (size - len(header.line())) % header.photo.itemsize > 0
        for block in _read(path, size, header):
            rows = _whole(block)
            torn += len(block) - len(rows)
            photos += np.bincount(block["photos"][rows], minlength=256)
    return {int(n): int(photos[n]) // int(n) for n in np.flatnonzero(photos)}, torn


def _read(path: Path, size: int, header: LogHeader) -> Iterator[NDArray[np.void]]:
    """The photos of a file, in blocks that end where a request does."""
    start, kept = len(header.line()), np.empty(0, dtype=header.photo)
    left = (size - start) // header.photo.itemsize
    try:
        file = path.open("rb")
    except FileNotFoundError as error:
        raise DataError(
            f"{path} was rotated away while it was read: copy the folder and read the copy"
        ) from error
    with file:
        file.seek(start)
        while left > 0:
            found = np.fromfile(file, header.photo, min(left, PHOTOS_AT_ONCE))
            left = left - len(found) if len(found) else 0  # or it has been cut short since
            block = np.concatenate([kept, found])
            ends = np.flatnonzero(block["number"] + 1 == block["photos"])
            end = int(ends[-1]) + 1 if ends.size else 0
            kept = block[end:]
            yield block[:end]
    yield kept  # of an incomplete request


def _whole(block: NDArray[np.void]) -> NDArray[np.intp]:
    """Rows of the photos whose request is complete."""
    rows = np.flatnonzero(block["number"] < block["photos"])
    photos = block["photos"][rows].astype(np.intp)
    request = (rows - block["number"][rows]) * 256 + photos  # where it begins, and how long it is
    _, which, counts = np.unique(request, return_inverse=True, return_counts=True)
    whole: NDArray[np.intp] = rows[counts[which] == photos]
    return whole
