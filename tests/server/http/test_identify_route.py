"""Photos bypass FastAPI's dependencies, with the same answers."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from starlette.testclient import TestClient

from florilege.server.app import create_app
from florilege.server.routes import IdentifyRoute
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.http.test_api_keys import bearer, line

PHOTO = garden.photo(0)
KEY = bearer("k")
REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "", {"content": PHOTO}),
    ("POST", "", {"files": [("images", ("a", PHOTO)), ("images", ("b", garden.photo(1)))]}),
    ("POST", "?k=2&include=scores&include=rollup", {"content": PHOTO}),
    ("POST", "?lang=fr", {"content": PHOTO, "headers": {"Accept-Language": "de"}}),
    ("POST", "", {"content": PHOTO, "headers": {"X-Request-Id": "mine", "Origin": "https://a.b"}}),
    ("POST", "?k=2&k=3", {"content": PHOTO}),
    ("POST", "?k=many", {"content": PHOTO}),
    ("POST", "?unknown=1", {"content": PHOTO}),
    ("POST", "?k=77", {"content": PHOTO}),
    ("POST", "", {"content": b"no photo"}),
    ("POST", "", {"content": b"x" * 2_000}),
    ("POST", "", {"content": PHOTO, "headers": {"Authorization": "Bearer other"}}),
    ("POST", "/", {"content": PHOTO}),
    ("GET", "", {}),
    ("HEAD", "", {}),
    ("OPTIONS", "", {"headers": {"Origin": "https://a.b"}}),
]
OF_ITSELF = frozenset({"x-request-id", "server-timing", "date", "ratelimit"})


@pytest.fixture(scope="module")
def both(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TestClient]]:
    """Clients of two applications: ours, and one that leaves the route to FastAPI."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(line("one", "k", "1000/minute"))
    settings = Settings(
        bundle=bundle, keys_file=keys, max_body_bytes=100_000, cors_origins=("https://a.b",)
    )
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patched:
        clients = [stack.enter_context(TestClient(create_app(settings)))]
        patched.setattr(IdentifyRoute, "get_route_handler", APIRoute.get_route_handler)
        clients.append(stack.enter_context(TestClient(create_app(settings))))
        yield clients


@pytest.mark.parametrize(("method", "query", "request_"), REQUESTS)
def test_the_route_answers_as_fastapi_would(
    both: list[TestClient], method: str, query: str, request_: dict[str, Any]
) -> None:
    request_ = {**request_, "headers": {**KEY, **request_.get("headers", {})}}
    ours, theirs = (client.request(method, f"/v1/identify{query}", **request_) for client in both)
    assert ours.status_code == theirs.status_code
    if ours.content:
        documents = [{**answer.json(), "id": "", "instance": ""} for answer in (ours, theirs)]
        assert documents[0] == documents[1]
    assert ours.headers.keys() == theirs.headers.keys()
    for name in ours.headers.keys() - OF_ITSELF:
        if name != "content-length" or method != "POST":  # ids of answers differ in length
            assert ours.headers[name] == theirs.headers[name], name


def test_both_routes_have_equal_metrics(both: list[TestClient]) -> None:
    for client in both:
        client.post("/v1/identify", content=PHOTO, headers=KEY)
        client.post("/v1/identify", content=b"no photo", headers=KEY)
        client.post("/v1/identify", content=PHOTO)
    ours, theirs = (_counters(client) for client in both)
    assert ours == theirs
    assert any('route="/v1/identify"' in name and 'code="200"' in name for name in ours)


def _counters(client: TestClient) -> dict[str, str]:
    lines = client.get("/metrics").text.splitlines()
    names = ("florilege_http_requests_total{", "florilege_rejected_total{", "florilege_set_size_b")
    return dict(
        line.rsplit(" ", 1) for line in lines if line.startswith(names) and "metrics" not in line
    )
