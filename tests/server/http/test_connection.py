"""A client's connection: what it accepts, errors, slow uploads, refusals that must arrive."""

import json
import logging
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any, cast

import h11
import pytest

from florilege.server.http.connection import (
    MANY_CHUNKS,
    MAX_ESCAPES,
    MAX_HEAD_BYTES,
    SMALL_CHUNK_BYTES,
)
from tests.server import garden
from tests.server.metric_values import value
from tests.server.server_thread import Running, wait_for

PHOTO = garden.photo(0)
GET = b"GET /livez HTTP/1.1\r\nHost: x\r\n"
POST = b"POST /v1/identify HTTP/1.1\r\nHost: x\r\n"
WHOLE = b"Content-Length: %d\r\n\r\n" % len(PHOTO) + PHOTO
CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"
WEBSOCKET = (
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n"
)
H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n"
GIVEN_UP = 10 * 2**20  # bytes after which a test stops sending


def opened(running: Running, sent: bytes = b"") -> socket.socket:
    sock = socket.create_connection(("127.0.0.1", running.port), timeout=15)
    sock.sendall(sent)
    return sock


def answer(sock: socket.socket) -> tuple[int, dict[str, Any], HTTPResponse]:
    """Status and document of the next answer, and its headers."""
    response = HTTPResponse(sock)
    response.begin()
    return response.status, json.loads(response.read()), response


def asked(running: Running, sent: bytes) -> tuple[int, dict[str, Any], HTTPResponse]:
    with opened(running, sent) as sock:
        return answer(sock)


@contextmanager
def rejected_once(running: Running, reason: str) -> Iterator[None]:
    """Check that the block leads to one more rejection."""
    before = value(running.engine.metrics, "rejected_total", reason=reason)
    yield
    assert value(running.engine.metrics, "rejected_total", reason=reason) == before + 1


def chunks(size: int, many: int) -> bytes:
    """A body of ``many`` chunks of ``size`` bytes, without its end."""
    return (b"%x\r\n" % size + b"x" * size + b"\r\n") * many


def test_head_and_body_of_an_answer_leave_together(running: Running) -> None:
    with opened(running) as sock:
        for _ in range(3):
            sock.sendall(GET + b"\r\n")
            head, _, body = sock.recv(65536).partition(b"\r\n\r\n")
            assert (head[:15], body) == (b"HTTP/1.1 200 OK", b'{"status":"alive"}')


@pytest.mark.parametrize("offer", [WEBSOCKET, H2C, b"Connection: Upgrade\r\nUpgrade: x\r\n"])
def test_a_request_to_upgrade_the_protocol_changes_nothing(
    running: Running, offer: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with opened(running) as sock:
        for _ in range(2):
            sock.sendall(POST + offer + WHOLE)
            status, document, _ = answer(sock)
            assert status == 200
            assert document["set"]["size"] >= 1
    assert not caplog.records


@pytest.mark.parametrize(
    ("first", "piece"),
    [
        (GET, b"X-Name: some value\r\n" * 1000),
        (GET, b"a:b\r\n" * 4000),
        (GET + b"Accept-Language: en", b",en;q=0.5" * 2000),
        (b"GET /", b"a" * 20_000),
        (b"GET /v1/model?x=", b"a" * 20_000),
        (b"", b"a" * 20_000),
        (POST + CHUNKED + b"3;x=", b"a" * 20_000),
        (POST + CHUNKED + b"3\r\nabc\r\n0\r\n", b"X-Name: some value\r\n" * 1000),
    ],
)
def test_an_endless_head_is_refused_and_the_client_gets_the_response(
    running: Running, first: bytes, piece: bytes
) -> None:
    with rejected_once(running, "headers_too_large"), opened(running, first) as sock:
        for _ in range(GIVEN_UP // len(piece)):
            sock.sendall(piece)
        status, document, response = answer(sock)
    assert (status, document["code"]) == (431, "headers_too_large")
    assert document["limit"] == MAX_HEAD_BYTES
    assert document["instance"] == response.getheader("x-request-id")
    assert response.getheader("content-type") == "application/problem+json"
    assert response.getheader("x-content-type-options") == "nosniff"
    assert response.getheader("connection") == "close"


@pytest.mark.parametrize(
    ("first", "line"),
    [
        (GET + b"A: ", b""),
        (GET + b"a: b\r\n" * 9000 + b"A: ", b""),
        (b"GET /livez?", b" HTTP/1.1\r\nHost: x"),
    ],
)
def test_a_head_may_be_as_long_as_allowed(running: Running, first: bytes, line: bytes) -> None:
    """Also if it arrives in one piece, so that h11 never sees it incomplete."""
    room = MAX_HEAD_BYTES - len(first + line + b"\r\n\r\n")
    for more, status in ((0, 200), (1, 431)):
        assert asked(running, first + b"v" * (room + more) + line + b"\r\n\r\n")[0] == status


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (chunks(1, MANY_CHUNKS), 415),
        (chunks(1, MANY_CHUNKS + 1), 400),
        (chunks(SMALL_CHUNK_BYTES, 3 * MANY_CHUNKS), 415),
        (chunks(SMALL_CHUNK_BYTES, 3 * MANY_CHUNKS) + chunks(1, 1), 415),
        (chunks(SMALL_CHUNK_BYTES - 1, 3 * MANY_CHUNKS), 400),
        (chunks(100_000, 3) + chunks(1, 3 * MANY_CHUNKS), 415),
    ],
)
def test_many_chunks_may_not_be_tiny(running: Running, body: bytes, status: int) -> None:
    assert asked(running, POST + CHUNKED + body + b"0\r\n\r\n")[0] == status


