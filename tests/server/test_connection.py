"""A client's connection: errors, slow uploads, and refusals that must reach it."""

import json
import socket
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest

from tests.server import garden
from tests.server.http.test_connection import answer
from tests.server.server_thread import Running, wait_for

PHOTO = garden.photo(0)
HEAD = b"POST /v1/identify HTTP/1.1\r\nHost: x\r\n"
FORM = {"Content-Type": "multipart/form-data; boundary=x"}


@pytest.fixture
def connection(running: Running) -> Iterator[HTTPConnection]:
    with closing(running.connection()) as connection:
        yield connection


def ask(
    connection: HTTPConnection,
    method: str = "POST",
    path: str = "/v1/identify",
    body: bytes | None = PHOTO,
    headers: Mapping[str, str] = MappingProxyType({}),
) -> tuple[HTTPResponse, bytes]:
    """The response to a request, and its body."""
    connection.request(method, path, body, dict(headers))
    response = connection.getresponse()
    return response, response.read()


def opened(running: Running, sent: bytes) -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", running.port), timeout=15)
    sock.sendall(sent)
    return sock


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
    connection: HTTPConnection,
    method: str,
    path: str,
    body: bytes | None,
    headers: dict[str, str],
    status: int,
) -> None:
    response, content = ask(connection, method, path, body, headers)
    assert response.status == json.loads(content)["status"] == status
    assert response.getheader("connection") != "close"
    sock = connection.sock
    response, content = ask(connection)
    assert response.status == 200
    assert json.loads(content)["set"]["size"] >= 1
    assert connection.sock is sock  # not opened anew


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/v1/model", "/metrics", "/"])
def test_head_gives_the_headers_of_get_without_a_body(
    connection: HTTPConnection, path: str
) -> None:
    headers = []
    for method in ("GET", "HEAD", "GET"):  # a body left behind would damage the last answer
        response, content = ask(connection, method, path, None)
        assert response.status == 200
        assert bool(content) == (method == "GET")
        headers.append({name.lower() for name in response.headers})
    assert headers[0] == headers[1]
    metrics = ask(connection, "GET", "/metrics", None)[1].decode()
    assert f'http_requests_total{{code="200",method="HEAD",route="{path}"}}' in metrics


def test_a_bug_costs_the_client_one_answer_but_not_the_connection(bundle: Path) -> None:
    with Running(bundle) as running, closing(running.connection()) as connection:
        good = running.engine.pipeline
        broken = replace(good, bundle=cast(Any, None))
        for pipeline, status in ((broken, 500), (good, 200)):
            running.engine.pipeline = pipeline
            assert ask(connection)[0].status == status
            assert connection.sock is not None


def test_a_client_that_reads_only_after_its_last_byte_gets_the_refusal(
    connection: HTTPConnection,
) -> None:
    size = 20_000_000  # ten times the limit, far beyond what socket buffers hold
    response, content = ask(connection, body=bytes(size))
    assert (response.status, json.loads(content)["code"]) == (413, "body_too_large")
    assert response.getheader("connection") == "close"


def test_a_client_that_asks_before_it_sends_sends_nothing(running: Running) -> None:
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: 209715200\r\n\r\n"
    with opened(running, head) as sock:
        assert sock.recv(4096).startswith(b"HTTP/1.1 413")


def test_expect_100_continue_is_accepted_below_the_limit(running: Running) -> None:
    head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(PHOTO)
    with opened(running, head) as sock:
        assert sock.recv(4096).startswith(b"HTTP/1.1 100")
        sock.sendall(PHOTO)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_slow_upload_is_refused_while_others_are_answered(bundle: Path) -> None:
    with Running(bundle, upload_deadline_s=0.5) as running:
        slow = [opened(running, HEAD + b"Content-Length: 9999\r\n\r\nx") for _ in range(30)]
        with closing(running.connection()) as connection:
            assert ask(connection)[0].status == 200
        for sock in slow:
            status, document, response = answer(sock)
            assert (status, document["code"]) == (408, "upload_too_slow")
            assert document["retryable"] is True
            assert response.getheader("connection") == "close"
            sock.close()
        wait_until_nothing_is_held(running)


def test_clients_that_vanish_in_the_middle_of_an_upload_leave_nothing_behind(
    running: Running, connection: HTTPConnection
) -> None:
    for _ in range(20):
        opened(running, HEAD + b"Content-Length: 99999\r\n\r\nabc").close()
    wait_until_nothing_is_held(running)
    assert ask(connection)[0].status == 200


def wait_until_nothing_is_held(running: Running) -> None:
    wait_for(lambda: not running.app.state.upload_budget.now and not running.engine.depth)
