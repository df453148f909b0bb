"""What a server is started with: the bundle and the limits."""

import math
import os
from dataclasses import dataclass
from pathlib import Path

from server.answers.budget import MAX_DECODING_PIXELS

DEVICES = ("auto", "cpu", "cuda")
MEBIBYTE = 2**20
_AT_LEAST_ONE = (
    *("max_body_bytes", "max_pixels", "max_decoding_pixels", "max_images", "max_held_bytes"),
    *("score_log_max_bytes", "score_log_files"),
)


def cores() -> int:
    """Cores this process may really use: its affinity, cut by a container's CPU quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(allowed or 1, _quota(Path("/sys/fs/cgroup/cpu.max"))))


def _quota(path: Path) -> int:
    """CPUs granted by the control group, rounded up; unlimited where none is set."""
    try:
        quota, period = path.read_text().split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or the word "max"
        return 2**16


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Settings of one server.

    Attributes:
        bundle: Folder of a calibrated bundle.
        device: ``auto``, ``cpu`` or ``cuda``.
        threads: Photos worked on at once; None means one for each core.
        max_body_bytes: Largest request body, checked before and while it is read.
        max_pixels: Most pixels of one photo, checked in its header before it is decoded.
        max_decoding_pixels: Most pixels being decoded at once, in all threads together; the next
            picture waits. What counts is what has to be held: little for most JPEGs.
        max_images: Most photos in one request.
        upload_deadline_s: Seconds in which a body has to arrive.
        max_held_bytes: Bytes of all bodies held at once; beyond them uploads are refused.
        queue_limit: Photos waiting or worked on beyond which requests are refused; None means
            about one second of work as measured at start, at least 16 and at most 300.
        queue_timeout_s: Seconds after which a request that is still waiting is given up.
        drain_s: Seconds that requests in flight have to end after SIGTERM.
        drain_notice_s: Seconds between `/readyz` turning 503 and the port being closed.
        cors_origins: Origins whose pages may call the interface; none by default.
        feedback_store: Folder for feedback; without one there is no `/v1/feedback`.
        score_log: Folder for the logits of answered photos; none are kept by default.
        score_log_max_bytes: Size at which a file of the score log is followed by the next.
        score_log_files: Most files of the score log; the oldest is deleted.
        watch: Whether photos are compared with those of the validation, to notice drift.
        watch_state: File that keeps what the watch saw over restarts.
    """

    bundle: Path
    device: str = "auto"
    threads: int | None = None
    max_body_bytes: int = 32 * MEBIBYTE
    max_pixels: int = 50_000_000
    max_decoding_pixels: int = MAX_DECODING_PIXELS
    max_images: int = 5
    upload_deadline_s: float = 20.0
    max_held_bytes: int = 256 * MEBIBYTE
    queue_limit: int | None = None
    queue_timeout_s: float = 10.0
    drain_s: float = 30.0
    drain_notice_s: float = 1.0
    cors_origins: tuple[str, ...] = ()
    feedback_store: Path | None = None
    score_log: Path | None = None
    score_log_max_bytes: int = 64 * MEBIBYTE
    score_log_files: int = 8
    watch: bool = True
    watch_state: Path | None = None

    def __post_init__(self) -> None:
        if self.device not in DEVICES:
            raise ValueError(f"device must be auto, cpu or cuda, got {self.device!r}")
        for name in ("threads", "queue_limit"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} must be at least 1, got {value}")
        for name in _AT_LEAST_ONE:
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("upload_deadline_s", "queue_timeout_s", "drain_s"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} must be above 0 seconds, got {getattr(self, name)}")
        if not 0 <= self.drain_notice_s < math.inf:
            raise ValueError(f"drain_notice_s must be at least 0, got {self.drain_notice_s}")
        if self.watch_state is not None and not self.watch:
            raise ValueError("watch_state needs watch: there is nothing to keep without it")