PIECES = [PHOTO[start : start + 100] for start in range(0, len(PHOTO), 100)]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in PIECES), 200),
        (chunks(1, MANY_CHUNKS), 415),
    ],
)
def test_each_request_of_a_connection_may_come_in_chunks(
    running: Running, body: bytes, status: int
) -> None:
    with opened(running) as sock:
        for _ in range(3):
            sock.sendall(POST + CHUNKED + body + b"0\r\n\r\n")
            assert answer(sock)[0] == status


@pytest.mark.parametrize(
    "sent",
    [
        b"hello\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # a client that speaks TLS
        b"GET /livez HTTP/1.1\r\n\r\n",  # without Host
        POST + b"Content-Length: 5, 6\r\n\r\nhello",
        POST + b"Transfer-Encoding: gzip\r\n\r\n",
        POST + CHUNKED + b"no number\r\n",
        *[GET.replace(b"1.1", version) + b"\r\n" for version in (b"2.0", b"3.0", b"0.9", b"1")],
        GET.replace(b"1.1", b"1.0") + CHUNKED,
        POST + b"Content-Length: 0\r\n" + CHUNKED + b"0\r\n\r\n" + GET + b"\r\n",
        POST + b"Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding:\r\n chunked\r\nContent-Length:\r\n\t5\r\n\r\nhello",
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding: identity\r\n\r\n",
        POST + b"Transfer-Encoding: chunked\x0b\r\n\r\n0\r\n\r\n",
        POST + b"Transfer-Encoding : chunked\r\n\r\n0\r\n\r\n",
        POST + b"Content-Length : 5\r\n\r\nhello",
        POST + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\nhello!",
        POST + b"Content-Length: +5\r\n\r\nhello",
        POST + b"Content-Length: 0x5\r\n\r\nhello",
        POST + CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
        POST + CHUNKED + b"-1\r\nabc\r\n0\r\n\r\n",
        POST + CHUNKED + b"3;a\nb\r\nabc\r\n0\r\n\r\n",
        POST + CHUNKED + b"3\r\nabcXX0\r\n\r\n",
        GET + b"Host: y\r\n\r\n",
        GET + b"X: a\rb\r\n\r\n",
        GET + b"X: a\0b\r\n\r\n",
        b"GET /livez HTTP/1.1\r\n Host: x\r\n\r\n",
        b"GET /livez HTTP/1.1\r\nHost\r\n\r\n",
        b"G(T /livez HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET  /livez HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /a b HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /livez\r\nHost: x\r\n\r\n",
    ],
)
def test_bytes_that_are_not_http_get_a_problem_document(running: Running, sent: bytes) -> None:
    with rejected_once(running, "malformed_request"), opened(running, sent) as sock:
        status, document, response = answer(sock)
        sock.sendall(GET + b"\r\n")
        assert sock.recv(100) == b""  # nothing after it is answered
    assert (status, document["code"]) == (400, "malformed_request")
    assert response.getheader("connection") == "close"
    assert document["instance"] == response.getheader("x-request-id")
    assert response.getheader("content-type") == "application/problem+json"


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        (GET.replace(b"1.1", b"1.2") + b"\r\n", b"200"),  # to be read as 1.1
        (GET.replace(b"1.1", b"1.0") + b"\r\n", b"200"),
        (GET.replace(b"\r", b"") + b"\n", b"200"),  # RFC 9112, 2.2
        (GET + b"X: a\r\n b\r\n\r\n", b"200"),  # RFC 9112, 5.2
        (POST + b"Content-Length: 3, 3\r\n\r\nabc", b"415"),
        (POST + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc", b"415"),
        (POST + b"Transfer-Encoding: Chunked\r\n\r\n3;a=b\r\nabc\r\n0\r\n\r\n", b"415"),
        (POST + CHUNKED + b"3\r\nabc\r\n0\r\nContent-Length: 9\r\n\r\n", b"415"),
        (b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n", b"404"),
        (b"get /livez HTTP/1.1\r\nHost: x\r\n\r\n", b"405"),
        (b"GET http://y/livez HTTP/1.1\r\nHost: x\r\n\r\n", b"200"),
    ],
)
def test_what_the_standard_allows_is_answered_once(
    running: Running, sent: bytes, statuses: bytes
) -> None:
    with opened(running, sent) as sock:
        assert answer(sock)[0] == int(statuses)
        sock.shutdown(socket.SHUT_WR)
        assert b"HTTP/1.1 " not in sock.recv(65536)


