"""The outermost layer by itself: refused uploads, long bodies, and whose turn it is."""

import asyncio
import sys
from typing import Any
from unittest.mock import AsyncMock

import pytest
from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from florilege.server import bounds
from florilege.server.http import middleware as module
from florilege.server.http.middleware import RequestMiddleware, problem_response
from florilege.server.problems import Code, Problem
from florilege.server.prometheus import Metrics


def refused(*sizes: int, app_reads: int = 0, waits: bool = False) -> tuple[list[Message], int]:
    """Refuse a body of pieces of ``sizes`` after ``app_reads`` of them.

    If it ``waits``, the client stays without ending the body. Returns what is sent, and how many
    pieces were read in all.
    """
    pieces = [{"type": "http.request", "body": bytes(size), "more_body": True} for size in sizes]
    if not waits and pieces:
        pieces[-1]["more_body"] = False
    messages, read = list[Message](), 0

    async def receive() -> Message:
        nonlocal read
        if read == len(pieces):
            await asyncio.Event().wait()
        read += 1
        return pieces[read - 1]

    async def send(message: Message) -> None:
        messages.append(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        for _ in range(app_reads):
            await receive()
        problem = Problem(Code.BODY_TOO_LARGE, "too many")
        await problem_response(problem, "r")(scope, receive, send)

    scope: dict[str, Any] = {
        "type": "http", "method": "POST", "path": "/", "headers": [(b"content-length", b"999")]
    }  # fmt: skip
    asyncio.run(asyncio.wait_for(RequestMiddleware(app, Metrics())(scope, receive, send), 15))
    return messages, read


@pytest.mark.parametrize(("limit", "read"), [(29, 3), (30, 3), (31, 4), (40, 4), (10**6, 5)])
def test_a_refused_upload_is_read_up_to_a_number_of_bytes(
    monkeypatch: pytest.MonkeyPatch, limit: int, read: int
) -> None:
    monkeypatch.setattr(module, "LINGER_BYTES", limit)
    payload, result = refused(10, 10, 10, 10, 1)
    assert result == read
    assert [message["type"] for message in payload] == [
        "http.response.start", "http.response.body", "http.response.body"
    ]  # fmt: skip
    assert [message.get("more_body", False) for message in payload[1:]] == [True, False]
    assert Headers(raw=payload[0]["headers"])["connection"] == "close"


def test_a_refused_upload_is_read_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LINGER_S", 0.02)
    payload, read = refused(10, 10, waits=True)
    assert (read, len(payload)) == (2, 3)
    monkeypatch.setattr(module, "LINGER_S", 0.0)
    payload, read = refused(10, 10)
    assert (read, len(payload)) == (0, 3)


def test_a_complete_upload_is_not_read_further() -> None:
    payload, read = refused(10, 10, app_reads=2)
    assert (read, len(payload)) == (2, 2)
    assert "connection" not in Headers(raw=payload[0]["headers"])


@pytest.mark.parametrize("size", [0, 10, 11, 35, 40])
def test_a_long_body_is_sent_in_pieces_between_which_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr(module, "PIECE_BYTES", 10)
    body, messages, turns = bytes(range(size)), list[Message](), list[int]()

    async def send(message: Message) -> None:
        messages.append(message)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await Response(body)(scope, receive, send)

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def count_turns() -> None:
        while True:
            turns.append(len(messages))
            await asyncio.sleep(0)

    async def run() -> None:
        other = asyncio.create_task(count_turns())
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}
        await RequestMiddleware(app, Metrics())(scope, receive, send)
        other.cancel()

    asyncio.run(run())
    start, *pieces = messages
    assert Headers(scope=start)["content-length"] == str(size)
    assert b"".join(piece["body"] for piece in pieces) == body
    assert max(len(piece["body"]) for piece in pieces) <= 10
    assert [piece.get("more_body", False) for piece in pieces] == [True] * (len(pieces) - 1) + [
        False
    ]
    if size > 10:
        assert {*range(2, 1 + len(pieces))} <= set(turns)


