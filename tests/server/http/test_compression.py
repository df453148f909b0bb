"""Text arrives compressed where the client accepts it, and means the same."""

import gzip
import json
from random import Random
from typing import Any

import pytest
from starlette.testclient import TestClient

from florilege.server.answers.dial import BELOW, LARGEST_SET
from florilege.server.http.cached_responses import LEAST_BYTES, compress
from tests.server import garden

PLAIN = {"Accept-Encoding": "identity"}
SYLLABLES = [
    first + rest for first in "bcdfglmnprstv" for rest in ("a", "e", "is", "ol", "us", "an")
]
BODIES = ("/", "/app.js", "/style.css", "/v1/model", "/v1/classes")


@pytest.mark.parametrize("path", BODIES)
def test_what_stays_the_same_is_compressed_and_revalidated(client: TestClient, path: str) -> None:
    plain = client.get(path, headers=PLAIN)
    zipped = client.get(path, headers={"Accept-Encoding": "br, gzip;q=0.5"})
    assert zipped.content == plain.content  # the client has unpacked it
    assert zipped.headers["content-encoding"] == "gzip"
    assert int(zipped.headers["content-length"]) < 0.7 * len(plain.content)
    assert "content-encoding" not in plain.headers
    assert zipped.headers["etag"] != plain.headers["etag"]  # strong: it names the very bytes
    for answer, accepted in ((plain, "identity"), (zipped, "gzip")):
        assert "Accept-Encoding" in answer.headers["vary"]
        tags = {"If-None-Match": answer.headers["etag"], "Accept-Encoding": accepted}
        again = client.get(path, headers=tags)
        assert (again.status_code, again.content) == (304, b"")
        assert "content-encoding" not in again.headers


@pytest.mark.parametrize("accepted", ["", "identity", "br", "gzip;q=0", "gzip; q=0.0", "xgzip"])
def test_who_does_not_accept_gzip_gets_text(client: TestClient, accepted: str) -> None:
    headers = {"Accept-Encoding": accepted}
    path = "/v1/identify?include=scores"
    answers = (
        client.get("/v1/model", headers=headers),
        client.post(path, content=garden.photo(0), headers=headers),
    )
    for answer in answers:
        assert "content-encoding" not in answer.headers
        assert answer.content.startswith(b"{")


def test_long_answers_are_compressed_and_short_ones_are_not(client: TestClient) -> None:
    headers = {"Accept-Encoding": "gzip"}
    long = client.post("/v1/identify?include=scores", content=garden.photo(0), headers=headers)
    assert long.headers["content-encoding"] == "gzip"
    assert len(long.json()["results"]) == 12
    assert int(long.headers["content-length"]) < 0.4 * len(long.content)
    assert "Server-Timing" in long.headers
    short = client.get("/livez", headers=headers)
    assert "content-encoding" not in short.headers
    assert len(short.content) < LEAST_BYTES


def test_the_longest_answer_of_the_page_is_light(client: TestClient) -> None:
    """A photo of which 75 sets are on the dial, of species with long names and pictures."""
    answer = client.post("/v1/identify?include=dial", content=garden.photo(1)).json()
    chance, (result, *_), (stop, *_) = Random(0), answer["results"], answer["dial"]
    answer["results"] = [_long_named(result, chance) for _ in range(LARGEST_SET + BELOW)]
    answer["dial"] = [_with_figures(stop, size, chance) for size in range(LARGEST_SET)]
    content = json.dumps(answer, ensure_ascii=False, separators=(",", ":")).encode()
    assert 15_000 < len(compress(content)) < 20_000


def _long_named(result: dict[str, Any], chance: Random) -> dict[str, Any]:
    def word(syllables: int) -> str:
        return "".join(chance.choice(SYLLABLES) for _ in range(syllables))

    class_id, genus = str(chance.randrange(10**6, 10**7)), word(3)
    taxon = {
        "scientific_name": f"{genus} {word(4)} subsp. {word(3)} ({word(1)}.) {word(2)}.",
        "genus": genus,
        "family": f"{word(2)}aceae",
        "ids": {"gbif": class_id},
        "common_names": [{"name": f"{word(3)} {word(2)}", "lang": "de"} for _ in range(3)],
        "link": f"https://www.gbif.org/species/{class_id}",
        "thumbnail": {
            "url": f"v1/thumbnails?class_id={class_id}",
            "author": word(4),
            "licence": "CC BY-SA 4.0",
        },
    }
    return result | {"class_id": class_id, "score": chance.random(), "taxon": taxon}


def _with_figures(stop: dict[str, Any], size: int, chance: Random) -> dict[str, Any]:
    rate, rows = {"split": "val", "selection_split": True}, 1000
    figures = {}
    for name in ("expected_size", "hit_rate", "hit_rate_at_size"):
        ends = [chance.random(), chance.random()]
        figures[name] = rate | {"value": chance.randrange(rows) / rows, "ci95": ends, "rows": rows}
    return stop | figures | {"k": size / 5, "lambda": chance.random(), "size": size}


def test_pictures_are_sent_as_they_are(client: TestClient) -> None:
    answer = client.get("/v1/thumbnails?class_id=1001", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    assert "vary" not in answer.headers


def test_the_bytes_do_not_depend_on_the_time(client: TestClient) -> None:
    with client.stream("GET", "/v1/model", headers={"Accept-Encoding": "gzip"}) as answer:
        packed = b"".join(answer.iter_raw())
    assert packed[4:8] == b"\0\0\0\0"
    assert gzip.decompress(packed).startswith(b"{")
