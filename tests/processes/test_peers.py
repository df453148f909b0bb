"""Workers ask each other."""

import errno
import shutil
import socket
import struct
import time
from contextlib import closing
from pathlib import Path
from unittest.mock import Mock

import pytest

from florilege.processes import WorkerGroup, shared_state
from florilege.processes.shared_state import Peers


def test_a_worker_finds_what_another_one_remembers(tmp_path: Path) -> None:
    groups = [WorkerGroup(tmp_path, 4, number) for number in range(4)]
    groups[0].create()
    (tmp_path / "worker-1.sock").touch()  # of a worker that died
    memory = {0: {"a": b"0" * 10**6}, 1: {"b": b"1"}, 2: dict[str, bytes]()}
    peers = [Peers(group, memory[number].get) for number, group in enumerate(groups[:3])]
    assert peers[2].ask("a") == b"0" * 10**6
    assert peers[0].ask("b") == b"1"
    assert peers[0].ask("a") is None  # it asks only the others; the fourth has not started
    for each in peers:
        each.close()


def test_what_a_worker_remembers_is_not_unknown_because_somebody_deletes_the_folder(
    tmp_path: Path,
) -> None:
    groups = [WorkerGroup(tmp_path, 2, number) for number in range(2)]
    groups[0].create()
    with (
        closing(Peers[str, str](groups[0], {"a": "1"}.get)),
        closing(Peers[str, str](groups[1], {"b": "2"}.get)) as own,
    ):
        for group in groups:
            group.set("ready", 1)
        assert own.ask("a") == "1"
        shutil.rmtree(tmp_path)
        with pytest.raises(TimeoutError):
            own.ask("a")
        groups[0].set("ready", 0)  # it has died, and knows nothing
        assert own.ask("a") is None


@pytest.mark.parametrize("asked_first", [True, False])
def test_a_worker_that_is_stopped_keeps_no_other_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asked_first: bool
) -> None:
    """It accepts what is asked, and never answers; nor does it end a question of its own."""
    monkeypatch.setattr(shared_state, "_WAIT", struct.pack("@ll", 0, 200_000))
    groups = [WorkerGroup(tmp_path, 3, number) for number in range(3)]
    stopped, asking, answering = (0, 1, 2) if asked_first else (2, 0, 1)
    with (
        socket.socket(socket.AF_UNIX) as listener,
        socket.socket(socket.AF_UNIX) as question,
        closing(Peers[str, str](groups[asking], {"own": ""}.get)) as peer,
        closing(Peers[str, str](groups[answering], {"a": "1"}.get)),
    ):
        listener.bind(str(tmp_path / f"worker-{stopped}.sock"))
        listener.listen()
        question.connect(str(tmp_path / f"worker-{answering}.sock"))
        began = time.monotonic()
        with pytest.raises(TimeoutError):  # the stopped one may have it
            peer.ask("b")
        assert time.monotonic() - began < 5
        assert peer.ask("a") == "1"


def test_where_too_many_files_are_open_no_core_is_kept_busy(tmp_path: Path) -> None:
    groups = [WorkerGroup(tmp_path, 2, number) for number in range(2)]
    asked, asking = (Peers[str, str](group, {"a": "1"}.get) for group in groups)
    with closing(asking):
        listener = asked._listener
        asked._listener = full = Mock()
        full.accept.side_effect = OSError(errno.EMFILE, "Too many open files")
        full.fileno.return_value = 7
        asking.ask("a")  # the answer to this one is on its way already
        time.sleep(0.2)
        full.fileno.return_value = -1
        listener.close()
    assert 1 <= full.accept.call_count < 100
