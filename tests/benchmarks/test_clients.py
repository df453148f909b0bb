"""The clients of the load benchmark: what they count, and when their figures are no verdict."""

import socket
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from benchmarks.load.clients import Clients, Sent
from benchmarks.load.server import Load

PHOTO = b"0" * 1000
REQUEST = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n" + PHOTO


class _Handler(BaseHTTPRequestHandler):
    """Refuses every third request."""

    protocol_version = "HTTP/1.1"
    count = 0

    def do_POST(self) -> None:
        assert self.rfile.read(1000) == PHOTO
        type(self).count += 1
        refused = self.count % 3 == 0
        self.send_response(503 if refused else 200)
        self.send_header("Content-Length", "100000")
        if refused:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(bytes(100000))

    def log_message(self, *_: object) -> None: ...


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    _Handler.count = 0
    with _Server(("127.0.0.1", 0), _Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def test_every_request_is_an_answer_or_a_refusal(port: int) -> None:
    with Clients(2) as clients:
        driven = clients.drive(Sent(port, REQUEST), connections=3, until=time.perf_counter() + 0.3)
        count = _Handler.count
        moments = [time.perf_counter() + 0.01 * number for number in range(20)]
        arrived = clients.arrive(Sent(port, REQUEST), moments)
    assert len(driven.latencies) + driven.refused == count
    assert driven.refused == pytest.approx(count / 3, abs=1)
    assert driven.latencies == sorted(driven.latencies)
    assert len(arrived.latencies) + arrived.refused == _Handler.count - count == 20
    assert driven.cpu > 0


def test_a_request_on_a_closed_port_fails_at_once() -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with Clients(1) as clients, pytest.raises(ConnectionRefusedError):
        clients.drive(Sent(port, REQUEST), connections=1, until=time.perf_counter() + 1)


def test_the_share_of_the_clients_is_of_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("benchmarks.load.server.cores", lambda: 4)
    load = Load(seconds=2.0, latencies=[0.1], refused=0, cpu=3.0, client=4.0)
    assert load.client_share == 0.5
