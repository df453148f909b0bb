"""How many cores there are, and work spread over them in order."""

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, TypeVar

AHEAD: Final = 4  # results per thread that may wait for their turn
Item = TypeVar("Item")
Result = TypeVar("Result")


def cores() -> int:
    """Cores this process may really use: its affinity, limited by a container's CPU quota."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(allowed or 1, _quota(Path("/sys/fs/cgroup/cpu.max"))))


def _quota(path: Path) -> int:
    """CPUs granted by the control group, rounded up; a very large number without a limit."""
    try:
        quota, period = path.read_text().split()
        return math.ceil(int(quota) / int(period))
    except (OSError, ValueError):  # no such file, or the word "max"
        return 2**16


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int | None = None
) -> Generator[Result, None, None]:
    """``work`` of each item, in the order of the items, by several threads at once.

    Items are read in the caller's thread, only a few ahead of the results, so there may be any
    number of them. What ``work`` raises is raised at its place in the order. After that, or if the
    caller stops early (``close``), items that have not begun are left undone. By default there are
    as many ``threads`` as cores.

    Example:
        >>> list(in_order(abs, [-3, 1, -2], threads=2))
        [3, 1, 2]
    """
    threads = threads or cores()
    waiting: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            waiting.append(pool.submit(work, item))
            if len(waiting) > AHEAD * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
