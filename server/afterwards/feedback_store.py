"""Feedback on disk: lines of JSON in numbered files of bounded size. No photo, no address.

`calibration.live.feedback` reads it. A line is written by one ``write`` to a file opened for
appending; a crash can only tear the last one, which a reader leaves out.
"""

import json
import os
import re
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MAX_BYTES = 16 * 2**20
MAX_FILES = 8
NAME = re.compile(r"feedback-(\d{6})\.jsonl")


class FeedbackStore:
    """Appends rows; any number of threads may call it.

    Args:
        folder: Exists, and belongs to this server alone.
        max_bytes: A file that has reached this is followed by the next.
        max_files: So many are kept; the oldest is deleted.

    Raises:
        ValueError: A limit below 1.
    """

    def __init__(
        self, folder: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES
    ) -> None:
        if max_bytes < 1 or max_files < 1:
            raise ValueError(
                f"max_bytes and max_files must be at least 1, got {max_bytes} and {max_files}"
            )
        self.folder, self.max_bytes, self.max_files = folder, max_bytes, max_files
        self._lock = threading.Lock()

    def append(self, row: Mapping[str, Any]) -> None:
        """Write one row and make sure that it is on the disk.

        Raises:
            OSError: It could not be written.
        """
        line = json.dumps(row, ensure_ascii=False).encode() + b"\n"
        with self._lock:
            path = self._file()
            handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.fstat(handle).st_size
                if size and os.pread(handle, 1, size - 1) != b"\n":
                    line = b"\n" + line  # what a crash or a full disk has torn stays by itself
                if os.write(handle, line) < len(line):
                    raise OSError(f"{path} could not be written to the end")
                os.fsync(handle)
            finally:
                os.close(handle)

    def _file(self) -> Path:
        """The file to write to; begins the next one and deletes the oldest where it is time."""
        files = feedback_files(self.folder)
        if files and files[-1].stat().st_size < self.max_bytes:
            return files[-1]
        number = _number(files[-1]) + 1 if files else 1
        for path in files[: max(0, len(files) + 1 - self.max_files)]:
            path.unlink(missing_ok=True)
        return self.folder / f"feedback-{number:06d}.jsonl"


def feedback_files(folder: Path) -> list[Path]:
    """The files of a store, the oldest first."""
    paths = (path for path in folder.glob("feedback-*.jsonl") if NAME.fullmatch(path.name))
    return sorted(paths, key=_number)


def _number(path: Path) -> int:
    found = NAME.fullmatch(path.name)
    assert found is not None  # feedback_files gives no others
    return int(found[1])
