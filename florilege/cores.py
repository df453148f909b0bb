"""Count the usable cores, share them with other programs, and spread work over them in order."""

import math
import os
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

_WAITING: Final = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME", "KMP_LIBRARY")
AHEAD: Final = 4  # results per thread that may wait to be returned in order
# A third of a millisecond. A step of ResNet-18 on two cores took 8 % longer where threads sleep at
# once and .97 of it with this; beside two and four busy programs .67 and .43 instead of .61
# and .38 (`benchmarks.speed.thread_waiting`).
SPINS: Final = "10000"
Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True, kw_only=True)
class Workers:
    """The number and size of processes on a cluster; one thread takes one core."""

    number: int | None = None  # on all machines; None for all that fit, or with gpu one per GPU
    threads: int | None = None  # of each worker; None for 1, or with gpu the cores per GPU
    gpu: bool = False  # whether each worker uses a GPU


_processes = 1  # that share the cores of this one; set by `share_cores`


def cores() -> int:
    """Cores for this process: its affinity, limited by a container's CPU quota and shared."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, min(allowed or 1, _quota(Path("/sys/fs/cgroup"))) // _processes)


def share_cores(processes: int) -> None:
    """Count for this process only its part of the cores, beside others that do the same.

    ``processes`` is the number of all. They are not bound to cores of their own: one that works
    alone in the end may still use all of them.
    """
    global _processes  # a fact about the process, which its pool states at its start
    _processes = processes


def _quota(groups: Path) -> int:
    """The CPU limit of the control group, rounded up; a very large number without a limit."""
    # Microseconds that it may run in each period: one file in version 2, two in version 1, where
    # -1 means no limit and "max" does in the other.
    for names in (["cpu.max"], ["cpu/cpu.cfs_quota_us", "cpu/cpu.cfs_period_us"]):
        with suppress(OSError, ValueError):
            quota, period = " ".join((groups / name).read_text() for name in names).split()
            return math.ceil(int(quota) / int(period)) if int(quota) > 0 else 2**16
    return 2**16


def wait_without_spinning() -> None:
    """Let idle threads of OpenMP, such as those of torch, soon sleep instead of spin.

    Call it before anything imports torch, whose OpenMP reads the variable once. A thread that spins
    keeps its core from the thread it waits for as soon as another program runs: beside four busy
    processes on two cores, a step of the recipe ``demo`` took 9 times as long. What the user has
    set for OpenMP's waiting stays.
    """
    if not any(name in os.environ for name in _WAITING):
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
        # GNU's OpenMP, which torch brings on Linux, reads this one first.
        os.environ["GOMP_SPINCOUNT"] = SPINS


def in_order(
    work: Callable[[Item], Result], items: Iterable[Item], *, threads: int | None = None
) -> Generator[Result, None, None]:
    """Apply ``work`` to each item in several threads; yields results in the order of the items.

    The caller's thread reads items only a few ahead of the results, so there may be any number of
    them. An exception in ``work`` is raised at its place in the order. After that, or if the caller
    stops early (``close``), the remaining items are not started. By default there are as many
    ``threads`` as cores.

    Example:
        >>> list(in_order(abs, [-3, 1, -2], threads=2))
        [3, 1, 2]
    """
    threads = threads or cores()
    pending: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(threads)
    try:
        for item in items:
            pending.append(pool.submit(work, item))
            if len(pending) > AHEAD * threads:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
