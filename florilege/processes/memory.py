"""The memory of a machine or a container, and how many processes of one size it holds."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Final

from florilege.errors import UsageError

_GROUPS: Final = (  # of a container: limit, use and cache, in the two versions of control groups
    (Path("/sys/fs/cgroup"), "memory.max", "memory.current", "inactive_file"),
    (
        Path("/sys/fs/cgroup/memory"),
        "memory.limit_in_bytes",
        "memory.usage_in_bytes",
        "total_inactive_file",
    ),
)
_MACHINE: Final = Path("/proc/meminfo")


def memory_bytes() -> int:
    """The memory of this machine, or of its container if that has less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    for folder, limit, _, _ in _GROUPS:
        with suppress(OSError, ValueError):  # there is no such file, or the limit is "max"
            total = min(total, int((folder / limit).read_text()))
    return total


def free_bytes() -> int:
    """What other programs leave of :func:`memory_bytes`; files that are only cached are free."""
    free = memory_bytes()
    with suppress(OSError, KeyError, ValueError):  # no such file on this system
        free = min(free, 1024 * _counts(_MACHINE)["MemAvailable:"])
    for folder, limit, use, cache in _GROUPS:
        with suppress(OSError, KeyError, ValueError):
            cached = _counts(folder / "memory.stat")[cache]
            used = int((folder / use).read_text()) - cached
            free = min(free, int((folder / limit).read_text()) - used)
    return max(0, free)


def _counts(path: Path) -> dict[str, int]:
    """The numbers of a file that has a name and a number in each line."""
    lines = (line.split() for line in path.read_text().splitlines())
    return {line[0]: int(line[1]) for line in lines}


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
