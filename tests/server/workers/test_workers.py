"""`florilege serve --workers 2`: what is true of one server is true of both workers together."""

import hashlib
import http.client
import json
import os
import re
import resource
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from florilege.calibration.monitoring.score_log import NAME
from florilege.calibration.record.record_file import read_record
from florilege.cores import cores
from florilege.feedback_store import FILE
from florilege.models.bundle import open_bundle, replace_files
from florilege.processes import METRIC_BYTES, METRIC_KINDS, METRICS, WorkerGroup
from florilege.server.engine import MAX_QUEUE, MIN_QUEUE
from florilege.server.process import LOOP_TURN_MS, MOST_FILES, PHOTO_TURN_MS
from tests.server import garden
from tests.server.server_process import ROOT, ServeProcess
from tests.server.server_thread import NO_TLS, wait_for
from tests.server.thread_turns import turn_ms, turns_ms

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")

PHOTO = garden.encoded(garden.pixels(garden.COLOURS[4], side=400), "JPEG", quality=95)
KEYS = {"app": "", "other": "", "slow": "6/minute"}
VOTES = 80  # an hour, of one client; all tests of the key `app` together send 55


class Workers(ServeProcess):
    """Two workers behind one port."""

    def __init__(self, bundle: Path, *flags: str) -> None:
        super().__init__(bundle, "--workers", "2", "--access-log", *flags)

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)

    def connect(self, stack: ExitStack) -> dict[int, http.client.HTTPConnection]:
        """A connection to each worker, by its number."""
        by_worker = dict[int, http.client.HTTPConnection]()
        while by_worker.keys() != {1, 2}:  # those of the last test may be closing still
            connection = stack.enter_context(closing(self.connection()))
            by_worker.setdefault(self.worker_of(connection), connection)
        return by_worker

    def worker_of(self, connection: http.client.HTTPConnection) -> int:
        """Which worker has a connection."""
        name = os.urandom(8).hex()
        connection.request("GET", "/livez", headers={"X-Request-Id": name})
        assert connection.getresponse().read()
        wait_for(lambda: any(name in line for line in self.lines))
        (line,) = (line for line in self.lines if name in line)
        return int(re.findall(r" worker=(\d)", line)[0])

    def processes(self) -> dict[int, int]:
        """The process of each worker, the last one that answered."""
        lines = (re.search(r"process (\d+) answers .* worker=(\d)", line) for line in self.lines)
        return {int(match[2]): int(match[1]) for match in lines if match}

    def metrics(self) -> dict[str, float]:
        """All samples by name and labels."""
        text = httpx.get(f"http://127.0.0.1:{self.port}/metrics", verify=NO_TLS).text
        return {
            " ".join(
                [sample.name, *(text for _, text in sorted(sample.labels.items()))]
            ): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def kill(self, worker: int) -> None:
        """End a worker, and wait until another process has taken its place."""
        process = self.processes()[worker]
        os.kill(process, signal.SIGKILL)
        wait_for(lambda: self.processes()[worker] != process, seconds=60)


def ask(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    body: bytes | None = None,
    **headers: str,
) -> tuple[int, Any]:
    fields = {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request(method, path, body, {"X-API-Key": "app", **fields})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def vote(connection: http.client.HTTPConnection, answer: str, **headers: str) -> tuple[int, Any]:
    body = json.dumps({"request_id": answer, "class_id": "not_listed", "consent": True}).encode()
    return ask(connection, "POST", "/v1/feedback", body, Content_Type="application/json", **headers)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the workers keep what they keep."""
    folder = tmp_path_factory.mktemp("kept")
    lines = [f"{key} {hashlib.sha256(key.encode()).hexdigest()} {KEYS[key]}" for key in KEYS]
    (folder / "keys").write_text("\n".join(lines))
    return folder


@pytest.fixture(scope="module")
def workers(bundle: Path, folder: Path) -> Iterator[Workers]:
    flags = ("--keys-file", "keys"), ("--feedback-store", "feedback"), ("--score-log", "scores")
    paths = [word for flag, name in flags for word in (flag, str(folder / name))]
    copy = Path(shutil.copytree(bundle, folder / "bundle"))
    more = ("--feedback-photos", "--cache-answers", "8", "--max-held-bytes", "3000000")
    rate = ("--feedback-rate", f"{VOTES}/hour")
    shared = folder / "metrics"
    shared.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROMETHEUS_MULTIPROC_DIR", str(shared))
        with Workers(copy, *paths, *more, *rate) as workers:
            yield workers
    assert not [*shared.iterdir()]  # it may be that of another server


def test_connections_that_are_kept_fall_evenly(workers: Workers) -> None:
    count = 32
    with ExitStack() as stack:
        opened = [stack.enter_context(closing(workers.connection())) for _ in range(count)]
        numbers = Counter(map(workers.worker_of, opened))
        assert set(numbers.values()) == {count // 2}
        assert ask(opened[0], "POST", "/v1/identify", PHOTO)[0] == 200


def test_all_processes_may_open_many_files(workers: Workers) -> None:
    for process in (workers.process.pid, *workers.processes().values()):
        soft, hard = resource.prlimit(process, resource.RLIMIT_NOFILE)
        assert soft >= min(MOST_FILES, hard)


def test_ctrl_c_reaches_the_supervisor_alone(workers: Workers) -> None:
    """A terminal sends it to a whole group of processes; workers must stop in order."""
    own = os.getpgid(workers.process.pid)
    assert own not in {os.getpgid(process) for process in workers.processes().values()}


def test_workers_divide_the_cores(workers: Workers) -> None:
    threads = max(1, cores() // 2)
    lines = [line for line in workers.lines if " answers with " in line]
    assert all(f" {threads} threads" in line for line in lines)


def test_threads_that_work_on_photos_ask_for_longer_turns(workers: Workers) -> None:
    with ExitStack() as stack:
        for worker, connection in workers.connect(stack).items():
            ask(connection, "POST", "/v1/identify", PHOTO)
            process = workers.processes()[worker]
            assert turn_ms(process) == LOOP_TURN_MS
            assert turns_ms(process) == {LOOP_TURN_MS, PHOTO_TURN_MS}


def test_the_rate_of_a_key_is_that_of_all_workers(workers: Workers) -> None:
    with ExitStack() as stack:
        pair = [*workers.connect(stack).values()]
        statuses = [
            ask(pair[number % 2], "GET", "/v1/classes?limit=0", X_API_Key="slow")[0]
            for number in range(10)
        ]
    assert statuses == [200] * 6 + [429] * 4


def test_the_rate_of_votes_is_that_of_all_workers(workers: Workers) -> None:
    with ExitStack() as stack:
        pair = [*workers.connect(stack).values()]
        statuses = [
            vote(pair[number % 2], "0" * 32, X_API_Key="other")[0] for number in range(VOTES + 2)
        ]
    assert statuses == [404] * VOTES + [429] * 2


def test_photos_of_all_workers_fill_one_queue_and_one_limit_of_pixels(workers: Workers) -> None:
    other = WorkerGroup(_folder(workers.processes()[1]), 2, number=1)
    with ExitStack() as stack:
        first = workers.connect(stack)[1]
        other.set("photos", MAX_QUEUE * 2)
        other.set("decoding_pixels", 5)
        try:
            status, problem = ask(first, "POST", "/v1/identify", PHOTO)
            metrics = workers.metrics()
        finally:
            other.set("photos", 0)
            other.set("decoding_pixels", 0)
        assert metrics["florilege_queue_depth"] == MAX_QUEUE * 2
        assert metrics["florilege_decoding_pixels"] == 5
        assert (status, problem["code"]) == (503, "overloaded")
        assert MIN_QUEUE * 2 <= problem["limit"] <= MAX_QUEUE * 2
        assert ask(first, "POST", "/v1/identify", PHOTO)[0] == 200


def test_a_vote_may_reach_another_worker_than_its_answer(workers: Workers, folder: Path) -> None:
    with ExitStack() as stack:
        first, second = workers.connect(stack).values()
        answer = ask(first, "POST", "/v1/identify", PHOTO)[1]["id"]
        status, receipt = vote(second, answer, Idempotency_Key="once")
        assert (status, receipt["photos"]) == (202, 1)
        assert vote(first, answer, Idempotency_Key="once") == (202, receipt)
        assert vote(second, "0" * 32)[1]["code"] == "answer_not_found"
    with closing(sqlite3.connect(folder / "feedback" / FILE)) as store:
        assert store.execute("SELECT count(*) FROM feedback").fetchone() == (1,)
        assert store.execute("SELECT count(*) FROM photos").fetchone() == (1,)


def test_a_vote_does_not_wait_for_a_worker_that_is_stopped(workers: Workers) -> None:
    with ExitStack() as stack:
        pair = workers.connect(stack)
        answer = ask(pair[2], "POST", "/v1/identify", PHOTO)[1]["id"]
        os.kill(workers.processes()[2], signal.SIGSTOP)
        try:
            began = time.monotonic()
            status, problem = vote(pair[1], answer)
            assert time.monotonic() - began < 10
        finally:
            os.kill(workers.processes()[2], signal.SIGCONT)
        assert (status, problem["code"]) == (503, "feedback_not_stored")
        assert vote(pair[1], answer)[0] == 202


def test_votes_at_once_wait_for_each_other(workers: Workers) -> None:
    """Also those with the same photos, or the same Idempotency-Key."""

    def voted(connection: http.client.HTTPConnection, turn: int, number: int) -> int:
        """A slow disk may keep a vote waiting for too long: its client asks again."""
        key = f"{turn}-{number // 2}"
        status, answer = vote(connection, answers[turn], Idempotency_Key=key)
        if status != 503:
            return status
        refused.append(answer["code"])
        return vote(connection, answers[turn], Idempotency_Key=key)[0]

    def votes(number: int) -> list[int]:
        with closing(workers.connection()) as connection:
            return [voted(connection, turn, number) for turn in range(len(answers))]

    refused = list[str]()

    with closing(workers.connection()) as connection:
        answers = [ask(connection, "POST", "/v1/identify", PHOTO)[1]["id"] for _ in range(6)]
    with ThreadPoolExecutor(8) as pool:
        statuses = [status for statuses in pool.map(votes, range(8)) for status in statuses]
    assert statuses == [202] * 48
    assert len(refused) < 5
    assert {*refused} <= {"feedback_not_stored"}


def test_metrics_are_those_of_all_workers_whichever_answers(workers: Workers) -> None:
    with ExitStack() as stack:
        pair = workers.connect(stack)
        before = workers.metrics()
        for connection in pair.values():
            assert ask(connection, "POST", "/v1/identify", PHOTO)[0] == 200
        after = [workers.metrics() for _ in range(2)]  # of either worker
    name = "florilege_http_requests_total 200 POST /v1/identify"
    assert [each[name] - before.get(name, 0) for each in after] == [2, 2]
    for each in after:
        assert each["florilege_queue_depth"] == each["florilege_decoding_pixels"] == 0
        assert each["florilege_requests_in_progress"] == 1
        assert sum(value for key, value in each.items() if "model_info" in key) == 1
        assert each["process_resident_memory_bytes"] > 3 * 40e6
        assert each["process_cpu_seconds_total"] > 1
        assert each["process_start_time_seconds"] <= time.time()
    watch = _folder(workers.processes()[1]) / "watch.json"  # of both together
    wait_for(lambda: 1 <= watched_by(workers) == json.loads(watch.read_text())["rows"])


def watched_by(workers: Workers) -> float:
    return workers.metrics()["florilege_drift_photos"]


def test_what_workers_map_has_no_holes(workers: Workers) -> None:
    """A disk that is full, such as a small `/tmp`, would kill who writes into a hole."""
    folder = _folder(workers.processes()[1])
    files = [folder / "numbers", *(folder / METRICS).iterdir()]
    assert len(files) == 1 + 2 * len(METRIC_KINDS)
    for path in files:
        used = int.from_bytes(path.read_bytes()[:4], "little")
        assert 512 * path.stat().st_blocks >= path.stat().st_size
        assert path.name == "numbers" or used < METRIC_BYTES / 4


def test_uploads_of_all_workers_count_for_one_limit(workers: Workers) -> None:
    with ExitStack() as stack:
        first, second = workers.connect(stack).values()
        first.request(
            *("POST", "/v1/identify", bytes(2_000_000)),
            {"X-API-Key": "app", "Content-Length": "2500000"},
        )
        group = WorkerGroup(_folder(workers.processes()[1]), 2)
        wait_for(lambda: 2_000_000 in group.column("held_bytes"))
        assert ask(second, "POST", "/v1/identify", bytes(1_500_000))[1]["code"] == "overloaded"
        first.close()
        wait_for(lambda: ask(second, "POST", "/v1/identify", bytes(1_500_000))[0] == 415)


def test_a_hangup_reaches_all_workers(workers: Workers, folder: Path) -> None:
    with ExitStack() as stack:
        pair = workers.connect(stack).values()
        old = [ask(each, "GET", "/v1/model")[1]["model"]["calibration_id"] for each in pair]
        content = read_record(open_bundle(folder / "bundle")).to_json()
        new = "f" * 16
        replace_files(
            folder / "bundle", {"calibration.json": content.replace(old[0], new).encode()}
        )
        workers.process.send_signal(signal.SIGHUP)

        def served() -> set[str]:
            return {ask(each, "GET", "/v1/model")[1]["model"]["calibration_id"] for each in pair}

        wait_for(lambda: served() == {new})


def test_the_cache_of_answers_is_divided(workers: Workers) -> None:
    colour = garden.COLOURS[2]
    photos = [garden.encoded(garden.pixels(colour, side=50 + n), "JPEG") for n in range(5)]

    def lookups() -> list[float]:
        names = [f"florilege_cache_lookups_total {outcome}" for outcome in ("hit", "miss")]
        return [workers.metrics().get(name, 0.0) for name in names]

    hits, misses = lookups()
    with ExitStack() as stack:
        connection = workers.connect(stack)[1]
        for number in (0, 1, 2, 3, 4, 4, 0):  # four of eight are this worker's: the first is gone
            assert ask(connection, "POST", "/v1/identify", photos[number])[0] == 200
    assert lookups() == [hits + 1, misses + 6]


def test_workers_load_a_changed_bundle_themselves_and_fail_no_request(
    bundle: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(bundle, tmp_path / "bundle"))
    content = read_record(open_bundle(copy)).to_json()
    old = json.loads(content)["calibration_id"]
    with Workers(copy, "--reload-every-s", "0.2") as workers, ExitStack() as stack:
        pair, names = workers.connect(stack).values(), list[str]()

        def ask_both() -> set[str]:
            answers = [ask(each, "POST", "/v1/identify", PHOTO) for each in pair]
            assert {status for status, _ in answers} == {200}
            names.extend(answer["model"]["calibration_id"] for _, answer in answers)
            return {*names[-2:]}

        assert ask_both() == {old}
        replace_files(copy, {"calibration.json": content.replace(old, "e" * 16).encode()})
        wait_for(lambda: ask_both() == {"e" * 16})
        assert {*names} == {old, "e" * 16}


def test_workers_write_one_score_log(workers: Workers, folder: Path) -> None:
    with ExitStack() as stack:
        for each in workers.connect(stack).values():
            assert ask(each, "POST", "/v1/identify", PHOTO)[0] == 200
    name = "florilege_score_log_photos_total written"
    wait_for(lambda: workers.metrics()[name] == workers.metrics()["florilege_set_size_count"])
    paths = [*(folder / "scores").glob(NAME)]
    assert len(paths) >= 2
    assert sum(len(path.read_text().splitlines()) for path in paths) == workers.metrics()[name]


def test_a_worker_that_is_killed_fails_its_own_uploads_alone(served: Path, tmp_path: Path) -> None:
    """Totals stay, gauges go, a damaged bundle does not end the others, a stop loses no answer."""
    state = tmp_path / "watch.json"
    with Workers(served, "--drain-notice-s", "1", "--watch-state", str(state)) as workers:
        with ExitStack() as stack:
            pair = workers.connect(stack)
            for connection in pair.values():
                assert ask(connection, "POST", "/v1/identify", PHOTO)[0] == 200
                connection.request(
                    "POST", "/v1/identify", PHOTO[:1000], {"Content-Length": str(len(PHOTO))}
                )
            wait_for(lambda: workers.metrics()["florilege_requests_in_progress"] == 3)
            manifest = (served / "bundle.json").read_bytes()
            (served / "bundle.json").write_bytes(b"{}")
            os.kill(workers.processes()[2], signal.SIGKILL)
            wait_for(lambda: any("worker 2: " in line for line in workers.lines))
            pair[1].send(PHOTO[1000:])
            assert pair[1].getresponse().status == 200
            with suppress(ConnectionError):
                pair[2].send(PHOTO[1000:])
            with pytest.raises((ConnectionError, http.client.HTTPException)):
                pair[2].getresponse()
        wait_for(lambda: sum("bundle.json" in line for line in workers.lines) >= 1, seconds=60)
        metrics = workers.metrics()
        name = "florilege_http_requests_total 200 POST /v1/identify"
        assert (metrics[name], metrics["florilege_requests_in_progress"]) == (3, 1)
        (served / "bundle.json").write_bytes(manifest)
        wait_for(
            lambda: any("worker 2 answers again" in line for line in workers.lines), seconds=60
        )
        after = workers.metrics()
        assert (after[name], after["florilege_requests_in_progress"]) == (3, 1)
        assert after["process_cpu_seconds_total"] >= metrics["process_cpu_seconds_total"]
        with ExitStack() as stack:
            pair = workers.connect(stack)
            for connection in pair.values():
                connection.request(
                    "POST", "/v1/identify", PHOTO[:1000], {"Content-Length": str(len(PHOTO))}
                )
            wait_for(lambda: workers.metrics()["florilege_requests_in_progress"] == 3)
            workers.process.send_signal(signal.SIGTERM)
            wait_for(lambda: _refuses(workers.port))
            for connection in pair.values():
                connection.send(PHOTO[1000:])
                assert connection.getresponse().status == 200
            assert workers.process.wait(30) == 0
        assert json.loads(state.read_text())["rows"] >= 1
    assert all(" worker=" in line for line in workers.lines if " answers with " in line)


def test_workers_do_not_outlive_a_supervisor_that_is_killed(bundle: Path) -> None:
    """They finish their last answers, and the port is free at once."""
    with Workers(bundle) as workers, ExitStack() as stack:
        pair = workers.connect(stack)
        for connection in pair.values():
            connection.request(
                "POST", "/v1/identify", PHOTO[:1000], {"Content-Length": str(len(PHOTO))}
            )
        wait_for(lambda: workers.metrics()["florilege_requests_in_progress"] == 3)
        processes = workers.processes().values()
        folders = {_folder(process) for process in processes}
        workers.process.kill()
        wait_for(lambda: _refuses(workers.port))
        with socket.create_server(("127.0.0.1", workers.port)):
            for connection in pair.values():
                connection.send(PHOTO[1000:])
                assert connection.getresponse().status == 200
        wait_for(lambda: not any(Path(f"/proc/{process}").exists() for process in processes))
        assert not any(folder.exists() for folder in folders)


def _folder(process: int) -> Path:
    """The private folder of the workers."""
    maps = Path(f"/proc/{process}/maps").read_text()
    return Path(re.findall(r"(/\S+)/numbers", maps)[0])


def _refuses(port: int) -> bool:
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--workers", "2", "--port", "PORT"], 2, "cannot listen on 127.0.0.1 port"),
        (["--workers", "2", "--port", "0", "--keys-file", "missing"], 2, "--keys-file missing"),
    ],
)
def test_what_cannot_start_ends_with_one_sentence(
    bundle: Path, words: list[str], code: int, message: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        words = [port if word == "PORT" else word for word in words]
        process = subprocess.run(
            [sys.executable, "-m", "florilege", "serve", str(bundle), *words],
            *(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
    assert process.returncode == code, process.stderr
    assert process.stderr.count(message) == 1
    assert "Traceback" not in process.stderr
