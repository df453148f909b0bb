"""Clients of a server, in several processes: one of Python would be slower than many servers.

Requests are sent as bytes that are made once, and of an answer only the status and the length are
read: a photo of 250 KB costs a client .15 ms (http.client: .5 ms). All clocks are
`time.perf_counter`, which the processes of a machine share.
"""

import multiprocessing
import socket
import time
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

PAUSE_S = 0.05  # after a refusal
TIMEOUT_S = 60
MOST_AT_ONCE = 64  # connections of photos that come by chance, over all processes


@dataclass(frozen=True)
class Sent:
    """A request as bytes, and where it goes."""

    port: int
    content: bytes


class Answers(NamedTuple):
    """What clients got: the seconds of each answer, refusals, and the CPU time they took."""

    latencies: list[float]
    refused: int
    cpu: float


class Clients:
    """Processes that send requests, each over its share of the connections."""

    def __init__(self, processes: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pools = [ProcessPoolExecutor(1, mp_context=context) for _ in range(processes)]

    def __enter__(self) -> Self:
        for task in [pool.submit(time.process_time) for pool in self._pools]:
            task.result()  # all have started
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown()

    def drive(self, sent: Sent, *, connections: int, until: float) -> Answers:
        """Keep so many requests under way until a moment."""
        count = min(len(self._pools), connections)
        shares = [connections // count + (rest < connections % count) for rest in range(count)]
        return _together(
            pool.submit(_drive, sent, share, until)
            for pool, share in zip(self._pools, shares, strict=False)
        )

    def arrive(self, sent: Sent, moments: Sequence[float]) -> Answers:
        """Send a request at each moment; an answer's seconds count from its moment on."""
        count = len(self._pools)
        return _together(
            pool.submit(_arrive, sent, moments[first::count], max(1, MOST_AT_ONCE // count))
            for first, pool in enumerate(self._pools)
        )


def _together(tasks: Any) -> Answers:
    running: list[Future[Answers]] = list(tasks)
    parts = [task.result() for task in running]
    latencies = sorted(latency for part in parts for latency in part.latencies)
    return Answers(latencies, sum(part.refused for part in parts), sum(part.cpu for part in parts))


def _drive(sent: Sent, connections: int, until: float) -> Answers:
    cpu = time.process_time()
    with ThreadPoolExecutor(connections) as pool:
        parts = [*pool.map(lambda _: _ask(sent, until), range(connections))]
    latencies = [latency for latencies, _ in parts for latency in latencies]
    return Answers(latencies, sum(refused for _, refused in parts), time.process_time() - cpu)


def _ask(sent: Sent, until: float) -> tuple[list[float], int]:
    latencies, refused = list[float](), 0
    with closing(_Connection(sent)) as connection:
        while (started := time.perf_counter()) < until or not latencies:
            if connection.status() == 200:
                latencies.append(time.perf_counter() - started)
            else:
                refused += 1
                time.sleep(PAUSE_S)
    return latencies, refused


def _arrive(sent: Sent, moments: Sequence[float], at_once: int) -> Answers:
    cpu, idle, latencies = time.process_time(), list[_Connection](), list[float]()

    def ask(moment: float) -> None:
        connection = idle.pop() if idle else _Connection(sent)
        if connection.status() == 200:
            latencies.append(time.perf_counter() - moment)
        idle.append(connection)

    with ThreadPoolExecutor(at_once) as pool:
        for moment in moments:
            time.sleep(max(0.0, moment - time.perf_counter()))
            pool.submit(ask, moment)
    for connection in idle:
        connection.close()
    return Answers(latencies, len(moments) - len(latencies), time.process_time() - cpu)


class _Connection:
    """A connection that is kept, and opened anew where the server closes it."""

    def __init__(self, sent: Sent) -> None:
        self._sent, self._socket = sent, self._open(sent.port)

    def status(self) -> int:
        """Send the request; the status of its answer, once all of it is here."""
        try:
            self._socket.sendall(self._sent.content)
            status, closes = _answer(self._socket)
        except ConnectionError:
            status, closes = 0, True
        if closes:
            self._socket.close()
            self._socket = self._open(self._sent.port)
        return status

    def close(self) -> None:
        self._socket.close()

    @staticmethod
    def _open(port: int) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection


def _answer(connection: socket.socket) -> tuple[int, bool]:
    """The status of an answer, and whether the server closes the connection after it."""
    content = b""
    while b"\r\n\r\n" not in content:
        if not (part := connection.recv(65536)):
            raise ConnectionResetError("the server closed the connection")
        content += part
    head, _, body = content.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:] if b":" in line)
    missing = int(fields.get(b"content-length", b"0")) - len(body)
    while missing > 0:
        if not (part := connection.recv(65536)):
            raise ConnectionResetError("the answer is cut short")
        missing -= len(part)
    return int(head.split(b" ", 2)[1]), fields.get(b"connection", b"").strip() == b"close"
