"""Work spread over Ray processes has the same results in order, even if workers die."""

import os
import pickle
import signal
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from florilege.cores import Workers
from florilege.errors import FlorilegeError, UsageError
from florilege.plugins.ray import ATTEMPTS, MOST_ITEMS, PORTIONS, _portions, spread

pytest.importorskip("ray", reason="the extra `ray` is not installed")
pytestmark = [
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore"),  # Ray's own, which differ by version
]
TWO = Workers(number=2)


@dataclass(frozen=True)
class Opener:
    """Work that notes each opening in a file, and ends its process at one item."""

    notes: Path
    deadly: int | None = None

    def __call__(self) -> Callable[[int], tuple[int, int]]:
        with self.notes.open("a") as file:
            file.write(f"{os.getpid()}\n")

        def work(item: int) -> tuple[int, int]:
            time.sleep(0.005)
            if item == self.deadly:
                os.kill(os.getpid(), signal.SIGKILL)
            return item, os.getpid()

        return work

    def opened(self) -> list[str]:
        return self.notes.read_text().split()


def failing(*_: int) -> Any:
    raise UsageError("not like this")


def test_results_come_in_order_and_each_worker_opens_its_work_once(tmp_path: Path) -> None:
    opener = Opener(tmp_path / "opened")
    result = list(spread(opener, range(200), TWO))
    assert [item for item, _ in result] == list(range(200))
    workers = {pid for _, pid in result}
    assert len(workers) == 2
    assert os.getpid() not in workers
    assert sorted(opener.opened()) == sorted(map(str, workers))


def test_a_worker_that_is_killed_loses_nothing_and_repeats_nothing(tmp_path: Path) -> None:
    results, killed = list[int](), False
    for item, pid in spread(Opener(tmp_path / "opened"), range(400), TWO):
        results.append(item)
        if item == 100 and not killed:
            os.kill(pid, signal.SIGKILL)
            killed = True
    assert results == list(range(400))


def test_an_item_that_ends_every_worker_is_named_and_what_came_before_is_kept(
    tmp_path: Path,
) -> None:
    results, deadly = list[int](), Opener(tmp_path / "opened", deadly=100)
    with pytest.raises(FlorilegeError, match=f"{ATTEMPTS} workers died .* items 91 to 120"):
        results.extend(item for item, _ in spread(deadly, range(480), TWO))
    assert results == list(range(90))


@pytest.mark.parametrize("opener", [failing, lambda: failing], ids=["opening", "work"])
def test_what_a_worker_raises_is_raised_here(opener: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match="not like this"):
        list(spread(opener, range(20), TWO))


def test_one_may_stop_early_and_begin_again(tmp_path: Path) -> None:
    for _ in range(2):
        with closing(spread(Opener(tmp_path / "opened"), range(300), TWO)) as result:
            assert [next(result)[0] for _ in range(50)] == list(range(50))


def test_nothing_is_asked_of_nobody(tmp_path: Path) -> None:
    assert list(spread(Opener(tmp_path / "opened"), [], TWO)) == []


@pytest.mark.parametrize("count", [1, 15, 16, 17, 1000, PORTIONS * 2 * MOST_ITEMS, 5000])
def test_portions_hold_every_item_once_and_none_is_too_large(count: int) -> None:
    portions = _portions(range(count), 2)
    assert [x for each in portions for x in pickle.loads(each["items"])] == list(range(count))
    sizes = [len(pickle.loads(each["items"])) for each in portions]
    assert max(sizes) <= MOST_ITEMS
    assert len(sizes) >= min(count, PORTIONS * 2)
    assert [each["first"] for each in portions] == [sum(sizes[:i]) for i in range(len(sizes))]


def test_a_cluster_that_is_not_there_is_a_clear_refusal(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("RAY_ADDRESS", "127.0.0.1:1")
    with pytest.raises(UsageError, match=r"RAY_ADDRESS=127\.0\.0\.1:1"):
        list(spread(Opener(tmp_path / "opened"), range(3), TWO))
