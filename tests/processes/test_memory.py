"""The memory of a container, and what is too much for it."""

import os
from pathlib import Path

import pytest

from florilege import processes
from florilege.errors import UsageError
from florilege.processes import demand_memory, free_bytes, memory_bytes


@pytest.mark.parametrize(
    ("texts", "limit"), [((), None), (("max\n",), None), (("1048576\n",), 2**20), (("max", "7"), 7)]
)
def test_the_memory_is_that_of_the_container(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, texts: tuple[str, ...], limit: int | None
) -> None:
    for number, text in enumerate(texts):
        (tmp_path / str(number)).write_text(text)
    groups = [(tmp_path, str(number), "use", "cache") for number in range(3)]
    monkeypatch.setattr(processes, "_GROUPS", groups)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert memory_bytes() == (limit or machine)


@pytest.mark.parametrize(
    ("limit", "use", "free"),
    [("max", "900", 3 * 1024), ("2000", "900", 1200), ("50", "900", 0), ("9999999", "1", 3 * 1024)],
)
def test_what_others_use_is_not_free_and_cached_files_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, limit: str, use: str, free: int
) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:  9 kB\nMemAvailable:  3 kB\n")
    for name, text in {"limit": limit, "use": use, "memory.stat": "anon 5\nfiles 100\n"}.items():
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(processes, "_MACHINE", tmp_path / "meminfo")
    monkeypatch.setattr(processes, "_GROUPS", [(tmp_path, "limit", "use", "files")])
    monkeypatch.setattr(processes, "memory_bytes", lambda: 2**40)
    assert free_bytes() == free


def test_without_such_files_all_memory_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "_MACHINE", Path("/nowhere"))
    monkeypatch.setattr(processes, "_GROUPS", [])
    assert free_bytes() == memory_bytes()


def test_more_workers_than_memory_allows_are_refused_with_a_number_that_fits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    size = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    monkeypatch.setattr(processes, "memory_bytes", lambda: 3 * size + size // 2)
    demand_memory(3, os.getpid())
    with pytest.raises(UsageError, match=r"--workers 5: each takes \d+ MiB.*; 3 fit"):
        demand_memory(5, os.getpid())
