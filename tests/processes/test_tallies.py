"""Numbers that several processes add up."""

import multiprocessing
import threading
from pathlib import Path

import pytest

from florilege.processes import NUMBERS, Tally, WorkerGroup


@pytest.fixture
def group(tmp_path: Path) -> WorkerGroup:
    group = WorkerGroup(tmp_path, 3)
    group.create()
    return group


def other(group: WorkerGroup, number: int) -> WorkerGroup:
    """The group as another worker sees it."""
    return WorkerGroup(group.folder, group.count, number)


def test_workers_add_up_one_number_and_keep_to_its_limit_together(group: WorkerGroup) -> None:
    first, second = group.tally("photos"), other(group, 1).tally("photos")
    assert first.add_within(3, 5)
    assert not second.add_within(3, 5)
    assert second.add_within(2, 5)
    assert (first.total, second.total, first.own, second.own) == (5, 5, 3, 2)
    assert first.others == [2, 0]
    assert group.tally("held_bytes").total == 0
    first.release(3)
    assert second.total == 2


def test_an_amount_above_the_limit_fits_alone(group: WorkerGroup) -> None:
    first, second = group.tally("photos"), other(group, 1).tally("photos")
    assert first.add_within(9, 5, alone=True)
    assert not second.add_within(1, 5, alone=True)


def test_what_a_dead_worker_has_counted_is_gone(group: WorkerGroup) -> None:
    dead = other(group, 2)
    for number, name in enumerate(NUMBERS, start=1):
        dead.set(name, number)
        other(group, 1).set(name, 100)
    group.set("dead_cpu_ms", 7)
    dead.forget()
    assert [group.tally(name).total for name in NUMBERS] == [100] * len(NUMBERS)
    assert other(group, 1).get("dead_cpu_ms") == 7


def test_a_process_that_is_killed_holds_no_lock(group: WorkerGroup) -> None:
    context = multiprocessing.get_context("spawn")
    inside = context.Event()
    process = context.Process(target=_hold, args=(group, inside), daemon=True)
    process.start()
    assert inside.wait(30)
    lock, entered = group.lock("photos"), threading.Event()

    def enter() -> None:
        with lock:
            entered.set()

    thread = threading.Thread(target=enter)
    thread.start()
    assert not entered.wait(0.1)
    process.kill()
    thread.join(15)
    assert entered.is_set()
    process.join()


def _hold(group: WorkerGroup, inside: threading.Event) -> None:
    with group.lock("photos"):
        inside.set()
        threading.Event().wait()


def test_threads_of_one_process_exclude_each_other(group: WorkerGroup) -> None:
    tally = group.tally("photos")

    def count() -> None:
        for _ in range(1000):
            tally.add_within(2, 10_000)
            tally.release(1)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert tally.total == 4000


def test_a_worker_releases_while_another_one_counts(group: WorkerGroup) -> None:
    tally = group.tally("photos")
    assert tally.add_within(3, 5)
    with other(group, 1).lock("photos"):
        release = threading.Thread(target=tally.release, args=(3,))
        release.start()
        release.join(5)
        assert tally.total == 0
    release.join()


def test_a_tally_without_other_workers_is_a_plain_number() -> None:
    tally = Tally()
    assert tally.add_within(4, 4)
    assert (tally.total, tally.own, tally.others) == (4, 4, [])
