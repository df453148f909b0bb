"""Workers ask each other."""

from pathlib import Path

from florilege.processes.shared_state import Peers
from florilege.processes.worker_group import WorkerGroup


def test_a_worker_finds_what_another_one_remembers(tmp_path: Path) -> None:
    groups = [WorkerGroup(tmp_path, 4, number) for number in range(4)]
    (tmp_path / "worker-1.sock").touch()  # of a worker that died
    memory = {0: {"a": b"0" * 10**6}, 1: {"b": b"1"}, 2: dict[str, bytes]()}
    peers = [Peers(group, memory[number].get) for number, group in enumerate(groups[:3])]
    assert peers[2].ask("a") == b"0" * 10**6
    assert peers[0].ask("b") == b"1"
    assert peers[0].ask("a") is None  # it asks only the others; the fourth has not started
    for each in peers:
        each.close()
