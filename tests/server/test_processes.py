"""Photos looked at by other processes than the one that answers."""

import json
import os
import shutil
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

import pytest

from models.bundle import open_bundle, replace_files
from models.errors import BundleError
from models.images import DamagedImage, read_header
from models.session import Session
from server.errors import Loading
from server.processes import ATTEMPTS, Order, Processes, _longer
from server.settings import Settings
from tests.server import garden
from tests.server.counted import value
from tests.server.http.test_keys import bearer, line
from tests.server.process import ServeProcess
from tests.server.running import Running, wait_for
from tests.server.test_reloading import outcomes, recalibrated, reload
from tests.server.test_serve import ask

PHOTO = garden.photo(0)
MOST = 1_000_000


class Deadly:
    """Ends the process that it is sent to."""

    def __reduce__(self) -> Any:
        return os._exit, (3,)


@pytest.fixture
def served(bundle: Path, tmp_path: Path) -> Path:
    """A bundle of its own to change."""
    return Path(shutil.copytree(bundle, tmp_path / "served"))


@pytest.fixture
def processes(bundle: Path) -> Iterator[Processes]:
    found = Processes(Order(open_bundle(bundle), "cpu"), [1, 1])
    yield found
    found.close()


def children(of: int) -> set[int]:
    """Processes that are not only there to be waited for."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if int(parent) == of and state != "Z":
                found.add(int(entry.name))
    return found


def runs(pid: int) -> bool:
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_they_see_what_this_process_would_see(bundle: Path, processes: Processes) -> None:
    session = Session(open_bundle(bundle), device="cpu")
    assert (processes.provider, processes.dimensions) == (session.provider, session.dimensions)
    for number in range(4):
        photo = read_header(garden.photo(number))
        ours, _ = session.look(photo)
        theirs, seconds = processes.look(photo, max_pixels=MOST)
        assert {head: values.tolist() for head, values in theirs.logits.items()} == {
            head: values.tolist() for head, values in ours.logits.items()
        }
        assert theirs.features is None
        assert seconds > 0


def test_a_photo_that_cannot_be_used_is_refused_as_here(processes: Processes) -> None:
    whole = garden.encoded(garden.pixels(garden.COLOURS[0], side=200), "JPEG")
    with pytest.raises(DamagedImage, match="cut short"):
        processes.look(read_header(whole[:-1000]), max_pixels=MOST)
    with pytest.raises(ValueError, match="at most 50") as caught:
        processes.look(read_header(whole), max_pixels=50)
    assert vars(caught.value)["limit"] == 50
    with pytest.raises(RuntimeError, match=r"Traceback(.|\n)*at least 1"):  # a mistake of ours
        processes.look(read_header(whole), max_pixels=0)
    assert processes.look(read_header(PHOTO), max_pixels=MOST)
    assert processes.ended == 0


def test_one_that_ended_while_it_had_nothing_to_do_is_passed_over(processes: Processes) -> None:
    os.kill(processes.pids[0], signal.SIGKILL)
    wait_for(lambda: processes.ended == 1)
    for _ in range(3):
        assert processes.look(read_header(PHOTO), max_pixels=MOST)


def test_a_photo_that_ends_two_processes_is_given_up_and_others_wait_for_the_next(
    processes: Processes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo, deadly = read_header(PHOTO), cast(int, Deadly())
    with pytest.raises(RuntimeError, match=f"{ATTEMPTS} processes ended"):
        processes.look(photo, max_pixels=deadly)
    monkeypatch.setattr("server.processes.WAIT_S", 0.01)
    with pytest.raises(Loading) as caught:
        processes.look(photo, max_pixels=MOST)
    monkeypatch.undo()
    assert caught.value.retry_after
    assert processes.look(photo, max_pixels=MOST)  # waits
    wait_for(lambda: processes.working == 2)
    assert processes.ended == 2
    assert "for photos ended with 3" in caplog.text


def test_a_network_that_does_not_load_is_refused_and_leaves_no_process(served: Path) -> None:
    before = children(os.getpid())
    replace_files(served, {"model.onnx": b"broken"})
    with pytest.raises(BundleError, match="cannot be loaded"):
        Processes(Order(open_bundle(served), "cpu"), [1, 1])
    assert children(os.getpid()) == before


def test_where_another_network_lies_there_now_no_process_follows(
    served: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """One answer's photos must never be seen by networks of two bundles."""
    processes = Processes(Order(open_bundle(served), "cpu"), [1])
    replace_files(served, {"model.onnx": (served / "model.onnx").read_bytes() + b"\0"})
    (pid,) = processes.pids
    os.kill(pid, signal.SIGKILL)
    wait_for(lambda: "no other process for photos can begin" in caplog.text)
    assert f"process {pid} for photos was ended by SIGKILL" in caplog.text
    assert processes.working == 0
    processes.close()


def test_pauses_grow_to_a_limit_while_none_can_begin() -> None:
    pauses = [0.0]
    for _ in range(8):
        pauses.append(_longer(pauses[-1]))
    assert pauses == [0, 0.5, 1, 2, 4, 8, 16, 30, 30]


@pytest.fixture
def two(served: Path, tmp_path: Path) -> Iterator[Running]:
    """A server with two processes, a key that may ask forty times, and a store."""
    keys = tmp_path / "keys"
    keys.write_text(line("app", "k1", "40/hour") + line("other", "k2"))
    settings = Settings(
        bundle=served, processes=2, keys_file=keys, feedback_store=tmp_path / "store"
    )
    with Running(settings) as running:
        yield running
    assert not [pid for pid in pids(running) if runs(pid)]


