"""The memory of a machine or a container, and how many processes of one size it holds."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from florilege.errors import UsageError

_LIMITS: Final = (  # of a container, in the two versions of control groups
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


def memory_bytes() -> int:
    """The memory of this machine, or of its container if that has less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for path in _LIMITS:
        with suppress(OSError, ValueError):  # there is no such file, or the limit is "max"
            total = min(total, int(path.read_text()))
    return total


def demand_memory(workers: int, process: int) -> None:
    """Raise `UsageError` if ``workers`` of the size of a ready one cannot fit; its id is given."""
    try:
        pages = int(Path(f"/proc/{process}/statm").read_text().split()[1])
    except OSError:  # no such file on this system, or the process has just ended
        return
    size, total = pages * os.sysconf("SC_PAGE_SIZE"), memory_bytes()
    if workers * size > total:
        raise UsageError(
            f"--workers {workers}: each takes {size // 2**20} MiB, and there are "
            f"{total // 2**20} MiB; {max(1, total // size)} fit, without room for uploads"
        )
