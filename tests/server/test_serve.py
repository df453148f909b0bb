"""Start and stop `florilege serve` as people do."""

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import httpx
import pytest
from fastapi.testclient import TestClient

from florilege.calibration.record.record_file import read_record
from florilege.errors import BundleError, UsageError
from florilege.models.bundle import open_bundle, replace_files
from florilege.server.app import create_app
from florilege.server.process import LOOP_TURN_MS, PHOTO_TURN_MS, bind
from florilege.server.serve import GracefulServer
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.server_process import ROOT, ServeProcess
from tests.server.server_thread import NO_TLS, Running, wait_for
from tests.server.thread_turns import turn_ms, turns_ms

PHOTO = garden.encoded(garden.pixels(garden.COLOURS[4], side=900), "JPEG", quality=95)


def ask(port: int, path: str = "/v1/identify", body: bytes | None = PHOTO) -> tuple[int, Any]:
    method = "GET" if body is None else "POST"
    response = httpx.request(method, url(port, path), content=body, verify=NO_TLS)
    return response.status_code, response.json()


def url(port: int, path: str) -> str:
    return f"http://127.0.0.1:{port}{path}"


def metrics(port: int) -> str:
    return httpx.get(url(port, "/metrics"), verify=NO_TLS).text


def start_upload(port: int, sent: bytes) -> http.client.HTTPConnection:
    """A connection on which the beginning of `PHOTO` is sent."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/v1/identify", sent, {"Content-Length": str(len(PHOTO))})
    return connection


def refuses(port: int) -> bool:
    """Whether the port refuses connections."""
    with socket.socket() as sock:
        return sock.connect_ex(("127.0.0.1", port)) != 0


def test_sigterm_loses_no_answer(bundle: Path) -> None:
    """Uploads that are arriving, waiting or in progress are all answered; exit code 0."""
    uploads = 8
    with ServeProcess(bundle, "--drain-notice-s", "2.5") as served:
        closed = threading.Event()

        def upload(_: int) -> int:
            with closing(start_upload(served.port, PHOTO[:1000])) as connection:
                assert closed.wait(20)
                connection.send(PHOTO[1000:])
                return connection.getresponse().status

        with ThreadPoolExecutor(uploads) as pool:
            answers = [pool.submit(upload, number) for number in range(uploads)]
            wait_for(lambda: f"in_progress {uploads + 1}.0" in metrics(served.port))
            outcome = time.monotonic()
            served.process.send_signal(signal.SIGTERM)
            wait_for(lambda: ask(served.port, "/readyz", None)[0] == 503)
            assert ask(served.port, "/readyz", None)[1]["code"] == "draining"
            assert ask(served.port, "/livez", None)[0] == 200
            assert ask(served.port)[0] == 200  # requests during the notice are answered too
            wait_for(lambda: refuses(served.port))  # and the uploads are still incomplete
            assert time.monotonic() - outcome >= 2.5
            closed.set()
            assert [answer.result() for answer in answers] == [200] * uploads
        assert served.process.wait(20) == 0


def test_open_connections_do_not_block_a_stop(bundle: Path, tmp_path: Path) -> None:
    """One requests an upgrade, one is in the middle of a head, one sends nothing."""
    state, offer = tmp_path / "watch.json", b"Connection: Upgrade\r\nUpgrade: websocket\r\n"
    with ServeProcess(bundle, "--watch-state", str(state)) as served, ExitStack() as stack:
        post = b"POST /v1/identify HTTP/1.1\r\nHost: x\r\n" + offer
        for tag in (
            post + b"Content-Length: 5\r\n\r\nhello",
            b"GET /v1/model HTTP/1.1\r\nHost: x\r\nAccept-La",
            b"",
        ):
            open_ = socket.create_connection(("127.0.0.1", served.port), timeout=20)
            stack.enter_context(open_).sendall(tag)
        upload = stack.enter_context(closing(start_upload(served.port, PHOTO[:1000])))
        wait_for(lambda: 'code="415"' in metrics(served.port))  # the upgrade request was answered
        served.process.send_signal(signal.SIGTERM)
        wait_for(lambda: refuses(served.port))
        upload.send(PHOTO[1000:])
        assert upload.getresponse().status == 200
        assert served.process.wait(20) == 0
        assert json.loads(state.read_text())


def test_a_stop_waits_for_the_drain_time(bundle: Path) -> None:
    settings = Settings(bundle=bundle, drain_s=7.2, drain_notice_s=0.0)
    server = GracefulServer(create_app(settings))
    assert server.config.timeout_graceful_shutdown == 8  # in whole seconds


@pytest.mark.parametrize("proxy", ["127.0.0.1", "::1", "::ffff:127.0.0.1", "192.0.2.9"])
def test_a_proxy_of_this_machine_names_its_clients(
    bundle: Path, tmp_path: Path, proxy: str
) -> None:
    settings = Settings(bundle=bundle, feedback_store=tmp_path / "store", feedback_rate="1/hour")
    config = GracefulServer(create_app(settings)).config
    config.load()
    with TestClient(config.loaded_app, client=(proxy, 1)) as client:
        answers = [
            client.post("/v1/feedback", json={}, headers={"X-Forwarded-For": f"192.0.2.{host}"})
            for host in (1, 2)
        ]
    assert answers[0].status_code == 400
    assert answers[1].status_code == (429 if proxy == "192.0.2.9" else 400)


def test_a_second_signal_cuts_the_notice_short(bundle: Path) -> None:
    """The process has also been sent what is no request, which leaves no line in the log."""
    headers = {"Content-Type": "multipart/form-data; boundary=b"}
    form = b"--b\r\nno header\r\n\r\n--b--"
    with ServeProcess(bundle, "--drain-notice-s", "600") as served:
        lines = len(served.lines)
        for method, path, body in (("POST", "/v1/identify", form), ("no method", "/", b"")):
            with closing(http.client.HTTPConnection("127.0.0.1", served.port)) as stranger:
                stranger.request(method, path, body, headers)
                assert stranger.getresponse().status == 400
        served.process.send_signal(signal.SIGTERM)
        wait_for(lambda: ask(served.port, "/readyz", None)[0] == 503)
        served.process.send_signal(signal.SIGTERM)
        assert served.process.wait(20) == 0
    assert all(" INFO stop" in line or "route=/readyz" in line for line in served.lines[lines:])
    assert served.lines[-1].endswith(" INFO stopped\n")


def test_a_second_ctrl_c_ends_it_as_cleanly(bundle: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the log closes with a traceback, and the last votes are not written."""
    with Running(bundle) as running:
        close = running.engine.close = Mock(side_effect=running.engine.close)
        for _ in range(2):
            running.server.handle_exit(signal.SIGINT, None)
    assert close.call_count == 1
    assert "Traceback" not in caplog.text


