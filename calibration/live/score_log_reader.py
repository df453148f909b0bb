"""Reading a score log back, in blocks, so that memory does not grow with the traffic."""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from calibration.live.score_log import LogHeader, checksums, log_files
from models.errors import DataError

ROWS_AT_ONCE = 512
HEADER_BYTES = 4096

Logits = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class ScoreLog:
    """A log on disk, as it was when it was opened.

    Attributes:
        header: Which network spoke.
        requests: Whole requests by their number of photos.
        torn: Photos left out: torn, damaged, or of a request that is not whole.
        other_models: Files left out, because another network spoke.
        files: Those that are read, the oldest first, with their sizes.
    """

    header: LogHeader
    requests: dict[int, int]
    torn: int
    other_models: int
    files: tuple[tuple[Path, int], ...]

    def blocks(self, *, photos: int = 1) -> Iterator[Logits]:
        """Logits of the requests with so many photos, the oldest first.

        Yields:
            float32, shape ``(requests, photos, classes)``, at most 512 photos at once.
        """
        for path, size in self.files:
            for records in _read(path, size, self.header):
                whole, _ = _requests(records)
                rows = whole.get(photos)
                if rows is not None:
                    yield records["logits"][rows]


def open_score_log(folder: str | Path, *, model_sha256: str | None = None) -> ScoreLog:
    """Open the log in a folder and count what is in it.

    A torn end of a file, which a crash leaves, and records whose checksum is wrong are left out
    and counted.

    Args:
        folder: Where the server wrote it.
        model_sha256: Of the graph that is to be calibrated; by default that of the newest file.

    Raises:
        DataError: No file of this network, or one that is no score log.
    """
    paths = log_files(folder)
    headers = {path: header for path in paths if (header := header_of(path)) is not None}
    if not headers:
        raise DataError(
            f"{folder} holds no score log: start the server with a score log and wait for traffic"
        )
    wanted = model_sha256 or list(headers.values())[-1].model_sha256
    matching = [path for path in headers if headers[path].model_sha256 == wanted]
    if not matching:
        raise DataError(
            f"the score log in {folder} was written by another network than the bundle's: "
            "collect traffic with this bundle first"
        )
    header = headers[matching[-1]]
    files = tuple((path, _size(path)) for path in matching if headers[path] == header)
    requests, torn = _count(files, header)
    return ScoreLog(
        header=header,
        requests=requests,
        torn=torn,
        other_models=len(headers) - len(files),
        files=files,
    )


def _count(files: tuple[tuple[Path, int], ...], header: LogHeader) -> tuple[dict[int, int], int]:
    requests: dict[int, int] = {}
    torn = 0
    for path, size in files:
        torn += (size - len(header.line())) % header.record.itemsize > 0
        for records in _read(path, size, header):
            whole, left_out = _requests(records)
            torn += left_out
            for photos, rows in whole.items():
                requests[photos] = requests.get(photos, 0) + len(rows)
    return dict(sorted(requests.items())), torn


def header_of(path: Path) -> LogHeader | None:
    """What the first line says; None where the file is empty, ends within it, or is gone."""
    try:
        with path.open("rb") as file:
            line = file.readline(HEADER_BYTES)
    except FileNotFoundError:  # rotated away since it was listed
        return None
    if not line.endswith(b"\n"):
        return None
    try:
        return LogHeader.of_line(line)
    except ValueError as error:
        raise DataError(f"{path}: {error}; remove the file") from error


def _size(path: Path) -> int:
    with _opened(path) as file:
        return file.seek(0, os.SEEK_END)


def _read(path: Path, size: int, header: LogHeader) -> Iterator[NDArray[np.void]]:
    """Records in blocks that end with a request."""
    record, start = header.record, len(header.line())
    left, kept = (size - start) // record.itemsize, np.empty(0, dtype=record)
    with _opened(path) as file:
        file.seek(start)
        while left > 0:
            content = file.read(min(left, ROWS_AT_ONCE) * record.itemsize)
            whole = len(content) // record.itemsize
            if not whole:  # shortened since it was opened
                break
            left -= whole
            records = np.frombuffer(content[: whole * record.itemsize], dtype=record)
            records = np.concatenate([kept, records])
            end = _last_end(records) if left else len(records)
            kept = records[end:]
            if end:
                yield records[:end]
    if len(kept):
        yield kept


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb")
    except FileNotFoundError as error:
        raise DataError(
            f"{path} was rotated away while it was read: copy the folder and read the copy"
        ) from error


def _last_end(records: NDArray[np.void]) -> int:
    """Where the last request that ends among the records ends."""
    ends = np.flatnonzero(records["number"] + 1 == records["photos"])
    return int(ends[-1]) + 1 if ends.size else 0


def _requests(records: NDArray[np.void]) -> tuple[dict[int, NDArray[np.int64]], int]:
    """Rows of whole requests by their number of photos, each ``(requests, photos)``."""
    sound = records["checksum"] == checksums(records)
    found: dict[int, list[NDArray[np.int64]]] = {}
    row, used = 0, 0
    while row < len(records):
        photos = int(records["photos"][row]) if sound[row] else 0
        rows = np.arange(row, row + photos)
        if photos and _whole(records, sound, rows):
            found.setdefault(photos, []).append(rows)
            row, used = row + photos, used + photos
        else:
            row += 1
    return {photos: np.stack(rows) for photos, rows in found.items()}, len(records) - used


def _whole(records: NDArray[np.void], sound: NDArray[np.bool_], rows: NDArray[np.int64]) -> bool:
    if rows[-1] >= len(records) or not sound[rows].all():
        return False
    same = (records["photos"][rows] == rows.size).all()
    return bool(same and (records["number"][rows] == np.arange(rows.size)).all())
