"""Text arrives compressed where the client accepts it, and means the same."""

import gzip

import pytest
from starlette.testclient import TestClient

from florilege.server.http.compression import LEAST_BYTES
from tests.server import garden

PLAIN = {"Accept-Encoding": "identity"}
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


def test_pictures_are_sent_as_they_are(client: TestClient) -> None:
    answer = client.get("/v1/thumbnails?class_id=1001", headers={"Accept-Encoding": "gzip"})
    assert "content-encoding" not in answer.headers
    assert "vary" not in answer.headers


def test_the_bytes_do_not_depend_on_the_time(client: TestClient) -> None:
    with client.stream("GET", "/v1/model", headers={"Accept-Encoding": "gzip"}) as answer:
        packed = b"".join(answer.iter_raw())
    assert packed[4:8] == b"\0\0\0\0"
    assert gzip.decompress(packed).startswith(b"{")
