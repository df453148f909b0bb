"""The score log: the logits of live photos as JSON Lines, in files of bounded total size.

It is for recalibration on traffic. It holds the logits of the served head, which give scores bit
for bit, and never a photo, a name, an id, an address or a time of a request.

Each line is a request: ``network``, the hash of graph and preprocessing; ``head``; and ``logits``,
the little-endian float32 numbers of each photo in base64. Files may be cut, joined and copied at
any line, and a torn or damaged line affects no other.
"""

import json
import os
import tempfile
import threading
from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.record import CalibrationRecord
from florilege.errors import DataError, os_error_as
from florilege.models.bundle import MODEL, PREPROCESS, Bundle
from florilege.models.runtime import Runtime

NAME = "scores-*.jsonl"
FILES = 16  # of a full log; the oldest is deleted first
COUNTS = 64  # how often a writer counts the bytes of all files while it writes ``max_bytes``
PHOTOS_AT_ONCE = 512


@dataclass(frozen=True, kw_only=True)
class Scorer:
    """The origin of logits; only those of one scorer may be read together."""

    network: str  # hash of graph and preprocessing, since the image size changes the logits
    head: str  # the served head
    classes: int

    @classmethod
    def of(cls, bundle: Bundle, record: CalibrationRecord) -> "Scorer":
        """The scorer of a bundle, which does not depend on its thresholds."""
        files, runtime = bundle.manifest.files, record.measured.served_by
        parts = [files[MODEL], files[PREPROCESS], *(() if runtime == Runtime() else runtime)]
        network = sha256(" ".join(parts).encode()).hexdigest()
        return cls(network=network, head=record.head, classes=record.classes)