def pids(running: Running) -> list[int]:
    session = running.engine.pipeline.session
    assert isinstance(session, Processes)
    return session.pids


def post(running: Running, path: str, body: bytes, key: str, **headers: str) -> tuple[int, Any]:
    connection = running.connection()
    connection.request("POST", path, body, {**bearer(key), **headers})
    response = connection.getresponse()
    found = response.status, json.loads(response.read())
    connection.close()
    return found


def test_a_process_that_is_killed_takes_no_request_with_it(two: Running, tmp_path: Path) -> None:
    """And all that is counted, limited and stored is so once, whichever process saw the photo."""
    first = pids(two)
    os.kill(first[0], signal.SIGSTOP)  # so that it has a photo when it is killed

    def identify(number: int) -> tuple[int, Any]:
        if number == 15:
            os.kill(first[0], signal.SIGKILL)
        return post(two, "/v1/identify", garden.photo(number % 12), "k1")

    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(identify, range(45)))
        assert Counter(status for status, _ in answers) == {200: 40, 429: 5}
        given = [document for status, document in answers if status == 200]
        said = [
            json.dumps({"request_id": each["id"], "class_id": "1001"}).encode() for each in given
        ]
        sent = {"Content-Type": "application/json"}
        told = list(pool.map(lambda one: post(two, "/v1/feedback", one, "k2", **sent), said))
    assert {status for status, _ in told} == {202}
    lines = [
        json.loads(text)
        for path in (tmp_path / "store").glob("*.jsonl")
        for text in path.read_text().splitlines()
    ]
    assert sorted(row["request_id"] for row in lines) == sorted(each["id"] for each in given)
    assert value(two.engine.metrics, "set_size_count") == 40
    assert value(two.engine.metrics, "stage_duration_seconds_count", stage="forward") == 40
    wait_for(lambda: len(pids(two)) == 2)
    assert first[0] not in pids(two)
    metrics = two.engine.metrics
    assert (value(metrics, "processes"), value(metrics, "processes_ended")) == (2, 1)


def test_a_swap_replaces_the_processes_and_a_broken_bundle_leaves_them(
    two: Running, served: Path
) -> None:
    first = pids(two)
    recalibrated(served, "second")
    reload(two)
    assert outcomes(two) == {"swapped": 1.0, "unchanged": 0.0, "refused": 0.0}
    wait_for(lambda: not any(runs(pid) for pid in first))
    second = pids(two)
    assert post(two, "/v1/identify", PHOTO, "k1")[1]["model"]["calibration_id"] == "second"
    reload(two)  # the same bundle
    (served / "model.onnx").write_bytes(b"broken")
    reload(two)
    assert outcomes(two) == {"swapped": 1.0, "unchanged": 1.0, "refused": 1.0}
    assert pids(two) == second
    assert children(os.getpid()) == set(second)
    assert post(two, "/v1/identify", PHOTO, "k1")[0] == 200


def test_a_server_without_processes_is_not_ready(two: Running, monkeypatch: Any) -> None:
    assert ask(two.port, "/readyz", None)[0] == 200
    with monkeypatch.context() as patch:
        patch.setattr(Processes, "working", 0)
        status, document = ask(two.port, "/readyz", None)
    assert (status, document["code"]) == (503, "loading")


def test_the_others_end_with_the_one_that_listens(bundle: Path) -> None:
    with ServeProcess(bundle, "--processes", "3", "--threads", "4") as serving:
        assert "4 threads in 3 processes" in "".join(serving.lines)
        assert ask(serving.port)[0] == 200
        others = children(serving.process.pid)
        assert len(others) == 3
        if sys.platform == "linux":
            policies = {os.sched_getscheduler(pid) for pid in (serving.process.pid, *others)}
            assert policies == {os.SCHED_BATCH}
        for pid in others:  # as supervisors do
            os.kill(pid, signal.SIGTERM)
            os.kill(pid, signal.SIGINT)
        assert ask(serving.port)[0] == 200
        assert children(serving.process.pid) == others
        serving.process.kill()
        wait_for(lambda: not any(runs(pid) for pid in others))


@pytest.mark.parametrize(
    ("threads", "processes", "each"),
    [(4, 2, [2, 2]), (5, 3, [2, 2, 1]), (3, 3, [1, 1, 1]), (4, 1, [])],
)
def test_threads_are_divided_among_processes(
    bundle: Path, threads: int, processes: int, each: list[int]
) -> None:
    settings = Settings(bundle=bundle, threads=threads, processes=processes)
    assert settings.photos_at_once == threads
    assert settings.threads_of_processes == each


def test_without_threads_each_core_and_each_process_has_one(
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("server.settings.cores", lambda: 4)
    assert Settings(bundle=bundle, processes=2).threads_of_processes == [2, 2]
    assert Settings(bundle=bundle, processes=6).threads_of_processes == [1] * 6


def test_fewer_threads_than_processes_and_no_process_are_refused(bundle: Path) -> None:
    with pytest.raises(ValueError, match="3 of them need as many threads, got threads 2"):
        Settings(bundle=bundle, threads=2, processes=3)
    with pytest.raises(ValueError, match=r"processes: .* greater than or equal to 1, got 0"):
        Settings(bundle=bundle, processes=0)