def test_long_bodies_take_turns_and_one_that_nobody_reads_holds_up_no_other() -> None:
    """Else 32 of them would take 32 pieces' time of each pass of the event loop."""
    passes, sent = 0, list[tuple[int, int]]()
    bodies, pieces = 5, 4

    async def count_passes() -> None:
        nonlocal passes
        while True:
            await asyncio.sleep(0)
            passes += 1

    async def ask(number: int) -> None:
        async def receive() -> Message:
            return {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            if message["type"] != "http.response.body":
                return
            sent.append((passes, number))
            if number == 0:
                await asyncio.Event().wait()  # a client that reads no further

        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": "/", "headers": []}
        await middleware(scope, receive, send)

    async def ask_all() -> None:
        counting, stuck = asyncio.create_task(count_passes()), asyncio.create_task(ask(0))
        await asyncio.gather(*map(ask, range(1, bodies)))
        for task in (counting, stuck):
            task.cancel()

    middleware = RequestMiddleware(Response(bytes(pieces * module.PIECE_BYTES)), Metrics())
    asyncio.run(asyncio.wait_for(ask_all(), 15))
    assert [number for _, number in sent].count(0) == 1
    assert len(sent) == (bodies - 1) * pieces + 1
    at = [when for when, _ in sent]
    assert len(set(at)) == len(at)  # never two in one pass
    assert {number for _, number in sent[:bodies]} == set(range(bodies))  # nobody waits for a whole


@pytest.mark.parametrize(
    ("headers", "taking_turns", "photos_take_turns"),
    [
        ([(b"content-length", b"10000")], True, False),
        ([(b"transfer-encoding", b"chunked")], True, True),  # which may hold nothing
        ([(b"content-length", b"9999")], False, False),
        ([], False, False),
    ],
)
def test_while_a_photo_is_here_other_requests_begin_one_after_the_other(
    headers: list[tuple[bytes, bytes]],
    taking_turns: bool,
    photos_take_turns: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Else 32 clients that ask what costs nothing would put 32 requests in each of its passes."""
    monkeypatch.setattr(bounds, "STILL_S", 0.0)
    passes, begun, intervals = 0, list[int](), list[float]()
    answered = asyncio.Event()

    async def count_passes() -> None:
        nonlocal passes
        while True:
            await asyncio.sleep(0)
            passes += 1

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/photo":
            await receive()
            await answered.wait()
        else:
            begun.append(passes)
            await asyncio.sleep(0)

    async def ask(path: str, headers: list[tuple[bytes, bytes]]) -> None:
        scope: dict[str, Any] = {"type": "http", "method": "GET", "path": path, "headers": headers}
        left = AsyncMock(return_value={"type": "http.disconnect"})
        await middleware(scope, left, AsyncMock())

    async def ask_all() -> None:
        counting, photo = map(asyncio.create_task, (count_passes(), ask("/photo", headers)))
        other_photo = asyncio.create_task(ask("/photo", headers))
        await asyncio.sleep(0)
        other_photo.cancel()  # what ends counts no longer, however it ends
        await asyncio.gather(*(ask("/", []) for _ in range(8)))
        intervals.append(sys.getswitchinterval())
        await asyncio.gather(*(ask("/", headers) for _ in range(3)))
        intervals.append(sys.getswitchinterval())
        answered.set()
        await photo
        begun.append(-1)
        await asyncio.gather(*(ask("/", []) for _ in range(8)))
        counting.cancel()

    middleware = RequestMiddleware(answer, Metrics())
    sys.setswitchinterval(bounds.SWITCH_S)
    asyncio.run(asyncio.wait_for(ask_all(), 15))
    sys.setswitchinterval(bounds.SWITCH_S)
    during, photos, after = begun[:8], begun[8:11], begun[12:]
    assert len(set(during)) == (8 if taking_turns else 1)
    assert len(set(photos)) == (3 if photos_take_turns else 1)
    # The thread of the photo asks for the interpreter's lock sooner, until the next photo.
    among_others, among_photos = intervals
    assert (among_others < 0.001) == taking_turns
    assert (among_photos < 0.001) == photos_take_turns
    assert len(set(after)) == 1


@pytest.mark.parametrize(("still_s", "taking_turns"), [(60.0, True), (0.0, False)])
def test_an_upload_that_stands_still_slows_nobody_down(
    still_s: float, taking_turns: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bounds, "STILL_S", still_s)
    begun = list[str]()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        begun.append(scope["path"])
        while (await receive()).get("more_body", False):
            pass

    async def ask(path: str, length: bytes, receive: Receive) -> None:
        headers = [(b"content-length", length)]
        scope: dict[str, Any] = {"type": "http", "method": "POST", "path": path, "headers": headers}
        await middleware(scope, receive, AsyncMock())

    async def ask_all() -> None:
        pieces: asyncio.Queue[Message] = asyncio.Queue()
        photo = asyncio.create_task(ask("/photo", b"10000", pieces.get))
        await pieces.put({"type": "http.request", "body": b"x", "more_body": True})
        await asyncio.sleep(0)
        gone = AsyncMock(return_value={"type": "http.disconnect"})
        others = asyncio.gather(*(ask("/", b"0", gone) for _ in range(8)))
        await asyncio.sleep(0)
        assert len(begun) == (2 if taking_turns else 9)
        await others
        await pieces.put({"type": "http.request", "body": b"x", "more_body": False})
        await photo

    middleware = RequestMiddleware(answer, Metrics())
    asyncio.run(asyncio.wait_for(ask_all(), 15))
    assert middleware.turns.photos == 0
