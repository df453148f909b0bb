"""A log of what the network said about live photos: numbers only, in files of bounded size.

It is there to calibrate again from traffic, since a threshold for a mean set size needs no labels.
It holds the logits of the served head, from which scores and energies follow bit for bit. No photo,
no name, no id, no address and no time is written.

A file starts with a line of json that says which network spoke. Then come records of one size, a
photo each: how many photos the request had, which of them this is, its logits, a checksum. Files
are numbered; the newest has the highest number. When one is full the next is begun and the oldest
deleted.
"""

import json
import os
import re
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any
from zlib import crc32

import numpy as np
from numpy.typing import ArrayLike, NDArray

FORMAT = "florilege-scores"
FORMAT_VERSION = 1
NAME = re.compile(r"scores-(\d{6})\.log")
MEBIBYTE = 2**20


@dataclass(frozen=True, kw_only=True)
class LogHeader:
    """Which network spoke.

    Attributes:
        classes: Number of classes.
        head: The served head.
        score_kind: How its logits become scores.
        model_sha256: Of the graph.
    """

    classes: int
    head: str
    score_kind: str
    model_sha256: str

    def line(self) -> bytes:
        """The first line of a file."""
        plain = {"format": FORMAT, "version": FORMAT_VERSION, **asdict(self)}
        return json.dumps(plain).encode() + b"\n"

    @classmethod
    def of_line(cls, line: bytes) -> "LogHeader":
        """Read the first line of a file.

        Raises:
            ValueError: It is something else, or of a newer version.
        """
        try:
            plain: Mapping[str, Any] = json.loads(line)
            if (plain["format"], plain["version"]) != (FORMAT, FORMAT_VERSION):
                raise ValueError(f"not a {FORMAT} file of version {FORMAT_VERSION}")
            header = cls(**{field.name: plain[field.name] for field in fields(cls)})
            if not isinstance(header.classes, int) or header.classes < 1:
                raise ValueError(f"classes must be at least 1, got {header.classes!r}")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"the first line is no header of a score log ({error})") from error
        return header

    @property
    def record(self) -> np.dtype[np.void]:
        """How one photo is stored."""
        return np.dtype(
            [
                ("photos", "u1"),
                ("number", "u1"),
                ("logits", "<f4", (self.classes,)),
                ("checksum", "<u4"),
            ]
        )


class ScoreLogWriter:
    """Appends the logits of requests; any number of threads may call it.

    A request is written by one ``write`` to a file opened for appending, so a crash can only tear
    the end of a file, which a reader leaves out. A file that a write failed in is not written to
    again. Several processes may share a folder: each opens files of its own.

    Args:
        folder: Made where it is not there; only its owner may read it.
        header: Which network speaks.
        max_bytes: A file that has reached this is followed by the next.
        max_files: So many are kept; the log never holds more than about
            ``max_bytes * max_files`` bytes.

    Raises:
        ValueError: A limit below 1.
    """

    def __init__(
        self,
        folder: str | Path,
        header: LogHeader,
        *,
        max_bytes: int = 64 * MEBIBYTE,
        max_files: int = 8,
    ) -> None:
        if max_bytes < 1 or max_files < 1:
            raise ValueError(
                f"max_bytes and max_files must be at least 1, got {max_bytes} and {max_files}"
            )
        self.folder, self.header = Path(folder), header
        self.max_bytes, self.max_files = max_bytes, max_files
        self.failed = 0
        self.problem: str | None = None
        self._file: int | None = None
        self._bytes = 0
        self._lock = threading.Lock()

    def append(self, logits: ArrayLike) -> bool:
        """Add the photos of one request.

        A full disk must not fail a request: where nothing could be written the answer is False,
        ``failed`` counts on, and ``problem`` says why.

        Args:
            logits: Of the served head, shape ``(photos, classes)``, 1 to 255 photos.

        Raises:
            ValueError: Another shape.
        """
        content = _records(logits, self.header)
        with self._lock:
            try:
                self._write(content)
            except OSError as error:
                self._close()
                self.failed, self.problem = self.failed + 1, str(error)
                return False
        return True

    def close(self) -> None:
        """Close the file; a later ``append`` begins another."""
        with self._lock:
            self._close()

    def _write(self, content: bytes) -> None:
        if self._file is not None and self._bytes >= self.max_bytes:
            self._close()
        if self._file is None:
            self._file = self._next_file()
            self._bytes = 0
            content = self.header.line() + content
        written = os.write(self._file, content)
        self._bytes += written
        if written < len(content):
            raise OSError(f"only {written} of {len(content)} bytes were written")

    def _next_file(self) -> int:
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        existing = log_files(self.folder)
        for path in existing[: max(0, len(existing) + 1 - self.max_files)]:
            path.unlink(missing_ok=True)
        number = _number(existing[-1]) + 1 if existing else 1
        while True:
            try:
                flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
                return os.open(self.folder / f"scores-{number:06d}.log", flags, 0o600)
            except FileExistsError:  # another process took the number
                number += 1

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def log_files(folder: str | Path) -> list[Path]:
    """The files of a log, the oldest first."""
    paths = (path for path in Path(folder).glob("scores-*.log") if NAME.fullmatch(path.name))
    return sorted(paths, key=_number)


def checksums(records: NDArray[np.void]) -> NDArray[np.uint32]:
    """Checksum of each record without its own, shape ``(records,)``."""
    return np.array([crc32(record.tobytes()[:-4]) for record in records], dtype=np.uint32)


def _records(logits: ArrayLike, header: LogHeader) -> bytes:
    values = np.asarray(logits, dtype=np.float32)
    if values.ndim != 2 or values.shape[1] != header.classes or not 1 <= len(values) <= 255:
        raise ValueError(
            f"logits must have shape (1 to 255 photos, {header.classes}), got {values.shape}"
        )
    records = np.zeros(len(values), dtype=header.record)
    records["photos"], records["number"] = len(values), np.arange(len(values))
    records["logits"] = values
    records["checksum"] = checksums(records)
    return records.tobytes()


def _number(path: Path) -> int:
    found = NAME.fullmatch(path.name)
    assert found is not None  # log_files gives no others
    return int(found[1])
