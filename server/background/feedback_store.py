"""Feedback on disk: lines of JSON in numbered files of bounded size, without an address.

`florilege.calibration.monitoring.audit` reads it. A line is written by one ``write`` to a file
opened for appending; a crash can only tear the last one, which a reader leaves out.
"""

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from florilege.rotation import RotatingFiles, numbered_files

NAME = "feedback-*.jsonl"
MAX_BYTES = 16 * 2**20
MAX_FILES = 8


class FeedbackStore:
    """Appends rows to `RotatingFiles`; any number of threads may call it.

    The folder exists, and belongs to this server alone.
    """

    def __init__(
        self, folder: Path, *, max_bytes: int = MAX_BYTES, max_files: int = MAX_FILES
    ) -> None:
        self.files = RotatingFiles(folder, NAME, max_bytes=max_bytes, max_files=max_files)
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
        """The file to write to: the newest until it is full."""
        existing = numbered_files(self.files.folder, NAME)
        if existing and existing[-1].stat().st_size < self.files.max_bytes:
            return existing[-1]
        return self.files.begin()
