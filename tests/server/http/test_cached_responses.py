"""Responses that stay the same, sent whole or in parts."""

from typing import Final

import pytest
from fastapi import FastAPI, Request
from starlette.testclient import TestClient

from florilege.server.http.cached_responses import CachedResponse
from florilege.server.http.middleware import PIECE_BYTES, RequestMiddleware
from florilege.server.prometheus import Metrics

LONG: Final = bytes(range(256)) * (PIECE_BYTES // 128 + 1)  # two parts and a bit


def _client(body: bytes, media_type: str) -> TestClient:
    application, response = FastAPI(), CachedResponse(body, media_type)

    @application.api_route("/", methods=["GET", "HEAD"])
    async def send(request: Request) -> object:
        return await response.send(request)

    application.add_middleware(RequestMiddleware, metrics=Metrics())
    return TestClient(application)


@pytest.mark.parametrize("length", [0, 1, PIECE_BYTES, PIECE_BYTES + 1, 2 * PIECE_BYTES, len(LONG)])
def test_a_body_of_any_length_arrives_whole_with_its_length(length: int) -> None:
    response = _client(LONG[:length], "image/jpeg").get("/")
    assert response.content == LONG[:length]
    assert response.headers["content-length"] == str(length)


def test_a_long_body_is_compressed_only_for_who_accepts_it() -> None:
    client = _client(LONG, "application/json")
    plain = client.get("/", headers={"Accept-Encoding": "identity"})
    zipped = client.get("/", headers={"Accept-Encoding": "gzip"})
    assert plain.content == zipped.content == LONG
    assert "content-encoding" not in plain.headers
    assert zipped.headers["content-encoding"] == "gzip"
    assert plain.headers["vary"] == zipped.headers["vary"] == "Accept-Encoding"
    assert plain.headers["etag"] != zipped.headers["etag"]


def test_a_long_body_is_known_by_its_tag_and_has_a_head() -> None:
    client = _client(LONG, "image/jpeg")
    tag = client.get("/").headers["etag"]
    assert client.get("/", headers={"If-None-Match": tag}).status_code == 304
    head = client.head("/")
    assert head.headers["content-length"] == str(len(LONG))
    assert head.headers["etag"] == tag