@pytest.mark.parametrize("address", [b"/%s", b"/v1/classes?q=%s"])
def test_an_address_may_have_as_many_escapes_as_are_decoded_quickly(
    running: Running, address: bytes
) -> None:
    for more in (0, 1):
        target = address % (b"%20" * (MAX_ESCAPES + more))
        status, document, _ = asked(running, b"GET " + target + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        assert (status == 431) is bool(more)
    assert (document["code"], document["limit"]) == ("headers_too_large", MAX_ESCAPES)


def test_an_upload_that_breaks_is_given_up_at_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.server.http.connection.LINGER_S", 60)
    with opened(running, POST + CHUNKED + chunks(10, 1) + b"no number\r\n") as sock:
        assert answer(sock)[0] == 400
        wait_for(lambda: not running.app.state.upload_budget.now)
        wait_for(lambda: value(running.engine.metrics, "requests_in_progress") == 0)


def test_a_body_that_breaks_after_its_answer_ends_the_connection_and_nothing_more(
    running: Running, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /nowhere HTTP/1.1\r\nHost: x\r\n" + CHUNKED
    with opened(running, head + b"3\r\nabc\r\n") as sock:
        assert answer(sock)[0] == 404
        sock.sendall(b"no number\r\n")
        assert sock.recv(100) == b""
    assert not [record for record in caplog.records if record.levelno > logging.WARNING]


def test_requests_sent_at_once_are_answered_in_order(running: Running) -> None:
    sent = GET + b"\r\n" + POST + WHOLE + POST + b"Content-Length: 3\r\n\r\nabc" + GET
    with opened(running, sent) as sock:
        received = b""
        while received.count(b"HTTP/1.1 ") < 3:  # several may come in one piece
            received += sock.recv(65536)
        assert re.findall(rb"HTTP/1.1 (\d+)", received) == [b"200", b"200", b"415"]
        while not received.endswith(b"}"):
            received += sock.recv(65536)
        sock.sendall(b"\r\n")
        assert answer(sock)[0] == 200


@pytest.mark.parametrize("address", [b"http://x/livez", b"https://x:8000/livez?", b"/livez"])
def test_an_address_may_be_whole(running: Running, address: bytes) -> None:
    assert asked(running, b"GET " + address + b" HTTP/1.1\r\nHost: x\r\n\r\n")[0] == 200


def test_a_broken_connection_does_not_block_a_stop(bundle: Path) -> None:
    with Running(bundle) as running:
        connections = running.server.server_state.connections
        whole = GET + b"\r\n"
        with opened(running, whole) as broken, opened(running, whole) as idle:
            assert answer(broken)[0] == answer(idle)[0] == 200
            first: Any = next(iter(connections))
            first.conn.send_failed()
            with pytest.raises(h11.LocalProtocolError):
                first.conn.send(h11.ConnectionClosed())
            running.server.should_exit = True
            assert broken.recv(100) == b""
            assert idle.recv(100) == b""
    assert running.app.state.engine.state.value == "draining"  # the lifespan has ended


# Errors, and uploads that are slow or refused -----------------------------------------------


@pytest.fixture
def connection(running: Running) -> Iterator[HTTPConnection]:
    with closing(running.connection()) as connection:
        yield connection


def ask(
    connection: HTTPConnection,
    method: str = "POST",
    path: str = "/v1/identify",
    body: bytes | None = PHOTO,
) -> tuple[HTTPResponse, bytes]:
    """The response to a request, and its body."""
    connection.request(method, path, body)
    response = connection.getresponse()
    return response, response.read()


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/v1/identify?nonsense=1", PHOTO, 400),
        ("GET", "/nowhere", None, 404),
        ("POST", "/nowhere", PHOTO, 404),
        ("GET", "/v1/identify", None, 405),
        ("POST", "/v1/identify", b"text", 415),
        ("POST", "/v1/identify", PHOTO[:-40], 422),
        ("POST", "/v1/identify", b"", 422),
        ("POST", "/v1/identify?k=99", PHOTO, 422),
    ],
)
def test_a_connection_is_still_good_after_an_error(
    connection: HTTPConnection, method: str, path: str, body: bytes | None, status: int
) -> None:
    response, content = ask(connection, method, path, body)
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
    document = json.loads(content)
    assert (response.status, document["code"]) == (413, "body_too_large")
    assert document["limit"] == 2_000_000
    assert response.getheader("connection") == "close"


