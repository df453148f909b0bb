"""Cores follow the container's limit, and results come in order, computed a few ahead."""

import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from florilege import cores as module
from florilege.cores import AHEAD, cores, in_order


@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"cpu.max": "150000 100000\n"}, 2),
        ({"cpu.max": "max 100000\n"}, 2**16),
        ({"cpu/cpu.cfs_quota_us": "250000\n", "cpu/cpu.cfs_period_us": "100000\n"}, 3),
        ({"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 2**16),
        ({}, 2**16),
    ],
)
def test_the_cpu_quota_of_a_container_is_rounded_up(
    tmp_path: Path, files: dict[str, str], cores: int
) -> None:
    (tmp_path / "cpu").mkdir()
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    assert module._quota(tmp_path) == cores


@pytest.mark.parametrize(("processes", "share"), [(1, 6), (2, 3), (4, 1), (9, 1)])
def test_processes_that_share_the_cores_count_their_part(
    monkeypatch: pytest.MonkeyPatch, processes: int, share: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(6)))
    monkeypatch.setattr(module, "_processes", 1)
    module.share_cores(processes)
    assert cores() == share


@pytest.mark.parametrize("threads", [1, 3, None])
@pytest.mark.parametrize("count", [0, 1, AHEAD, AHEAD + 1, 60])
def test_results_come_in_order(threads: int | None, count: int) -> None:
    assert list(in_order(lambda item: 2 * item, range(count), threads=threads)) == [
        2 * item for item in range(count)
    ]


def test_items_are_taken_a_few_ahead_of_the_results() -> None:
    calls: list[int] = []

    def items() -> Iterator[int]:
        for item in range(1000):
            calls.append(item)
            yield item

    results = in_order(abs, items(), threads=2)
    for number in range(1, 20):
        next(results)
        assert len(calls) == 2 * AHEAD + number
    results.close()


def test_what_an_item_raises_comes_at_its_place_and_ends_the_work() -> None:
    begun: list[int] = []

    def work(item: int) -> float:
        begun.append(item)
        return 1 / (3 - item)

    results = in_order(work, range(1000), threads=1)
    assert [next(results) for _ in range(3)] == [1 / 3, 1 / 2, 1]
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert max(begun) <= 3 + AHEAD + 1


def test_what_has_not_begun_when_the_caller_stops_is_left_undone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[int] = []
    stopped = threading.Event()

    class Pool(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            stopped.set()  # lets the running item end
            super().shutdown(wait=True)

    def work(item: int) -> None:
        begun.append(item)
        if item:
            assert stopped.wait(15)

    monkeypatch.setattr(module, "ThreadPoolExecutor", Pool)
    results = in_order(work, range(9), threads=1)
    next(results)
    results.close()
    assert stopped.is_set()
    assert len(begun) <= 2


_COMMAND_LINE = """
import os, sys
from florilege import cli
names = ["OMP_WAIT_POLICY", "GOMP_SPINCOUNT"]
cli.app = lambda **_: print(*map(os.environ.get, names), "torch" in sys.modules)
cli.main()
"""


@pytest.mark.parametrize(
    ("variables", "policy"),
    [
        ({}, f"PASSIVE {module.SPINS}"),
        ({"OMP_WAIT_POLICY": "active"}, "active None"),
        ({"GOMP_SPINCOUNT": "5000"}, "None 5000"),
        ({"KMP_BLOCKTIME": "200"}, "None None"),
    ],
)
def test_threads_that_wait_sleep_unless_the_user_chose_otherwise_before_torch_is_loaded(
    variables: dict[str, str], policy: str
) -> None:
    env = {name: value for name, value in os.environ.items() if name not in module._WAITING}
    command = [sys.executable, "-c", _COMMAND_LINE]
    output = subprocess.check_output(command, env=env | variables, text=True)
    assert output.split() == [*policy.split(), "False"]
