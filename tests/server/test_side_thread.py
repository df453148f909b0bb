"""Slow work with thousands of classes does not delay other requests."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import httpx
import pytest
from starlette.testclient import TestClient

from florilege.server.http.photo_routes import RENDERED_ON_THE_LOOP
from tests.server import garden
from tests.server.http_client import identify, open_client
from tests.server.server_thread import Running

ROSE = garden.photo(0)


@pytest.fixture(scope="module")
def running(bundle: Path) -> Iterator[Running]:
    with Running(bundle, plantnet=True) as running:
        yield running


@pytest.mark.parametrize(
    ("slow", "method", "path", "sent"),
    [
        ("answers.restriction.nearest", "POST", "/v1/identify?only=Roza", {}),
        ("answers.restriction.ClassLists.restriction", "POST", "/v1/identify?only=Rosa", {}),
        ("answers.class_list.TaxonTable.find", "GET", "/v1/classes?limit=3", {}),
        ("schemas.Answer.model_dump_json", "POST", "/v1/identify", {"content": ROSE}),
        ("http.plantnet.plantnet_answer", "POST", "/v2/identify/all", {"files": {"images": ROSE}}),
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
    function = f"florilege.server.{slow}"
    do: Callable[..., Any] = resolve_name(function)

    def wait_and_do(*arguments: Any, **named: Any) -> Any:
        begun.set()
        assert ended.wait(20)
        return do(*arguments, **named)

    monkeypatch.setattr("florilege.server.http.photo_routes.RENDERED_ON_THE_LOOP", 0)
    monkeypatch.setattr(function, wait_and_do)
    with ThreadPoolExecutor() as pool, httpx.Client(base_url=running.url, timeout=30) as client:
        waiting = pool.submit(client.request, method, path, **sent)
        try:
            assert begun.wait(20)
            assert client.get("/livez", timeout=10).is_success
            assert not waiting.done()
        finally:
            ended.set()
        assert waiting.result().status_code in (200, 422)


def test_an_answer_is_the_same_however_it_is_written(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(garden.FLOWERS) <= RENDERED_ON_THE_LOOP
    short = identify(client, ROSE, include="scores")
    monkeypatch.setattr("florilege.server.http.photo_routes.RENDERED_ON_THE_LOOP", 0)
    long = identify(client, ROSE, include="scores")
    assert {**short, "id": ""} == {**long, "id": ""}


def test_requests_after_the_end_are_refused_as_draining(bundle: Path) -> None:
    with open_client(bundle) as client:
        client.app.state.engine.close()  # type: ignore[attr-defined]  # a FastAPI
        assert client.get("/v1/classes").json()["code"] == "draining"
