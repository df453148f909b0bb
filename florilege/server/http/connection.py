"""A client's connection: HTTP/1.1 within limits, and no other protocol.

It extends uvicorn's h11 connection. Unreadable requests get a problem document, like all other
errors. Requests to upgrade to another protocol are ignored (RFC 9110, section 7.8).
"""

import asyncio
import secrets
import sys
from collections.abc import Sequence
from http import HTTPStatus
from typing import Any, Final

import h11
from fastapi import FastAPI
from uvicorn.protocols.http.h11_impl import H11Protocol

from florilege.server.http.middleware import LINGER_S, SAFETY, problem_response
from florilege.server.problems import Code, Problem

MAX_HEAD_BYTES: Final = 64 * 1024
"""Limit of a request's address and header lines, of its trailer and of a chunk's head."""
_HEAD_TOO_LARGE: Final = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
MAX_ESCAPES: Final = 4096
"""``%`` signs in an address: the event loop decodes each, and 20,000 take 4 ms."""
MANY_CHUNKS: Final = 1000
SMALL_CHUNK_BYTES: Final = 64
"""Many chunks that are smaller on average are refused: reading one takes 3 us, whatever its size,
and the event loop reads up to 256 KiB at once."""
STALLED_S: Final = 60.0
"""In which a client has to take what the system cannot send at once, up to 128 KiB of a long
answer: until then all of it stays in memory, and no limit counts it."""


class Connection(H11Protocol):
    """A connection of uvicorn with limits; the docstring of the module says which."""

    is_refused = False
    _stalled: asyncio.TimerHandle | None = None

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.conn = _LimitedConnection(h11.SERVER, MAX_HEAD_BYTES)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        # Whatever the system does not take at once pauses writing, and is given `STALLED_S`.
        transport.set_write_buffer_limits(high=0)
        super().connection_made(transport)
        # uvicorn waits for a time only after an answer: a client that never sends anything would
        # stay.
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Give the client a while to take what is not sent."""
        super().pause_writing()
        self._stalled = self.loop.call_later(STALLED_S, self.transport.abort)

    def resume_writing(self) -> None:
        """Write on: the client has taken all of it."""
        self._stop_waiting()
        super().resume_writing()

    def _stop_waiting(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()

    def data_received(self, data: bytes) -> None:
        """Read on. uvicorn stops waiting at the first byte, here at the end of a request's head.

        So the rest of a body that nobody needed for the answer has as long to come.
        """
        if self.is_refused:
            return
        waiting, self.timeout_keep_alive_task = self.timeout_keep_alive_task, None
        super().data_received(data)
        if waiting is None:
            return
        is_answered = self.cycle is None or self.cycle.response_complete
        if is_answered and self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = waiting
        else:
            waiting.cancel()

    def shutdown(self) -> None:
        """Close the connection after its current request; abort it if it is broken."""
        try:
            super().shutdown()
        except h11.LocalProtocolError:
            self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """Refuse an unreadable request; uvicorn calls this while it handles the error."""
        self.is_refused = True
        if self.cycle is not None:  # tell the reader of its body that it ended
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        problem, request_id = _problem(sys.exception()), secrets.token_hex(16)
        assert isinstance(self.config.app, FastAPI)
        self.config.app.state.engine.metrics.rejected.labels(problem.code).inc()
        response = problem_response(problem, request_id)
        response.headers.update(SAFETY | {"X-Request-Id": request_id, "Connection": "close"})
        headers = [*self.server_state.default_headers, *response.raw_headers]
        reason = HTTPStatus(problem.code.status).phrase
        try:
            for event in (
                h11.Response(status_code=problem.code.status, headers=headers, reason=reason),
                h11.Data(data=bytes(response.body)),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event))
        except h11.LocalProtocolError:  # another response has started
            self.transport.close()
            return
        self.transport.write_eof()
        # Closing on unread bytes would reset the connection, and the client would never see why.
        self.flow.resume_reading()
        self.loop.call_later(LINGER_S, self.transport.close)

    def _should_upgrade(self) -> bool:
        return False


class _LimitedConnection(h11.Connection):
    """Limits the head of a request; sends the head of a response with the start of its body."""

    _chunks = _bytes = 0
    _response_head: Sequence[bytes] = ()

    def send_with_data_passthrough(self, event: h11.Event) -> list[bytes]:
        parts = super().send_with_data_passthrough(event) or []
        if isinstance(event, h11.Response):
            # One system call less for each answer: its head leaves with the first bytes of its
            # body.
            self._response_head, parts = parts, []
        else:
            parts, self._response_head = [*self._response_head, *parts], ()
        return parts

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request):
            self._chunks = self._bytes = 0
            # h11 compares its limit with what is incomplete; a head that arrives whole may have 256
            # KiB.
            if _head_bytes(event) > MAX_HEAD_BYTES:
                raise h11.RemoteProtocolError("too long", error_status_hint=_HEAD_TOO_LARGE)
            _check_request(event)
        elif isinstance(event, h11.Data):
            self._chunks += event.chunk_end
            self._bytes += len(event.data)
            whole = self._chunks - 1  # the last one may be small
            if whole >= MANY_CHUNKS and self._bytes < SMALL_CHUNK_BYTES * whole:
                small = f"many chunks of less than {SMALL_CHUNK_BYTES} bytes"
                raise _refusal(f"the body of the request has {small}")
        return event


class _RefusedRequest(h11.RemoteProtocolError):
    """A request that h11 accepts and this server does not."""

    problem: Problem


def _refusal(
    detail: str, code: Code = Code.MALFORMED_REQUEST, limit: int | None = None
) -> _RefusedRequest:
    error = _RefusedRequest(detail)
    error.problem = Problem(code, detail, limit=limit)
    return error


def _check_request(request: h11.Request) -> None:
    """Refuse what a proxy in front may read as another request than this server does."""
    names = {name for name, _ in request.headers}
    if request.http_version[:2] != b"1.":  # a higher minor version is read as 1.1 (RFC 9110, 2.5)
        version = request.http_version.decode()
        raise _refusal(f"this server speaks HTTP/1.1, and the request is HTTP/{version}")
    if b"transfer-encoding" in names:  # RFC 9112, section 6.1
        if b"content-length" in names:
            raise _refusal("the request has both Transfer-Encoding and Content-Length; send one")
        if request.http_version == b"1.0":
            raise _refusal("the request is HTTP/1.0, which has no Transfer-Encoding")
    if request.target.count(b"%") > MAX_ESCAPES:
        detail = f"an address may have {MAX_ESCAPES} escaped bytes, such as %20; send less"
        raise _refusal(detail, Code.HEADERS_TOO_LARGE, MAX_ESCAPES)


def _head_bytes(request: h11.Request) -> int:
    """The size of its lines, with one space after each colon."""
    first = len(request.method) + len(request.target) + len("  HTTP/1.1\r\n")
    lines = sum(len(name) + len(value) for name, value in request.headers)
    return first + lines + len(request.headers) * len(": \r\n") + len("\r\n")


def _problem(error: BaseException | None) -> Problem:
    if isinstance(error, _RefusedRequest):
        return error.problem
    if getattr(error, "error_status_hint", None) != _HEAD_TOO_LARGE:
        return Problem(Code.MALFORMED_REQUEST, "the request is not valid HTTP/1.1")
    detail = f"the address and the header lines of a request may have {MAX_HEAD_BYTES} bytes"
    return Problem(Code.HEADERS_TOO_LARGE, f"{detail}; send less", limit=MAX_HEAD_BYTES)
