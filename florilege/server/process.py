"""Prepare the process of a server: its log and what malloc keeps.

All this affects the whole process, so only a program should call it, not a library. Lines about a
request contain its id, route, method, status and time, but no address, file name, query or key.
"""

import ctypes
import json
import logging
import resource
import signal
import sys
from contextlib import suppress
from datetime import UTC, datetime

from florilege.server.settings import LogFormat, Settings

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGE_BYTES = 4 * 2**20
"""Blocks of every large picture are larger; those of a phone's JPEG are smaller."""
MOST_FILES = 8192  # a connection without a request takes 4 KB of memory
KEPT_BYTES = 16 * 2**20  # free, at the end of the heap of each thread; a photo takes about half


class _LineFormatter(logging.Formatter):
    """``TIME LEVEL message name=value ...``, or one JSON object; the names are ``fields``.

    The lines of one of several workers name it.
    """

    def __init__(self, form: LogFormat, worker: int | None = None) -> None:
        super().__init__()
        self._form, self._worker = form, {} if worker is None else {"worker": worker}

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record; as text, a traceback adds lines."""
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        level, message = record.levelname, record.getMessage()
        fields: dict[str, object] = {**self._worker, **getattr(record, "fields", {})}
        trace = self.formatException(record.exc_info) if record.exc_info else None
        if self._form == "json":
            entry = {"time": time, "level": level.lower(), "message": message, **fields}
            return json.dumps(entry | ({"exception": trace} if trace else {}), ensure_ascii=False)
        words = [time, level, message, *(f"{name}={value}" for name, value in fields.items())]
        return " ".join(words) + (f"\n{trace}" if trace else "")


def log_to_stderr(settings: Settings, worker: int | None = None) -> None:
    """Log to stderr as the settings say; of uvicorn, only warnings and errors."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_LineFormatter(settings.log_format, worker))
    logging.basicConfig(level=settings.log_level.upper(), handlers=[handler], force=True)
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def tune_malloc() -> None:
    """Return freed blocks of 4 MiB and more to the system, and keep smaller ones.

    Whenever glibc frees a block that it returns to the system, it raises the size from which it
    does so, up to 32 MiB. After a few large pictures every thread keeps its peak memory: four
    threads that decoded one 50-megapixel PNG each, one after the other, held 1.26 GB, not 0.49.
    An explicit size stays fixed. But then glibc also returns the end of a heap as soon as 128 KiB
    of it are free, and each photo gets its memory page by page: 575 pages for a photo of 250 KB,
    2,200 for one of 12 megapixels, 3 and 5 % of its total time.
    """
    with suppress(OSError, AttributeError):  # only glibc has these settings
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, LARGE_BYTES)
        mallopt(M_TRIM_THRESHOLD, KEPT_BYTES)


def allow_connections() -> None:
    """Let this process and its workers open as many files as connections may need.

    Systems allow 1,024 unless a program asks for more: that many clients which send nothing would
    keep all others out.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(MOST_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def ignore_hangups() -> None:
    """Ignore SIGHUP: a server cannot reload before it is ready or while it stops."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
