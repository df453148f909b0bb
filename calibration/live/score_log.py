"""A log of what the network said about live photos: numbers only, in files of bounded size.

It serves to calibrate again from traffic, since a threshold for a mean set size needs no labels. It
holds the logits of the served head, from which scores and energies follow bit for bit. No photo, no
name, no id, no address and no time is written.

A file is a line of JSON that names the network, then one NumPy array as it lies in memory
(``numpy.fromfile`` reads it): one record per photo, with how many photos its request had, which of
them it is, and its logits.
"""

import os
import threading
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import BaseModel, ConfigDict, PositiveInt

from calibration.record import CalibrationRecord
from models.rotating import RotatingFiles

NAME = "scores-*.log"
MAX_BYTES = 64 * 2**20
MAX_FILES = 8
MOST_PHOTOS = 255


class LogHeader(BaseModel):
    """The first line of a file: which network the logits come from."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal["florilege-scores"] = "florilege-scores"
    version: Literal[2] = 2
    classes: PositiveInt
    head: str  # the served one
    score_kind: str  # what its logits become
    model_sha256: str

    @classmethod
    def of(cls, record: CalibrationRecord) -> "LogHeader":
        """The network that a record belongs to."""
        return cls(
            classes=record.classes,
            head=record.head,
            score_kind=record.score_kind,
            model_sha256=record.measured.model_sha256,
        )

    def line(self) -> bytes:
        """The line itself."""
        return self.model_dump_json().encode() + b"\n"

    @property
    def photo(self) -> np.dtype[np.void]:
        """How one photo is stored."""
        return np.dtype([("photos", "u1"), ("number", "u1"), ("logits", "<f4", (self.classes,))])


class ScoreLogWriter:
    """Appends the logits of requests; any number of threads may call it.

    A request is written by one ``write`` to a file opened for appending, so a crash can only tear
    the end of a file, which a reader leaves out. After a write has failed, its file is not written
    to again. Several processes may share a folder: each opens files of its own. The log never holds
    more than about ``max_bytes * max_files`` bytes, see :class:`models.rotating.RotatingFiles`.
    """

    def __init__(
        self,
        folder: str | Path,
        header: LogHeader,
        *,
        max_bytes: int = MAX_BYTES,
        max_files: int = MAX_FILES,
    ) -> None:
        self.files = RotatingFiles(folder, NAME, max_bytes=max_bytes, max_files=max_files)
        self.header = header
        self._file: int | None = None
        self._bytes = 0
        self._lock = threading.Lock()

    def append(self, logits: ArrayLike) -> None:
        """Add the photos of one request.

        Args:
            logits: Of the served head, shape ``(photos, classes)``, 1 to 255 photos.

        Raises:
            ValueError: A wrong shape.
            OSError: It could not be written; the next request begins another file.
        """
        content = _photos(logits, self.header).tobytes()
        with self._lock:
            try:
                self._write(content)
            except OSError:
                self._close()
                raise

    def close(self) -> None:
        """Close the file; a later ``append`` begins another."""
        with self._lock:
            self._close()

    def _write(self, content: bytes) -> None:
        if self._file is not None and self._bytes >= self.files.max_bytes:
            self._close()
        if self._file is None:
            self._file = os.open(self.files.begin(), os.O_WRONLY | os.O_APPEND)
            self._bytes = 0
            content = self.header.line() + content
        written = os.write(self._file, content)
        self._bytes += written
        if written < len(content):
            raise OSError(f"only {written} of {len(content)} bytes were written")

    def _close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _photos(logits: ArrayLike, header: LogHeader) -> NDArray[np.void]:
    values = np.asarray(logits, dtype=np.float32)
    shape = (len(values), header.classes) if values.ndim else ()
    if values.shape != shape or not 1 <= len(values) <= MOST_PHOTOS:
        raise ValueError(
            f"logits must have shape (1 to {MOST_PHOTOS} photos, {header.classes}), got "
            f"{values.shape}"
        )
    photos = np.empty(len(values), dtype=header.photo)
    photos["photos"], photos["number"] = len(values), np.arange(len(values))
    photos["logits"] = values
    return photos
