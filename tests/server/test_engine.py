"""Overload, deadlines and clients that disconnect, on a running server."""

import asyncio
import itertools
import math
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.server.engine import MAX_QUEUE, MIN_QUEUE, Engine, PendingRequest
from florilege.server.prometheus import Metrics
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.gate import Gate
from tests.server.http_client import open_client
from tests.server.metric_values import value
from tests.server.server_thread import Running, wait_for

PHOTO = garden.photo(0)


def post(running: Running, photo: bytes = PHOTO) -> Any:
    """Status, headers and document of an answer."""
    return running.ask("POST", "/v1/identify", photo)


@contextmanager
def gated(bundle: Path, **limits: Any) -> Iterator[tuple[Running, Gate]]:
    """A running server with one thread, whose photos wait at a gate."""
    with Running(bundle, **{"threads": 1, "queue_limit": 9, **limits}) as running:
        gate = running.engine.pipeline = Gate(running.engine.pipeline)
        yield running, gate


def wait_until_left(running: Running) -> None:
    """Wait until the server knows that a client has disconnected."""
    metrics = running.engine.metrics
    wait_for(lambda: value(metrics, "rejected_total", reason="client_left") == 1)


def send_and_leave(running: Running) -> socket.socket:
    """A whole request on a socket that the test closes."""
    sock = socket.create_connection(("127.0.0.1", running.port), timeout=15)
    head = f"POST /v1/identify HTTP/1.1\r\nHost: x\r\nContent-Length: {len(PHOTO)}\r\n\r\n"
    sock.sendall(head.encode() + PHOTO)
    return sock


def test_requests_beyond_the_queue_limit_are_refused_with_retry_after(bundle: Path) -> None:
    with gated(bundle, queue_limit=3) as (running, gate):
        running.engine.service_s = 1.5
        with ThreadPoolExecutor(3) as pool:
            waiting = [pool.submit(post, running) for _ in range(3)]
            wait_for(lambda: running.engine.depth == 3)
            status, headers, document = post(running)
            assert (status, document["code"], document["limit"]) == (503, "overloaded", 3)
            assert document["retryable"] is True
            assert headers["Retry-After"] == "5"  # three photos at 1.5 s each, one thread
            assert running.app.state.upload_budget.now == 3 * len(PHOTO)  # as long as they wait
            gate.opened.set()
            assert [one.result()[0] for one in waiting] == [200] * 3
        assert running.engine.depth == 0
        assert post(running)[0] == 200


def test_every_photo_of_a_request_counts_but_a_lone_request_is_never_too_large(
    bundle: Path,
) -> None:
    with open_client(bundle, queue_limit=2) as client:
        files = [("images", (f"{i}.png", PHOTO)) for i in range(5)]
        assert client.post("/v1/identify", files=files).status_code == 200
        client.app.state.engine.photos.own += 1  # type: ignore[attr-defined]  # a FastAPI
        assert client.post("/v1/identify", files=files[:2]).status_code == 503
        assert client.post("/v1/identify", files=files[:1]).status_code == 200


def test_a_photo_that_waited_too_long_is_dropped_before_decoding(bundle: Path) -> None:
    with gated(bundle, queue_timeout_s=0.2) as (running, gate):
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(post, running)
            wait_for(lambda: len(gate.entered) == 1)
            second = pool.submit(post, running)
            wait_for(lambda: running.engine.depth == 2)
            time.sleep(0.25)
            gate.opened.set()
            status, headers, document = second.result()
            assert (status, document["code"]) == (503, "queue_timeout")
            assert int(headers["Retry-After"]) >= 1
            assert first.result()[0] == 503  # its own photo was not begun in time either
        assert len(gate.entered) == 1


def test_nothing_is_done_for_a_client_that_left(bundle: Path) -> None:
    with gated(bundle) as (running, gate):
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(post, running)
            wait_for(lambda: len(gate.entered) == 1)
            missing = send_and_leave(running)
            wait_for(lambda: running.engine.depth == 2)
            missing.close()
            wait_until_left(running)
            gate.opened.set()
            assert first.result()[0] == 200
        wait_for(lambda: running.engine.depth == 0)
        assert len(gate.entered) == 1
        assert running.app.state.upload_budget.now == 0
        assert post(running)[0] == 200


