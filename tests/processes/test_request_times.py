"""The times of a client's requests: several workers count as one."""

import errno
import os
import random
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
from limits import parse

from florilege.processes import WorkerGroup
from florilege.processes.shared_state import TimesInFolder, _TimesInMemory


@pytest.fixture
def group(tmp_path: Path) -> WorkerGroup:
    group = WorkerGroup(tmp_path, 2)
    group.create()
    return group


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr("florilege.processes.shared_state.time.monotonic", clock.monotonic)
    return clock


def test_two_workers_count_as_one_does(group: WorkerGroup, clock: Clock) -> None:
    workers = [TimesInFolder(group, "key"), TimesInFolder(group, "key")]
    single, generator = _TimesInMemory(), random.Random(1)
    rates = [parse("5/second"), parse("20/minute")]
    for _ in range(600):
        clock.now += generator.choice((0.0, 0.01, 0.3, 2.0))
        client, rate = generator.choice("ab"), generator.choice(rates)
        expected = single.add(client, rate)
        assert generator.choice(workers).add(client, rate) == pytest.approx(expected)


def test_files_stay_small(group: WorkerGroup, clock: Clock) -> None:
    times, rate = TimesInFolder(group, "key"), parse("3/second")
    for _ in range(300):
        clock.now += 0.5
        assert times.add("a", rate).within_rate
    (path,) = (group.folder / "rates-key").iterdir()
    assert path.stat().st_size < 8 * 64


def test_clients_that_are_out_of_their_window_are_forgotten(
    group: WorkerGroup, clock: Clock
) -> None:
    times = TimesInFolder(group, "key")
    times.add("old", parse("3/minute"))
    (old,) = (group.folder / "rates-key").iterdir()
    clock.now += 59
    times.add("new", parse("3/minute"))
    os.utime(old, (0, 0))  # whatever the clock of the day says
    times.forget()
    assert old.exists()
    clock.now += 2
    times.forget()
    (left,) = (group.folder / "rates-key").iterdir()
    assert left != old
    assert times.add("new", parse("3/minute")).requests == 2


def test_on_a_full_disk_each_worker_counts_for_itself(
    group: WorkerGroup,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    times, rate = TimesInFolder(group, "key"), parse("3/minute")
    assert times.add("a", rate).requests == 1
    with monkeypatch.context() as full:
        full.setattr(Path, "open", Mock(side_effect=OSError(errno.ENOSPC, "no space left")))
        answers = [times.add("a", rate) for _ in range(4)]
    assert [answer.within_rate for answer in answers] == [True, True, True, False]
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert times.add("a", rate).requests == 2


def test_a_folder_that_somebody_has_deleted_is_there_again_after_a_minute(
    group: WorkerGroup, clock: Clock
) -> None:
    workers, rate = [TimesInFolder(group, "key") for _ in range(2)], parse("3/minute")
    (group.folder / "rates-key").rmdir()
    assert [worker.add("a", rate).requests for worker in workers] == [1, 1]
    workers[0].forget()
    assert [worker.add("a", rate).requests for worker in workers] == [1, 2]
    shutil.rmtree(group.folder)  # all that the workers share
    workers[0].forget()
    assert workers[0].add("a", rate).within_rate
