"""The cache of `serve --cache-answers`: nothing but time tells that an answer came from it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.server import garden
from tests.server.http.test_api_keys import bearer, line
from tests.server.http_client import open_client
from tests.server.metric_values import value
from tests.server.server_thread import Running
from tests.server.test_reload import identify, recalibrated, reload

PHOTOS = [garden.photo(index) for index in range(4)]


def lookups(app: Any) -> tuple[float, ...]:
    """Hits and misses so far."""
    metrics = app.state.engine.metrics
    return tuple(value(metrics, "cache_lookups_total", outcome=each) for each in ("hit", "miss"))


@pytest.fixture(scope="module")
def cached(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("cached")
    keys, store = folder / "keys", folder / "feedback"
    keys.write_text(line("one", "k1") + line("two", "k2"))
    stores = {"keys_file": keys, "feedback_store": store}
    with open_client(bundle, bearer("k1"), cache_answers=3, **stores) as client:
        yield client


def plain(response: Any) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    return {**response.json(), "id": None}


@pytest.mark.parametrize(
    "query",
    [
        *("", "k=1", "rule=coverage&coverage=0.9", "include=scores,rollup", "lang=fr"),
        *("only=Viola", "reject=true", "none=true", "max_results=1", "min_score=0.5&always=1001"),
    ],
)
def test_a_repeated_photo_gets_the_answer_to_each_query_as_without_a_cache(
    cached: TestClient, client: TestClient, query: str
) -> None:
    cached.post("/v1/identify", content=PHOTOS[0])
    hits, misses = lookups(cached.app)
    response = cached.post(f"/v1/identify?{query}", content=PHOTOS[0])
    assert plain(response) == plain(client.post(f"/v1/identify?{query}", content=PHOTOS[0]))
    assert lookups(cached.app) == (hits + 1, misses)
    assert "decide" in response.headers["server-timing"]
    assert "forward" not in response.headers["server-timing"]


def test_each_answer_from_the_cache_takes_feedback_of_its_own(cached: TestClient) -> None:
    answers = [cached.post("/v1/identify", content=PHOTOS[0]).json() for _ in range(2)]
    assert answers[0]["id"] != answers[1]["id"]
    for answer in answers:
        body = {"request_id": answer["id"], "class_id": "1001"}
        assert cached.post("/v1/feedback", json=body).status_code == 202


def test_keys_share_nothing_and_the_least_recent_photo_is_dropped(cached: TestClient) -> None:
    def hits(photo: int, key: str = "k1") -> float:
        before = lookups(cached.app)[0]
        cached.post("/v1/identify", content=PHOTOS[photo], headers=bearer(key))
        return lookups(cached.app)[0] - before

    for photo in (1, 2, 3):
        hits(photo)
    asked = [hits(3), hits(3, "k2"), hits(3, "k2"), hits(2), hits(0), hits(3), hits(2)]
    assert asked == [1, 0, 1, 1, 0, 0, 1]


def test_photos_of_one_plant_are_looked_up_one_by_one_and_bad_ones_are_not_kept(
    cached: TestClient, client: TestClient
) -> None:
    files = [("images", (name, PHOTOS[at])) for name, at in (("a", 1), ("b", 2))]
    for _ in range(2):
        response = cached.post("/v1/identify", files=files)
        assert plain(response) == plain(client.post("/v1/identify", files=files))
        refused = cached.post("/v1/identify", content=PHOTOS[0][:300])
        assert refused.json()["code"] == "image_unreadable"


def test_another_bundle_answers_anew(served: Path) -> None:
    with Running(served, cache_answers=9) as running:
        for calibration_id, expected in (("first", (1, 1)), ("second", (2, 2))):
            recalibrated(served, calibration_id)
            reload(running)
            for _ in range(2):
                status, answer = identify(running)
                assert (status, answer["model"]["calibration_id"]) == (200, calibration_id)
            assert lookups(running.app) == expected


def test_without_the_flag_nothing_is_kept(client: TestClient) -> None:
    before = lookups(client.app)
    client.post("/v1/identify", content=PHOTOS[0])
    assert lookups(client.app) == before == (0, 0)