def test_a_photo_under_way_keeps_its_place_although_its_client_left(bundle: Path) -> None:
    """The thread is busy until it is done: another photo must not be let in for it."""
    with gated(bundle, queue_limit=1) as (running, gate):
        missing = send_and_leave(running)
        wait_for(lambda: len(gate.entered) == 1)
        missing.close()
        wait_until_left(running)
        for _ in range(3):
            assert running.engine.depth == 1
            assert post(running)[2]["code"] == "overloaded"
        gate.opened.set()
        wait_for(lambda: running.engine.depth == 0)
        assert post(running)[0] == 200


def engine_of(bundle: Path, threads: int) -> Engine:
    settings = Settings(bundle=bundle, threads=threads)
    return Engine(open_pipeline(bundle, device="cpu"), settings, Metrics())


def test_retry_after_is_shared_by_the_threads(bundle: Path) -> None:
    engine = engine_of(bundle, threads=4)
    engine.service_s = 1.5
    seconds = []
    for engine.photos.own in (0, 1, 2, 3, 8, 9):
        seconds.append(engine.seconds_of_work())
    engine.close()
    assert seconds == [1, 1, 1, 2, 3, 4]


def test_many_at_once_are_each_answered_with_their_own_photo(running: Running) -> None:
    def ask(index: int) -> tuple[str, str]:
        content = post(running, garden.photo(index))[2]
        return content["best_match"], garden.FLOWERS[index][1]

    with ThreadPoolExecutor(8) as pool:
        for result, expected in pool.map(ask, list(range(12)) * 4):
            assert result == expected


@pytest.mark.parametrize(
    ("service_s", "threads", "expected"),
    [
        *[(10.0, 2, MIN_QUEUE), (0.25, 4, MIN_QUEUE), (0.25, 5, 20)],
        *[(0.02, 2, 100), (0.01, 3, MAX_QUEUE), (0.0001, 8, MAX_QUEUE)],
        (0.25, 64, 32),  # of which eight at once, one on each core
    ],
)
def test_the_queue_holds_about_a_second_of_work(
    bundle: Path, service_s: float, threads: int, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, clock = engine_of(bundle, threads), itertools.count(0.0, service_s)
    monkeypatch.setattr("florilege.server.engine.cores", lambda: 8)
    monkeypatch.setattr("florilege.server.engine.perf_counter", clock.__next__)
    engine.workers = 3  # which share one queue
    asyncio.run(engine.start())
    engine.close()
    assert engine.queue_limit == 3 * expected
    engine.photos.own = 12 * threads
    assert engine.seconds_of_work() == max(1, math.ceil(4 * service_s))


def test_the_service_time_follows_what_is_measured(bundle: Path) -> None:
    with Running(bundle, threads=1) as running:
        running.engine.service_s, threads = 100.0, threading.active_count()
        for _ in range(20):
            assert post(running)[0] == 200
        assert running.engine.service_s < 100 * 0.95**20 + 1
        assert threading.active_count() < threads + 10  # none for each request


def test_the_service_time_is_that_of_one_photo(bundle: Path) -> None:
    class Slow:
        def __call__(self, *_: Any, **named: Any) -> None:
            time.sleep(0.02)

        def close(self) -> None: ...

    engine = Engine(
        cast(Pipeline, Slow()), Settings(bundle=bundle, threads=1, watch=False), Metrics()
    )
    engine.service_s = 0.0

    async def submit() -> None:
        job = PendingRequest([b""] * 5, lambda pipeline, *_: pipeline(), timeout_s=math.inf)
        await engine.submit(job)

    began = time.perf_counter()
    asyncio.run(submit())
    took = time.perf_counter() - began
    engine.close()
    assert 0.02 / 5 <= engine.service_s / 0.05 <= took / 5


def test_unfinished_requests_are_answered_as_draining_when_the_drain_time_ends(
    bundle: Path,
) -> None:
    with gated(bundle, drain_s=0.5, drain_notice_s=60) as (running, gate):
        with ThreadPoolExecutor(1) as pool:
            late = pool.submit(post, running)
            wait_for(lambda: len(gate.entered) == 1)
            running.server.should_exit = True
            status, headers, document = late.result()
            gate.opened.set()
        assert (status, document["code"]) == (503, "draining")
        assert int(headers["Retry-After"]) >= 1
