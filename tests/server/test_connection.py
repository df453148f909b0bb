"""A client's connection: errors, slow uploads, and refusals that must reach it."""

import http.client
import json
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from florilege.server.settings import Settings
from tests.server import garden
from tests.server.server_thread import Running, wait_for

PHOTO = garden.photo(0)
FORM = {"Content-Type": "multipart/form-data; boundary=x"}


@pytest.mark.parametrize(
    ("method", "path", "body", "headers", "status"),
    [
        ("POST", "/v1/identify?nonsense=1", PHOTO, {}, 400),
        ("POST", "/v1/identify", b"no form", FORM, 400),
        ("GET", "/nowhere", None, {}, 404),
        ("POST", "/nowhere", PHOTO, {}, 404),
        ("GET", "/v1/identify", None, {}, 405),
        ("POST", "/v1/identify", b"text", {}, 415),
        ("POST", "/v1/identify", PHOTO[:-40], {}, 422),
        ("POST", "/v1/identify", b"", {}, 422),
        ("POST", "/v1/identify?k=99", PHOTO, {}, 422),
    ],
)
def test_a_connection_is_still_good_after_an_error(
    running: Running,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    status: int,
) -> None:
    connection = running.connection()
    connection.request(method, path, body, headers)
    response = connection.getresponse()
    assert response.status == status
    assert json.loads(response.read())["status"] == status
    assert response.getheader("connection") != "close"
    sock = connection.sock
    connection.request("POST", "/v1/identify", PHOTO)
    response = connection.getresponse()
    assert response.status == 200
    assert json.loads(response.read())["set"]["size"] >= 1
    assert connection.sock is sock  # not opened anew
    connection.close()


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/v1/model", "/metrics", "/"])
def test_head_gives_the_headers_of_get_without_a_body(running: Running, path: str) -> None:
    connection = running.connection()
    headers = []
    for method in ("GET", "HEAD", "GET"):  # a body left behind would damage the last answer
        connection.request(method, path)
        response = connection.getresponse()
        assert response.status == 200
        assert bool(response.read()) == (method == "GET")
        headers.append({name.lower() for name in response.headers})
    connection.request("GET", "/metrics")
    metrics = connection.getresponse().read().decode()
    connection.close()
    assert headers[0] == headers[1]
    assert f'http_requests_total{{code="200",method="HEAD",route="{path}"}}' in metrics


def test_a_bug_costs_the_client_one_answer_but_not_the_connection(bundle: Path) -> None:
    with Running(Settings(bundle=bundle)) as running:
        good = running.engine.pipeline
        connection = running.connection()
        broken = replace(good, bundle=cast(Any, None))
        for pipeline, status in ((broken, 500), (good, 200)):
            running.engine.pipeline = pipeline
            connection.request("POST", "/v1/identify", PHOTO)
            response = connection.getresponse()
            response.read()
            assert response.status == status
            assert connection.sock is not None
        running.engine.pipeline = good
        connection.close()


def test_a_client_that_reads_only_after_its_last_byte_gets_the_refusal(
    running: Running,
) -> None:
    size = 20_000_000  # ten times the limit, far beyond what socket buffers hold
    connection = running.connection()
    connection.request("POST", "/v1/identify", bytes(size), {"Content-Length": str(size)})
    response = connection.getresponse()
    document = json.loads(response.read())
    assert (response.status, document["code"]) == (413, "body_too_large")
    assert response.getheader("connection") == "close"
    connection.close()


def test_a_client_that_asks_before_it_sends_sends_nothing(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=15) as sock:
        sock.sendall(
            b"POST /v1/identify HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Length: 209715200\r\n\r\n"
        )
        assert sock.recv(4096).startswith(b"HTTP/1.1 413")


def test_expect_100_continue_is_accepted_below_the_limit(running: Running) -> None:
    with socket.create_connection(("127.0.0.1", running.port), timeout=15) as sock:
        sock.sendall(
            b"POST /v1/identify HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Length: %d\r\n\r\n" % len(PHOTO)
        )
        assert sock.recv(4096).startswith(b"HTTP/1.1 100")
        sock.sendall(PHOTO)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_slow_upload_is_refused_while_others_are_answered(bundle: Path) -> None:
    with Running(Settings(bundle=bundle, upload_deadline_s=0.5)) as running:
        slow = []
        for _ in range(30):
            sock = socket.create_connection(("127.0.0.1", running.port), timeout=15)
            sock.sendall(b"POST /v1/identify HTTP/1.1\r\nHost: x\r\nContent-Length: 9999\r\n\r\nx")
            slow.append(sock)
        connection = running.connection()
        connection.request("POST", "/v1/identify", PHOTO)
        assert connection.getresponse().status == 200
        connection.close()
        for sock in slow:
            response = http.client.HTTPResponse(sock)
            response.begin()
            document = json.loads(response.read())
            assert (response.status, document["code"]) == (408, "upload_too_slow")
            assert document["retryable"] is True
            assert response.getheader("connection") == "close"
            sock.close()
        wait_until_nothing_is_held(running)


def test_clients_that_vanish_in_the_middle_of_an_upload_leave_nothing_behind(
    running: Running,
) -> None:
    for _ in range(20):
        sock = socket.create_connection(("127.0.0.1", running.port), timeout=15)
        sock.sendall(b"POST /v1/identify HTTP/1.1\r\nHost: x\r\nContent-Length: 99999\r\n\r\nabc")
        sock.close()
    wait_until_nothing_is_held(running)
    connection = running.connection()
    connection.request("POST", "/v1/identify", PHOTO)
    assert connection.getresponse().status == 200
    connection.close()


def wait_until_nothing_is_held(running: Running) -> None:
    wait_for(lambda: not running.app.state.upload_budget.now and not running.engine.depth)
