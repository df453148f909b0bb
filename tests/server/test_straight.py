"""Photos go past the framework's routing, and nobody can tell from the answers."""

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from florilege.server import app as application
from florilege.server.settings import Settings
from tests.server import garden
from tests.server.http.test_api_keys import bearer, line

PHOTO = garden.photo(0)
FORM = {"files": [("images", ("a", PHOTO)), ("images", ("b", garden.photo(1)))]}
KEY = bearer("k")
ASKED: list[tuple[str, str, dict[str, Any]]] = [
    ("POST", "", {"content": PHOTO}),
    ("POST", "", FORM),
    ("POST", "?k=2&include=scores&include=rollup", {"content": PHOTO}),
    ("POST", "?lang=fr", {"content": PHOTO, "headers": {"Accept-Language": "de"}}),
    ("POST", "", {"content": PHOTO, "headers": {"X-Request-Id": "mine", "Origin": "https://a.b"}}),
    ("POST", "?k=2&k=3", {"content": PHOTO}),
    ("POST", "?k=many", {"content": PHOTO}),
    ("POST", "?unknown=1", {"content": PHOTO}),
    ("POST", "?k=77", {"content": PHOTO}),
    ("POST", "", {"content": b"no photo"}),
    ("POST", "", {"content": PHOTO[:300]}),
    ("POST", "", {"content": b""}),
    ("POST", "", {"content": b"x" * 2_000}),
    ("POST", "", {"content": PHOTO, "headers": {"Authorization": "Bearer other"}}),
    ("POST", "", {"content": b"x", "headers": {"Content-Length": "many"}}),
    ("POST", "/", {"content": PHOTO}),
    ("GET", "", {}),
    ("HEAD", "", {}),
    ("PUT", "", {"content": PHOTO}),
    ("OPTIONS", "", {"headers": {"Origin": "https://a.b"}}),
]
OF_ITSELF = frozenset({"x-request-id", "server-timing", "date", "ratelimit"})


@pytest.fixture(scope="module")
def both(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[TestClient]]:
    """Clients of two applications: straight, and by way of the framework."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(line("one", "k", "1000/minute"))
    settings = Settings(
        bundle=bundle, keys_file=keys, max_body_bytes=100_000, cors_origins=("https://a.b",)
    )
    with ExitStack() as stack, pytest.MonkeyPatch.context() as patched:
        clients = [stack.enter_context(TestClient(application.create_app(settings)))]
        patched.setattr(application, "Straight", lambda app: app)
        clients.append(stack.enter_context(TestClient(application.create_app(settings))))
        yield clients


@pytest.mark.parametrize(("method", "query", "sent"), ASKED)
def test_the_straight_way_answers_as_the_framework_does(
    both: list[TestClient], method: str, query: str, sent: dict[str, Any]
) -> None:
    sent = {**sent, "headers": {**KEY, **sent.get("headers", {})}}
    ours, theirs = (client.request(method, f"/v1/identify{query}", **sent) for client in both)
    assert ours.status_code == theirs.status_code
    assert _plain(ours.content) == _plain(theirs.content)
    assert ours.headers.keys() == theirs.headers.keys()
    for name in ours.headers.keys() - OF_ITSELF:
        if name != "content-length" or method != "POST":  # ids of answers differ in length
            assert ours.headers[name] == theirs.headers[name], name


def test_both_are_counted_alike(both: list[TestClient]) -> None:
    for client in both:
        client.post("/v1/identify", content=PHOTO, headers=KEY)
        client.post("/v1/identify", content=b"no photo", headers=KEY)
        client.post("/v1/identify", content=PHOTO)
    straight, framework = (_counted(client) for client in both)
    assert straight == framework
    assert any('route="/v1/identify"' in name and 'code="200"' in name for name in straight)


def _plain(content: bytes) -> Any:
    """A body without what is of one answer alone."""
    found = json.loads(content) if content else {}
    return {name: value for name, value in found.items() if name not in ("id", "instance")}


def _counted(client: TestClient) -> dict[str, str]:
    lines = client.get("/metrics").text.splitlines()
    kept = ("florilege_http_requests_total{", "florilege_rejected_total{", "florilege_set_size_b")
    return dict(
        line.rsplit(" ", 1) for line in lines if line.startswith(kept) and "metrics" not in line
    )