def test_a_port_that_is_taken_is_a_clear_error(bundle: Path) -> None:
    count = socket.socket()
    count.bind(("127.0.0.1", 0))
    count.listen()
    port = str(count.getsockname()[1])
    process = subprocess.run(
        [sys.executable, "-m", "florilege", "serve", str(bundle), "--port", port],
        *(), cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    count.close()
    assert process.returncode == 2
    assert f"port {port}" in process.stderr
    assert "--port" in process.stderr
    assert "Traceback" not in process.stderr


def test_a_port_that_is_taken_meanwhile_is_a_clear_error(bundle: Path) -> None:
    """Two servers that start together are both bound to it until one of them listens."""
    with bind("127.0.0.1", 0) as first, bind(*first.getsockname()) as second:
        server = GracefulServer(create_app(Settings(bundle=bundle)))
        first.listen()
        with pytest.raises(UsageError, match="in use; choose another with --host or --port"):
            server.run(sockets=[second])


@pytest.fixture(scope="module")
def metrics_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("serve") / "metrics"


@pytest.fixture(scope="module")
def shared(bundle: Path, metrics_folder: Path) -> Iterator[ServeProcess]:
    """A process that cannot import torch, and whose environment names a folder for metrics."""
    program = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision", "onnx", "data", "training"}:
            raise ImportError(f"{name} is blocked")
sys.meta_path.insert(0, Refuse())
from florilege.server.cli import app
app()
"""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PROMETHEUS_MULTIPROC_DIR", str(metrics_folder))
        process = ServeProcess(bundle, program=("-c", program))
    with process:
        yield process


def test_the_server_starts_and_answers_where_torch_cannot_be_imported(shared: ServeProcess) -> None:
    status, document = ask(shared.port)
    assert status == 200
    assert document["set"]["size"] >= 1


def test_a_server_writes_no_metrics_into_a_folder_of_others(
    shared: ServeProcess, metrics_folder: Path
) -> None:
    """There files are named after process ids, and in containers all servers have the same."""
    assert "florilege_requests_in_progress 1.0" in metrics(shared.port)
    assert not metrics_folder.exists()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_the_event_loop_and_photos_ask_for_long_turns(shared: ServeProcess) -> None:
    ask(shared.port)
    assert turn_ms(shared.process.pid) == LOOP_TURN_MS
    assert turns_ms(shared.process.pid) == {LOOP_TURN_MS, PHOTO_TURN_MS}


@pytest.mark.parametrize(
    ("host", "port"), [("no.such.host.invalid", 0), ("127.0.0.1", 70000), ("", 0)]
)
def test_an_impossible_address_is_a_usage_error(host: str, port: int) -> None:
    with pytest.raises(UsageError, match=r"cannot listen on .*[^.]; choose another"):
        bind(host, port)


def test_a_calibration_of_another_network_is_refused(served: Path) -> None:
    record = read_record(open_bundle(served))
    for head, model in (("linear", record.measured.model_sha256), (record.head, "0" * 64)):
        scoring = replace(record.scoring, head=head)
        tables = tuple(replace(table, scoring=scoring) for table in record.tables)
        measured = replace(record.measured, model_sha256=model)
        other = replace(record, scoring=scoring, tables=tables, measured=measured)
        content = other.to_json().encode()
        replace_files(served, {"calibration.json": content})
        with pytest.raises(BundleError, match="another network"):
            create_app(Settings(bundle=served))
