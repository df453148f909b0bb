"""When workers are replaced, told to load, and stopped; with workers that are no processes."""

import fcntl
import os
import pickle
import shutil
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from florilege.errors import BundleError, FlorilegeError, UsageError
from florilege.processes import WorkerGroup
from florilege.server import supervisor as module
from florilege.server.process import bind
from florilege.server.settings import Settings
from florilege.server.supervisor import HUNG_S, LONGEST_PAUSE_S, _Supervisor, _Worker


class Clock:
    now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


class Fake(_Worker):
    """A worker that runs while ``alive`` says so."""

    made: list["Fake"]
    starts_ready = True

    def start(self) -> None:
        self.alive, self.signals = True, list[int]()
        self.process = SimpleNamespace(  # type: ignore[assignment]
            is_alive=lambda: self.alive, kill=self._die, join=lambda: None, exitcode=-9, pid=1
        )
        self._end.close()
        self.made.append(self)
        self.group.set("ready", int(self.starts_ready))

    def _die(self) -> None:
        self.alive = False

    def send(self, number: int) -> None:
        self.signals.append(number)

    def target(self, sockets: list[socket.socket] | None = None) -> None:
        raise AssertionError("no process is started")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "time", clock)
    return clock


@pytest.fixture
def supervisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> Iterator[_Supervisor]:
    group = WorkerGroup(tmp_path, 3)
    group.create()
    Fake.made, Fake.starts_ready = [], True
    monkeypatch.setattr(module, "_Worker", Fake)
    monkeypatch.setattr(module, "demand_memory", lambda workers, process: None)
    handlers = {number: signal.getsignal(number) for number in module.SIGNALS}
    settings = Settings(bundle=tmp_path, drain_notice_s=5.0)
    supervisor = _Supervisor(settings, bind("127.0.0.1", 0), group)
    yield supervisor
    supervisor._dispatcher.close()
    for worker in Fake.made:
        worker.channel.close()
    for number, handler in handlers.items():
        signal.signal(number, handler)


def test_one_worker_starts_first_and_the_port_opens_when_all_are_ready(
    supervisor: _Supervisor,
) -> None:
    supervisor.init_processes()
    assert [worker.group.number for worker in Fake.made] == [0, 1, 2]
    assert supervisor._dispatcher._thread.is_alive()


@pytest.mark.parametrize("error", [BundleError("it is damaged"), None])
def test_what_fails_at_the_first_start_fails_once_and_ends_the_server(
    supervisor: _Supervisor, monkeypatch: pytest.MonkeyPatch, error: FlorilegeError | None
) -> None:
    def start(worker: Fake) -> None:
        Fake.starts_ready = False
        original(worker)
        worker.alive = False
        if error is not None:
            worker.child_conn.send_bytes(pickle.dumps(error))

    original = Fake.start
    monkeypatch.setattr(Fake, "start", start)
    supervisor.init_processes()
    assert len(Fake.made) == 1
    assert supervisor.should_exit.is_set()
    message = "it is damaged" if error else "worker 1 was ended by signal 9"
    assert message in str(supervisor.failure)
    assert type(supervisor.failure) is (BundleError if error else FlorilegeError)


