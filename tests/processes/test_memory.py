"""The memory of a container, and what is too much for it."""

import os
from pathlib import Path

import pytest

from florilege.errors import UsageError
from florilege.processes import memory
from florilege.processes.memory import demand_memory, memory_bytes


@pytest.mark.parametrize(
    ("texts", "limit"), [((), None), (("max\n",), None), (("1048576\n",), 2**20), (("max", "7"), 7)]
)
def test_the_memory_is_that_of_the_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, texts: tuple[str, ...], limit: int | None
) -> None:
    paths = [tmp_path / str(number) for number in range(3)]
    for path, text in zip(paths, texts, strict=False):
        path.write_text(text)
    monkeypatch.setattr(memory, "_LIMITS", paths)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_bytes() == (limit or machine)


def test_more_workers_than_memory_allows_are_refused_with_a_number_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(memory, "memory_bytes", lambda: 3 * size + size // 2)
    demand_memory(3, os.getpid())
    with pytest.raises(UsageError, match=r"--workers 5: each takes \d+ MiB.*; 3 fit"):
        demand_memory(5, os.getpid())