def test_a_client_that_asks_before_it_sends_is_told_whether_it_may(running: Running) -> None:
    head = POST + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n"
    with opened(running, head % 209715200) as sock:
        assert sock.recv(4096).startswith(b"HTTP/1.1 413")
    with opened(running, head % len(PHOTO)) as sock:
        assert sock.recv(4096).startswith(b"HTTP/1.1 100")
        sock.sendall(PHOTO)
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")


def test_a_slow_upload_is_refused_while_others_are_answered(bundle: Path) -> None:
    with Running(bundle, upload_deadline_s=0.5) as running:
        slow = [opened(running, POST + b"Content-Length: 9999\r\n\r\nx") for _ in range(30)]
        with closing(running.connection()) as connection:
            assert ask(connection)[0].status == 200
        for sock in slow:
            status, document, response = answer(sock)
            assert (status, document["code"]) == (408, "upload_too_slow")
            assert document["limit"] == 0.5
            assert document["retryable"] is True
            assert response.getheader("connection") == "close"
            sock.close()
        wait_until_nothing_is_held(running)


def test_a_connection_without_a_whole_head_is_closed_in_time(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A byte now and then prolongs nothing; a request that is under way has its own deadlines."""
    monkeypatch.setattr(running.server.config, "timeout_keep_alive", 0.4)
    head, upload = GET + b"\r\n", POST + b"Content-Length: %d\r\n\r\n" % len(PHOTO)

    def is_closed() -> bool:
        try:
            slow.send(b"X")
            return not slow.recv(1)
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    with ExitStack() as stack:
        opening = b"", GET, head, upload
        silent, slow, second, sender = (stack.enter_context(opened(running, s)) for s in opening)
        assert answer(second)[0] == 200
        second.sendall(GET)
        slow.settimeout(0.05)
        wait_for(is_closed)
        assert silent.recv(1) == second.recv(1) == b""
        sender.sendall(PHOTO)
        assert answer(sender)[0] == 200


@pytest.mark.parametrize(
    ("length", "part"),
    [
        (b"Content-Length: 9\r\n", b"a"),
        (b"Content-Length: 0\r\nX: y", b""),
        (CHUNKED[:-2], b"1\r\na\r\n"),
        (CHUNKED[:-2], b"0\r\nX: y\r\n"),
    ],
    ids=["length", "none", "chunks", "trailer"],
)
def test_a_body_that_goes_on_after_its_answer_has_as_long_as_a_head(
    running: Running, monkeypatch: pytest.MonkeyPatch, length: bytes, part: bytes
) -> None:
    monkeypatch.setattr(running.server.config, "timeout_keep_alive", 0.4)
    for request in (GET, GET.replace(b"/livez", b"/nowhere")):
        with opened(running, request + length.rstrip() + b"\r\n\r\n") as sock:
            assert answer(sock)[0] in (200, 404)
            sock.sendall(part)
            assert sock.recv(1) == b""


def test_clients_that_vanish_in_the_middle_of_an_upload_leave_nothing_behind(
    running: Running, connection: HTTPConnection
) -> None:
    for _ in range(20):
        opened(running, POST + b"Content-Length: 99999\r\n\r\nabc").close()
    wait_until_nothing_is_held(running)
    assert ask(connection)[0].status == 200


@pytest.mark.parametrize("last", [b"", b"Connection: close\r\n"])
def test_a_client_that_takes_no_answer_loses_its_connection(
    running: Running, last: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.server.http.connection.STALLED_S", 0.2)
    card = b"GET /v1/model HTTP/1.1\r\nHost: x\r\n"

    def is_connected() -> bool:
        connections = [*running.server.server_state.connections]
        return sock.getsockname() in [getattr(each, "client", None) for each in connections]

    with closing(socket.socket()) as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.connect(("127.0.0.1", running.port))
        sock.sendall((card + b"\r\n") * 200 + card + last + b"\r\n")
        assert sock.recv(1) == b"H"
        wait_for(lambda: not is_connected())


def wait_until_nothing_is_held(running: Running) -> None:
    wait_for(lambda: not running.app.state.upload_budget.now and not running.engine.depth)