def test_more_workers_than_memory_allows_start_one_alone(
    supervisor: _Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def demand(workers: int, process: int) -> None:
        raise UsageError(f"--workers {workers} {process}")

    monkeypatch.setattr(module, "demand_memory", demand)
    supervisor.init_processes()
    assert (len(Fake.made), str(supervisor.failure)) == (1, "--workers 3 1")


def test_a_slow_worker_is_not_killed_and_one_that_hangs_is(
    supervisor: _Supervisor, clock: Clock
) -> None:
    supervisor.init_processes()
    slow, hung, loading = Fake.made
    slow.group.set("beat", int(clock.now))
    hung.group.set("beat", int(clock.now) - 1)
    loading.group.set("ready", 0)  # for however long
    assert not hung.is_late
    clock.now += 2
    assert [worker.is_late for worker in Fake.made] == [False, True, False]
    clock.now += HUNG_S - 2
    supervisor.keep_subprocess_alive()
    assert [worker.alive for worker in Fake.made] == [True, False, True]
    assert hung.group.get("beat") == 0  # what it has counted is gone
    supervisor.keep_subprocess_alive()
    assert (len(Fake.made), Fake.made[-1].group.number) == (4, 1)
    clock.now += 3600
    slow.group.set("beat", int(clock.now))
    supervisor.keep_subprocess_alive()
    assert loading.alive


def test_a_worker_that_cannot_start_is_tried_ever_later(
    supervisor: _Supervisor, clock: Clock
) -> None:
    supervisor.init_processes()
    Fake.starts_ready = False
    pauses = []
    Fake.made[0].alive = False
    for _ in range(9):
        supervisor.keep_subprocess_alive()  # it sees that it died
        started, died_at = len(Fake.made), clock.now
        while len(Fake.made) == started:
            supervisor.keep_subprocess_alive()
            clock.now += 0.5
        pauses.append(clock.now - 0.5 - died_at)
        supervisor.keep_subprocess_alive()  # it loads, and does not answer
        Fake.made[-1].alive = False
    assert pauses == [0, 1, 3, 7, 15, *[LONGEST_PAUSE_S] * 4]
    assert sum(worker.alive for worker in Fake.made) == 2
    Fake.starts_ready = True
    for _ in range(3):  # it sees that it died, starts it, and sees that it answers
        supervisor.keep_subprocess_alive()
        clock.now += LONGEST_PAUSE_S
    new = Fake.made[-1]
    assert (new.alive, new.failures) == (True, 0)


@pytest.mark.parametrize("model", [7, 8])
def test_a_new_worker_with_another_bundle_lets_all_load_it(
    supervisor: _Supervisor, model: int
) -> None:
    supervisor.init_processes()
    for worker in Fake.made:
        worker.group.set("model", 7)
    first, second, third = Fake.made
    second.alive = False
    for _ in range(2):
        supervisor.keep_subprocess_alive()
    Fake.made[-1].group.set("model", model)
    supervisor.keep_subprocess_alive()
    loads = [signal.SIGHUP] * (model != 7)
    assert first.signals == third.signals == loads


def test_what_cleans_up_temporary_folders_finds_that_of_the_workers_locked(tmp_path: Path) -> None:
    handle = os.open(tmp_path, os.O_RDONLY)
    with module._left_alone(str(tmp_path)), pytest.raises(BlockingIOError):
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(handle)


def test_a_folder_that_somebody_deletes_stops_no_worker(
    supervisor: _Supervisor, clock: Clock
) -> None:
    """One that dies is tried again, and what it has counted is gone."""
    supervisor.init_processes()
    shutil.rmtree(supervisor.group.folder)
    second = Fake.made[1]
    second.group.set("held_bytes", 5)
    second.alive = False
    clock.now += 61
    supervisor.keep_subprocess_alive()
    assert pickle.loads(pickle.dumps(second.group)) == second.group
    assert second.group.get("held_bytes") == 0
    supervisor.keep_subprocess_alive()
    assert [worker.alive for worker in Fake.made] == [True, False, True, True]
    assert Fake.made[-1].group.number == 1


def test_workers_with_different_bundles_load_again_until_they_agree(
    supervisor: _Supervisor, clock: Clock
) -> None:
    """A bundle that is replaced while they load it one after the other."""
    supervisor.init_processes()
    Fake.made[1].group.set("model", 7)
    supervisor.keep_subprocess_alive()
    clock.now += LONGEST_PAUSE_S  # one may take as long as that to load
    supervisor.keep_subprocess_alive()
    assert [worker.signals for worker in Fake.made] == [[], [], []]
    for turn in (1, 2):
        clock.now += LONGEST_PAUSE_S + 1
        supervisor.keep_subprocess_alive()
        supervisor.keep_subprocess_alive()
        assert [worker.signals for worker in Fake.made] == [[signal.SIGHUP] * turn] * 3
    for worker in Fake.made:
        worker.group.set("model", 7)
    clock.now += LONGEST_PAUSE_S + 1
    supervisor.keep_subprocess_alive()
    assert len(Fake.made[0].signals) == 2


def test_a_hangup_reaches_only_workers_that_can_load(supervisor: _Supervisor) -> None:
    supervisor.init_processes()
    Fake.made[1].group.set("ready", 0)  # the signal would end it
    supervisor.handle_hup()
    assert [worker.signals for worker in Fake.made] == [[signal.SIGHUP], [], [signal.SIGHUP]]
    assert not supervisor.should_exit.is_set()
    supervisor.terminal_closed = lambda: True
    supervisor.handle_hup()
    assert supervisor.should_exit.is_set()


@pytest.mark.parametrize(
    ("first", "notice_s", "again"),
    [(signal.SIGTERM, 5.0, False), (signal.SIGTERM, 1.0, True), (signal.SIGINT, 0.0, False)],
)
def test_a_stop_closes_the_port_after_the_notice(
    supervisor: _Supervisor, clock: Clock, first: int, notice_s: float, again: bool
) -> None:
    supervisor.init_processes()
    closed = list[float]()
    close = supervisor._dispatcher.close
    supervisor._dispatcher.close = lambda: (closed.append(clock.now), close())[1]  # type: ignore[method-assign,func-returns-value]
    started = clock.now

    def sleep(seconds: float) -> None:
        clock.now += seconds
        if again and clock.now - started > 0.9 and len(Fake.made[0].signals) == 1:
            supervisor.signal_queue += [signal.SIGWINCH, signal.SIGTERM]
        if clock.now - started > 8:
            for worker in Fake.made:
                worker.alive = False

    clock.sleep = sleep  # type: ignore[method-assign]
    supervisor.signal_queue.append(first)
    supervisor.handle_signals()
    assert supervisor.should_exit.is_set()
    supervisor.terminate_all()
    supervisor.join_all()
    assert closed[0] - started == pytest.approx(notice_s, abs=0.11)
    assert [worker.signals for worker in Fake.made] == [[first] * (1 + again)] * 3
    assert isinstance(supervisor.failure, KeyboardInterrupt) == (first == signal.SIGINT)


def test_a_supervisor_that_fails_stops_its_workers(
    supervisor: _Supervisor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def send(worker: Fake, number: int) -> None:
        worker.signals.append(number)
        worker.alive = False

    monkeypatch.setattr(Fake, "send", send)
    monkeypatch.setattr(supervisor, "keep_subprocess_alive", Mock(side_effect=OSError("deleted")))
    with pytest.raises(OSError, match="deleted"):
        supervisor.run()
    assert [worker.signals for worker in Fake.made] == [[signal.SIGTERM]] * 3
    assert not supervisor._dispatcher._thread.is_alive()


def test_a_worker_gets_its_end_of_the_channel_alone(supervisor: _Supervisor) -> None:
    """With ours it would never notice that the supervisor has died."""
    worker = _Worker(supervisor.config, supervisor.settings, supervisor.group)
    state: dict[str, Any] = worker.__getstate__()
    assert state.keys() == {"settings", "group", "_end", "child_conn"}
    for each in (worker.channel, worker._end):
        each.close()
