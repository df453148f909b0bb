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

from florilege.server.app import create_app
from florilege.server.http.identify import RENDERED_ON_THE_LOOP
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.server_thread import Running

ROSE = garden.photo(0)


@pytest.fixture(scope="module")
def running(bundle: Path) -> Iterator[Running]:
    with Running(Settings(bundle=bundle, plantnet=True)) as running:
        yield running


@pytest.mark.parametrize(
    ("slow", "method", "path", "sent"),
    [
        ("florilege.server.answers.restriction.nearest", "POST", "/v1/identify?only=Roza", {}),
        (
            "florilege.server.answers.restriction.ClassLists.restriction",
            "POST",
            "/v1/identify?only=Rosa",
            {},
        ),
        (
            "florilege.server.answers.class_list.TaxonTable.find",
            "GET",
            "/v1/classes?limit=3",
            {},
        ),
        (
            "florilege.server.schemas.Answer.model_dump_json",
            "POST",
            "/v1/identify",
            {"content": ROSE},
        ),
        (
            "florilege.server.http.plantnet.plantnet_answer",
            "POST",
            "/v2/identify/all",
            {"files": {"images": ROSE}},
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
    do: Callable[..., Any] = resolve_name(slow)

    def wait_and_do(*arguments: Any, **named: Any) -> Any:
        begun.set()
        assert ended.wait(20)
        return do(*arguments, **named)

    monkeypatch.setattr("florilege.server.http.identify.RENDERED_ON_THE_LOOP", 0)
    monkeypatch.setattr(slow, wait_and_do)
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
    bundle: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert len(garden.FLOWERS) <= RENDERED_ON_THE_LOOP
    with TestClient(create_app(Settings(bundle=bundle))) as client:
        path = "/v1/identify?include=scores"
        short = client.post(path, content=ROSE).json()
        monkeypatch.setattr("florilege.server.http.identify.RENDERED_ON_THE_LOOP", 0)
        long = client.post(path, content=ROSE).json()
    assert {**short, "id": ""} == {**long, "id": ""}


def test_requests_after_the_end_are_refused_as_draining(bundle: Path) -> None:
    app = create_app(Settings(bundle=bundle))
    with TestClient(app) as client:
        app.state.engine.close()
        assert client.get("/v1/classes").json()["code"] == "draining"
