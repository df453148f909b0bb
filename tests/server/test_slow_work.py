"""Slow work with thousands of classes does not delay other requests."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import httpx
import pytest

from florilege.server.answers.class_list import TaxonTable
from tests.server import garden
from tests.server.http_client import open_client
from tests.server.server_thread import NO_TLS, Running, wait_for

ROSE = garden.photo(0)


@pytest.fixture(scope="module")
def running(bundle: Path) -> Iterator[Running]:
    with Running(bundle, plantnet=True) as running:
        yield running


@pytest.mark.parametrize(
    ("slow", "method", "path", "sent"),
    [
        ("server.answers.plan.nearest", "POST", "/v1/identify?only=Roza", {}),
        ("server.answers.plan.ClassLists.restriction", "POST", "/v1/identify?only=Rosa", {}),
        ("server.answers.class_list.TaxonTable.find", "GET", "/v1/classes?limit=3", {}),
        ("server.schemas.Answer.model_dump_json", "POST", "/v1/identify", {"content": ROSE}),
        (
            "plugins.plantnet.plantnet_routes.plantnet_answer",
            *("POST", "/v2/identify/all", {"files": {"images": ROSE}}),
        ),
    ],
)
def test_other_requests_are_answered_during_long_work(
    running: Running,
    monkeypatch: pytest.MonkeyPatch,
    slow: str,
    method: str,
    path: str,
    sent: dict[str, Any],
) -> None:
    begun, ended = threading.Event(), threading.Event()
    function = f"florilege.{slow}"
    do: Callable[..., Any] = resolve_name(function)

    def wait_and_do(*arguments: Any, **named: Any) -> Any:
        begun.set()
        assert ended.wait(20)
        return do(*arguments, **named)

    monkeypatch.setattr("florilege.server.http.photo_routes.CHECKED_ON_THE_LOOP", 0)
    monkeypatch.setattr(function, wait_and_do)
    with (
        ThreadPoolExecutor() as pool,
        httpx.Client(base_url=running.url, timeout=30, verify=NO_TLS) as client,
    ):
        waiting = pool.submit(client.request, method, path, **sent)
        try:
            assert begun.wait(20)
            assert client.get("/livez", timeout=10).is_success
            assert not waiting.done()
        finally:
            ended.set()
        assert waiting.result().status_code in (200, 422)


FORM = {"files": {"images": ROSE}}
CHEAP = ("GET /v1/classes?q=ro", "GET /v2/species?prefix=r", "POST /v1/identify?only=Roza")


@pytest.fixture
def busy(running: Running) -> Iterator[Running]:
    """A server whose thread for lists and similar names is busy."""
    entered, ended = threading.Event(), threading.Event()

    def wait() -> None:
        entered.set()
        assert ended.wait(20)

    loop = running.app.state.reloader._loop
    waiting = asyncio.run_coroutine_threadsafe(running.engine.lookups.run(wait), loop)
    assert entered.wait(20)
    yield running
    ended.set()
    waiting.result(20)


@pytest.mark.parametrize(
    ("method", "path", "sent"),
    [
        ("POST", "/v1/identify", FORM),
        ("POST", "/v1/identify?only=Rosa,1011&always=1001&include=scores", FORM),
        ("POST", "/v2/identify/all", FORM),
        ("GET", "/v1/classes/1001", {}),
        ("GET", "/metrics", {}),
        ("GET", "/openapi.json", {}),
        ("GET", "/v1/model", {}),
    ],
)
def test_lists_and_similar_names_hold_up_nothing_else(
    busy: Running, monkeypatch: pytest.MonkeyPatch, method: str, path: str, sent: dict[str, Any]
) -> None:
    monkeypatch.setattr("florilege.server.http.request.PARSED_ON_THE_LOOP", 10)
    assert (
        httpx.request(method, busy.url + path, timeout=10, verify=NO_TLS, **sent).status_code == 200
    )


@pytest.mark.parametrize("request_line", CHEAP)
def test_lists_and_similar_names_are_refused_where_too_many_wait(
    busy: Running, monkeypatch: pytest.MonkeyPatch, request_line: str
) -> None:
    method, path = request_line.split()
    monkeypatch.setattr(busy.engine.lookups, "limit", 1)
    with httpx.Client(base_url=busy.url, timeout=10, verify=NO_TLS) as client:
        for _ in range(2):  # the connection is still good
            response = client.request(method, path)
            assert (response.status_code, response.headers["retry-after"]) == (503, "1")
            assert response.json()["code"] == "overloaded"


def test_a_list_that_several_wait_for_is_written_once(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended, calls, find = threading.Event(), list[Any](), TaxonTable.find

    def count_and_find(*arguments: Any) -> bytes:
        calls.append(arguments)
        assert ended.wait(20)
        return find(*arguments)

    monkeypatch.setattr(TaxonTable, "find", count_and_find)
    with ThreadPoolExecutor(4) as pool:
        path = f"{running.url}/v1/classes?limit=7"
        waiting = [pool.submit(httpx.get, path, verify=NO_TLS) for _ in range(4)]
        try:
            wait_for(lambda: running.engine.lookups.depth == 4)
        finally:
            ended.set()
        assert len({one.result().content for one in waiting}) == len(calls) == 1


def test_a_list_that_is_cached_waits_for_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in ("/v1/classes?limit=4", "/v2/species?page=1&pageSize=2", "/v2/species?lang=fr"):
        first = httpx.get(running.url + path, verify=NO_TLS)
        with monkeypatch.context() as full:
            full.setattr(running.engine.lookups, "limit", 0)
            again = httpx.get(running.url + path, verify=NO_TLS)
            other = f"{running.url}{path}&lang=fr&prefix=x&q=x"
            assert httpx.get(other, verify=NO_TLS).status_code in (400, 503)
        assert (again.status_code, again.content) == (200, first.content)


def test_requests_after_the_end_are_refused_as_draining(bundle: Path) -> None:
    with open_client(bundle) as client:
        client.app.state.engine.close()  # type: ignore[attr-defined]  # a FastAPI
        assert client.get("/v1/classes").json()["code"] == "draining"