class ScoreLogWriter:
    """Appends the logits of requests; it is thread-safe.

    Each writer has its own files, so processes and machines may share a folder. When all files
    together reach ``max_bytes``, the file with the oldest last write is deleted. Each further
    writer may exceed ``max_bytes`` by a 64th.
    """

    def __init__(self, folder: str | Path, scorer: Scorer, *, max_bytes: int) -> None:
        self.folder, self.scorer, self.max_bytes = Path(folder), scorer, max_bytes
        self._file: int | None = None
        self._written = 0  # bytes in this file
        self._room = 0  # bytes that may be written before the next count of all files
        self._lock = threading.RLock()

    def append(self, logits: ArrayLike) -> None:
        """Add one request: logits of the served head, ``(photos, classes)``, at least one photo.

        Raises:
            ValueError: A wrong shape.
            OSError: The request could not be written; the next one starts a new file.
        """
        values = np.asarray(logits, dtype="<f4")
        if values.ndim != 2 or values.shape != (len(values) or 1, self.scorer.classes):
            raise ValueError(
                f"logits must have shape (photos, {self.scorer.classes}), got {values.shape}"
            )
        photos = [b64encode(row).decode() for row in values]
        request = {"network": self.scorer.network, "head": self.scorer.head, "logits": photos}
        line = json.dumps(request).encode() + b"\n"
        with self._lock:
            try:
                self._make_room(len(line))
                self._write(line)
            except OSError:
                if self._file is not None and not self._written:
                    # Else each request to a full disk would leave an empty file.
                    with suppress(OSError):
                        self._path.unlink()
                self.close()
                raise

    def close(self) -> None:
        """Close the file; a later ``append`` starts a new one."""
        with self._lock:
            if self._file is not None:
                os.close(self._file)
                self._file = None

    def _make_room(self, size: int) -> None:
        """Delete the oldest files if ``size`` more bytes would exceed ``max_bytes``."""
        if size > self._room:
            files = []
            for path in self.folder.glob(NAME):
                with suppress(FileNotFoundError):  # another writer has deleted it
                    status = path.stat()
                    files.append((status.st_mtime_ns, path, status.st_size))
            total = sum(file_size for _, _, file_size in files)
            for _, path, file_size in sorted(files):
                if total + size > self.max_bytes:
                    path.unlink(missing_ok=True)
                    total -= file_size
            self._room = max(size, min(self.max_bytes - total, self.max_bytes // COUNTS))
        self._room -= size

    def _write(self, line: bytes) -> None:
        if self._file is not None:
            # Another writer may have deleted the file to make room. What is written to it would be
            # lost.
            deleted = not os.fstat(self._file).st_nlink
            if deleted or self._written >= self.max_bytes // FILES:
                self.close()
        if self._file is None:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            suffix = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}-{os.urandom(4).hex()}"
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL
            self._path = self.folder / NAME.replace("*", suffix)
            self._file = os.open(self._path, flags, 0o600)
            self._written = 0
        # The whole line at once and unbuffered, so that a crash tears no more than one.
        byte_count = os.write(self._file, line)
        self._written += byte_count
        if byte_count < len(line):
            raise OSError(f"only {byte_count} of {len(line)} bytes were written")


class ScoreLog:
    """A snapshot of the requests of one scorer, see :func:`open_score_log`.

    They are copied to temporary files: no server can delete them, and memory does not grow with the
    traffic.

    A request with the logits of an earlier one is left out: a photo counts once.
    """

    def __init__(self, scorer: Scorer, files: ExitStack) -> None:
        self.scorer, self.requests = scorer, Counter[int]()  # requests by their number of photos
        self.repeated = self.others = self.damaged = 0  # requests that are left out
        self._copies: dict[int, IO[bytes]] = {}
        self._files, self._seen = files, set[bytes]()

    def blocks(self, *, photos: int = 1) -> Iterator[NDArray[np.float32]]:
        """Logits of the requests with this many photos, ``(requests, photos, classes)``."""
        step, width = max(1, PHOTOS_AT_ONCE // photos), photos * self.scorer.classes * 4
        for start in range(0, self.requests[photos], step):
            self._copies[photos].seek(start * width)
            content = self._copies[photos].read(step * width)
            yield np.frombuffer(content, "<f4").reshape(-1, photos, self.scorer.classes)

    def add(self, line: bytes) -> None:
        """Copy the request of a line if it is undamaged and of this scorer."""
        try:
            request = json.loads(line)
            if (request["network"], request["head"]) != (self.scorer.network, self.scorer.head):
                self.others += 1
                return
            photos = [b64decode(photo, validate=True) for photo in request["logits"]]
            values = np.frombuffer(b"".join(photos), "<f4")
            if {len(photo) for photo in photos} != {self.scorer.classes * 4}:
                raise ValueError("one number for each class expected")
            if not np.isfinite(values).all():
                raise ValueError("finite numbers expected")
        except (ValueError, TypeError, KeyError, RecursionError):
            self.damaged += 1
            return
        number, content = len(photos), values.tobytes()
        digest = sha256(content).digest()
        if digest in self._seen:
            self.repeated += 1
            return
        self._seen.add(digest)
        if number not in self._copies:
            file = tempfile.TemporaryFile()  # noqa: SIM115  # closed by the stack
            self._copies[number] = self._files.enter_context(file)
        self._copies[number].write(content)
        self.requests[number] += 1


@contextmanager
def open_score_log(folder: str | Path, scorer: Scorer) -> Iterator[ScoreLog]:
    """Read the log in a folder, for use in the context; servers may write to it meanwhile.

    Raises:
        DataError: No request of this scorer, or an unreadable file.
    """
    with ExitStack() as copies:
        log = ScoreLog(scorer, copies)
        with os_error_as(DataError, f"the score log in {folder} cannot be read"):
            for path in sorted(Path(folder).glob(NAME)):
                with suppress(FileNotFoundError), path.open("rb") as file:  # a server may delete it
                    for line in file:
                        log.add(line)
        if not log.requests:
            raise DataError(
                f"the score log in {folder} has no request of this network and head, only "
                f"{log.others:,} of others: serve the bundle with --score-log and wait for traffic"
            )
        yield log
