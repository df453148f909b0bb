"""Reading a request: its parameters, and its body with every limit from below, at it, and above."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from florilege.server.answers.query import IdentifyQuery
from florilege.server.http import request as module
from florilege.server.http.request import (
    MAX_DIGITS,
    MAX_PARAMETERS,
    FindPhotos,
    InThread,
    UploadBudget,
    read_body,
    read_images,
)
from florilege.server.problems import Code
from florilege.server.settings import Settings
from tests.server.http.test_multipart import TYPE, form
from tests.server.http_client import open_client
from tests.server.raised_problem import raises_problem


def arriving(*chunks: bytes) -> Receive:
    """The channel of a body that arrives in pieces; nothing more is requested."""
    messages = [
        {"type": "http.request", "body": chunk, "more_body": number < len(chunks)}
        for number, chunk in enumerate(chunks, start=1)
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    return receive


def upload(receive: Receive, headers: Mapping[str, str] | None = None) -> Request:
    """A request whose body comes from a channel."""
    raw = [(name.encode(), value.encode("latin-1")) for name, value in (headers or {}).items()]
    return Request({"type": "http", "headers": raw}, receive)


def read(
    chunks: Sequence[bytes],
    held: UploadBudget | None = None,
    *,
    content_type: str = "",
    in_thread: InThread = asyncio.to_thread,
    **limits: Any,
) -> list[bytes]:
    """The photos of a body."""
    settings = Settings(bundle=Path(), **limits)

    async def run() -> list[bytes]:
        counted = held or UploadBudget(10**6)
        before = counted.now
        headers = {"content-type": content_type}
        request = upload(arriving(*chunks), headers)
        async with read_images(request, settings, counted, in_thread=in_thread) as images:
            assert counted.now - before == sum(map(len, chunks))
            return images

    return asyncio.run(run())


@pytest.mark.parametrize("size", [1, 9, 10, 11])
def test_a_body_may_have_as_many_bytes_as_allowed_in_any_pieces(size: int) -> None:
    whole = bytes(range(size))
    for chunks in ([whole], [whole[:1], whole[1:]], [bytes([byte]) for byte in whole]):
        if size <= 10:
            assert read(chunks, max_body_bytes=10) == [whole]
        else:
            with raises_problem(Code.BODY_TOO_LARGE) as caught:
                read(chunks, max_body_bytes=10)
            assert caught.value.limit == 10


def test_nothing_is_read_beyond_the_limit() -> None:
    total = UploadBudget(100)
    receive = arriving(b"12345", b"67890", b"1", b"2")

    async def run() -> None:
        settings = Settings(bundle=Path(), max_body_bytes=10)
        with raises_problem(Code.BODY_TOO_LARGE):
            async with read_images(upload(receive), settings, total):
                pytest.fail("read it")

    asyncio.run(run())
    assert asyncio.run(receive())["body"] == b"2"  # type: ignore[arg-type]  # a coroutine
    assert total.now == 0


@pytest.mark.parametrize("others", [0, 89, 90, 91])
def test_bodies_are_held_up_to_the_limit_and_given_back(others: int) -> None:
    total = UploadBudget(100)
    assert total.uploads.add_within(others, others)
    if others <= 90:
        assert read([b"12345", b"67890"], total) == [b"1234567890"]
    else:
        with raises_problem(Code.OVERLOADED) as caught:
            read([b"12345", b"67890"], total)
        assert caught.value.headers == {"Retry-After": "1"}
    assert total.now == others


@pytest.mark.parametrize(
    ("declared", "error"),
    [
        ("10", None),
        ("11", Code.BODY_TOO_LARGE),
        ("10".zfill(MAX_DIGITS), None),
        ("10".zfill(MAX_DIGITS + 1), Code.BODY_TOO_LARGE),  # more digits than are looked at
        ("9" * 10_000, Code.BODY_TOO_LARGE),
        ("-1", Code.MALFORMED_REQUEST),
        ("²", Code.MALFORMED_REQUEST),
    ],
)
def test_the_declared_length_is_checked_first(declared: str, error: Code | None) -> None:
    async def run() -> bytes:
        request = upload(arriving(b"1234567890"), {"content-length": declared})
        return await read_body(request, limit=10, deadline_s=9, advice="send less")

    if error is None:
        assert asyncio.run(run()) == b"1234567890"
    else:
        with raises_problem(error):
            asyncio.run(run())


@pytest.mark.parametrize("beyond", [-1, 0, 1])
def test_large_forms_are_parsed_beside_the_loop_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch, beyond: int
) -> None:
    content = form(("images", b"abc"), ("images", b"d" * 50))
    monkeypatch.setattr(module, "PARSED_ON_THE_LOOP", len(content) - beyond)
    beside: list[int] = []

    async def in_thread(find: FindPhotos, body: bytes, content_type: str) -> list[bytes]:
        beside.append(len(body))
        return find(body, content_type)

    assert read([content], content_type=TYPE, in_thread=in_thread) == [b"abc", b"d" * 50]
    assert len(beside) == (beyond > 0)


@pytest.mark.parametrize("beyond", [0, 1])
def test_forms_of_many_parts_are_parsed_beside_the_loop(beyond: int) -> None:
    content = form(*[("images", b"abc")] * (module.FEW_PARTS + beyond))
    beside: list[int] = []

    async def in_thread(find: FindPhotos, body: bytes, content_type: str) -> list[bytes]:
        beside.append(len(body))
        return find(body, content_type)

    photos = read([content], content_type=TYPE, in_thread=in_thread, max_images=99)
    assert len(photos) == module.FEW_PARTS + beyond
    assert len(beside) == beyond


def test_a_client_that_left_is_told_apart_from_an_empty_body() -> None:
    async def gone() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    with pytest.raises(ClientDisconnect):
        asyncio.run(read_body(upload(gone), limit=10, deadline_s=9, advice="send less"))
    assert (
        asyncio.run(read_body(upload(arriving(b"")), limit=10, deadline_s=9, advice="send less"))
        == b""
    )


def test_a_query_with_thousands_of_mistakes_is_refused_for_one() -> None:
    with pytest.raises(ValidationError) as refused:
        IdentifyQuery.model_validate({"include": [",".join(["x"] * 9)]})
    assert refused.value.error_count() == 1


def test_a_query_has_no_more_names_than_there_are_parameters(bundle: Path) -> None:
    names = [f"x{number}=1" for number in range(MAX_PARAMETERS + 1)]
    with open_client(bundle, plantnet=True) as client:
        for method, path in (("POST", "/v1/identify"), ("GET", "/v1/classes")):
            few = client.request(method, f"{path}?{'&'.join(names[:-1])}")
            many = client.request(method, f"{path}?{'&'.join(names)}")
            assert few.json()["code"] == "unknown_parameter"
            assert many.json()["code"] == "invalid_parameter"
            assert f"more than {MAX_PARAMETERS}" in many.json()["detail"]
