"""The outermost layer: request ids, security headers, metrics, and answers to all exceptions.

An exception that reaches the HTTP server costs the client its connection, so every exception
becomes an answer here.

Traces of OpenTelemetry are created after the answer, from what is measured anyway, if the
environment names a collector and ``otel`` is installed. Spans contain the id, method, route, status
and the time of each stage, but no address, query, header or key.
"""

import asyncio
import logging
import os
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic, time_ns
from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from florilege.errors import install_hint
from florilege.server.bounds import EventLoopTurns
from florilege.server.engine import Engine
from florilege.server.problems import MEDIA_TYPE, Code, Problem
from florilege.server.prometheus import Metrics

log = logging.getLogger("florilege.server")


ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
_UNTRACED = frozenset({"/livez", "/readyz", "/metrics"})

_REQUEST_ID = re.compile(r"[A-Za-z0-9._~:-]{1,128}")
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
# Statuses that a route may answer before it has read the body.
_REFUSED_EARLY = frozenset({401, 403, 408, 413, 429, 503})
LINGER_S = 2.0
LINGER_BYTES = 512 * 2**20
PIECE_BYTES = 64 * 1024
"""Of a body to send before others have their turn: 3 MB at once would keep the event loop for 8 ms,
and 32 such bodies a photo for a second. A piece takes a tenth of a millisecond; 32 in each pass of
the loop, of which a photo takes ten, still made it wait for .6 s."""
_DIGITS_OF_UPLOAD = 5
"""Of the length of a body: 10 kB or more are a photo, which takes ten passes of the event loop."""
HANDLED = (Problem, HTTPException, RequestValidationError)
"""Our own errors, and what the framework refuses: unknown routes, methods and parameters."""
SAFETY = {
    "Cache-Control": "no-store",  # unless a route says otherwise
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; "
        "connect-src 'self'; worker-src 'self'; manifest-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    ),
}
_SAFETY = [(name.lower().encode(), value.encode()) for name, value in SAFETY.items()]


class _RequestTracer:
    """Creates a span of a ``TracerProvider`` for each request, with a child for each stage."""

    def __init__(self, provider: Any) -> None:
        from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        self._tracer, self.close = provider.get_tracer("florilege"), provider.shutdown
        self._extract, self._within = TraceContextTextMapPropagator().extract, set_span_in_context
        self._server, self._failed = SpanKind.SERVER, Status(StatusCode.ERROR)

    def add(
        self,
        fields: Mapping[str, Any],
        seconds: float,
        stages: Mapping[str, float],
        headers: Mapping[str, str],
    ) -> None:
        """Add a request that ends now; ``stages`` are the seconds of its last stages, in order."""
        method, route, status = fields["method"], fields["route"], fields["status"]
        if route in _UNTRACED:
            return
        end = time_ns()
        attributes = {
            "http.request.method": method,
            "http.route": route,
            "http.response.status_code": status,
            "florilege.request_id": fields["request_id"],
            "florilege.code": fields["code"],
        }
        span = self._tracer.start_span(
            f"{method} {route}",
            context=self._extract(headers),  # the caller's span, from `traceparent`
            kind=self._server,
            attributes={name: value for name, value in attributes.items() if value is not None},
            start_time=end - round(1e9 * seconds),
        )
        if status is not None and status >= 500:
            span.set_status(self._failed)
        start, context = end - round(1e9 * sum(stages.values())), self._within(span)
        for stage, stage_s in stages.items():
            child = self._tracer.start_span(stage, context=context, start_time=start)
            start += round(1e9 * stage_s)
            child.end(start)
        span.end(end)


def open_traces() -> _RequestTracer | None:
    """Traces for the collector that the standard variables name; None if they name none."""
    off = os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true"
    if off or not any(os.environ.get(name) for name in ENDPOINTS):
        return None
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:  # clusters set these variables for all programs
        log.warning("no traces are sent: they need the extra otel: %s", install_hint("otel"))
        return None
    resource = Resource.create()
    if str(resource.attributes["service.name"]).startswith("unknown_service"):
        resource = resource.merge(Resource({"service.name": "florilege"}))
    provider = TracerProvider(resource=resource)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return _RequestTracer(provider)


@dataclass(frozen=True)
class RequestMiddleware:
    """Makes an `_Exchange` of each request."""

    app: ASGIApp
    metrics: Metrics
    access_log: bool = False
    traces: _RequestTracer | None = None
    turns: EventLoopTurns = field(default_factory=EventLoopTurns)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        with self.metrics.in_progress.track_inprogress():
            await _Exchange(self, scope, receive, send).run()


class _Exchange:
    """One request and its answer."""

    def __init__(
        self, outer: RequestMiddleware, scope: Scope, receive: Receive, send: Send
    ) -> None:
        self.outer, self.method = outer, scope["method"]
        if self.method == "HEAD":  # answered like GET; the HTTP server omits the body
            scope = {**scope, "method": "GET"}
        scope["path"] = _path_of(scope["path"])
        self.scope, self._receive, self._send = scope, receive, send
        self.headers = headers = Headers(scope=scope)
        # Ours: two callers may send the same X-Request-Id, and feedback names an answer by this
        # one.
        self.id = secrets.token_hex(16)
        callers_id = headers.get("x-request-id", "")
        self.request_id = callers_id if _REQUEST_ID.fullmatch(callers_id) else self.id
        scope.setdefault("state", {}).update(id=self.id, request_id=self.request_id, key=None)
        self.status: int | None = None
        announced = "transfer-encoding" in headers or headers.get("content-length", "0") != "0"
        self.body_ended = not announced
        self.is_large = len(headers.get("content-length", "")) >= _DIGITS_OF_UPLOAD
        self.is_upload = self.is_large or "transfer-encoding" in headers
        self.is_photo = False  # an upload that is whole
        self.closes = False

    async def run(self) -> None:
        started, turns = monotonic(), self.outer.turns
        try:
            await turns.begin(is_large=self.is_large)  # a body in chunks may be empty
            if self.is_upload:
                turns.last_bytes_at = monotonic()
            await self.outer.app(self.scope, self.receive, self.send)
        except ClientDisconnect:
            self.outer.metrics.rejected.labels("client_left").inc()
        except asyncio.CancelledError:  # the time to drain is over
            await self._answer(Code.DRAINING, "this server had to stop; try again", retry_after=1)
        except Exception:
            log.exception("request failed", extra={"fields": {"request_id": self.request_id}})
            detail = "the server failed; please report the request id"
            await self._answer(Code.INTERNAL_ERROR, detail)
        finally:
            turns.photos -= self.is_photo
            self._count(monotonic() - started)

    async def _answer(self, code: Code, detail: str, *, retry_after: int | None = None) -> None:
        if self.status is None:
            problem = Problem(code, detail, retry_after=retry_after)
            response = problem_response(problem, self.request_id)
            await response(self.scope, self.receive, self.send)

    async def receive(self) -> Message:
        message = await self._receive()
        ends = message["type"] == "http.disconnect" or not message.get("more_body", False)
        if self.is_upload and not self.body_ended:
            self.outer.turns.last_bytes_at = monotonic()
            self.outer.turns.photos += ends
            self.is_photo = ends
        self.body_ended = self.body_ended or ends
        return message

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self.closes = not self.body_ended and self.status in _REFUSED_EARLY
            self._add_headers(message)
            await self._send(message)
        elif self.closes and not message.get("more_body", False):
            await self._send({**message, "more_body": True})
            await self._linger()
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        elif len(message.get("body", b"")) > PIECE_BYTES:
            await self._send_in_pieces(message)
        else:
            await self._send(message)

    async def _send_in_pieces(self, message: Message) -> None:
        body, more = message["body"], message.get("more_body", False)
        for start in range(0, len(body), PIECE_BYTES):
            end = start + PIECE_BYTES
            piece = {**message, "body": body[start:end], "more_body": more or end < len(body)}
            # A write to a socket with room never waits: without a turn all pieces would leave at
            # once.
            await self.outer.turns.take()
            await self._send(piece)

    def _add_headers(self, message: Message) -> None:
        own = {"X-Request-Id": self.request_id, **self.scope["state"].get("rate_limit", {})}
        if self.closes:
            own["Connection"] = "close"
        present = {name for name, _ in message["headers"]}
        others = [(name.lower().encode(), value.encode("latin-1")) for name, value in own.items()]
        added = [header for header in (*_SAFETY, *others) if header[0] not in present]
        message["headers"] = [*message["headers"], *added]

    async def _linger(self) -> None:
        """Keep reading for a moment: closing on unread bytes would reset the connection, and a
        client that only listens after its last byte would never see why it was refused."""
        remaining = LINGER_BYTES
        until = monotonic() + LINGER_S
        while not self.body_ended and remaining > 0 and monotonic() < until:
            try:
                message = await asyncio.wait_for(self.receive(), until - monotonic())
            except TimeoutError:
                return
            remaining -= len(message.get("body", b""))

    def _count(self, seconds: float) -> None:
        metrics, state = self.outer.metrics, self.scope["state"]
        # Clients choose paths and methods freely, and each new label would be a new series in
        # Prometheus.
        route = getattr(self.scope.get("route"), "path", "unknown")
        method = self.method if self.method in METHODS else "other"
        status = "client_left" if self.status is None else str(self.status)
        metrics.http_requests.labels(route, method, status).inc()
        metrics.http_seconds.labels(route).observe(seconds)
        failed = self.status is not None and self.status >= 500
        fields = {
            "id": self.id,
            "request_id": self.request_id,
            "method": method,
            "route": route,
            "status": self.status,
            "code": state.get("code"),
            "ms": round(1000 * seconds, 1),
        }
        if failed or self.outer.access_log:
            level = logging.WARNING if failed else logging.INFO
            log.log(level, "request", extra={"fields": fields})
        if self.outer.traces is not None:
            # A copy: the thread of a photo whose client left may still be adding some.
            stages = dict(state.get("stages", {}))
            self.outer.traces.add(fields, seconds, stages, self.headers)


def _path_of(target: str) -> str:
    """The path of a request target, which may be a whole URL (RFC 9112, section 3.2.2)."""
    scheme, _, rest = target.partition("://")
    return "/" + rest.partition("/")[2] if scheme in ("http", "https") else target


async def send_problem(request: Request, error: Exception) -> Response:
    """Answer an exception that is `HANDLED`, count it, and pass its code to the log.

    A route that renders problems differently sets ``request.state.render_problem``.
    """
    if isinstance(error, RequestValidationError):
        error = _problem_of_validation(error)
    elif isinstance(error, HTTPException):
        error = _problem_of_route(request, error)
    assert isinstance(error, Problem)
    engine: Engine = request.app.state.engine
    engine.metrics.rejected.labels(error.code).inc()
    request.state.code = error.code
    render: Callable[[Problem, str], Response]
    render = getattr(request.state, "render_problem", problem_response)
    return render(error, request.state.request_id)


def problem_response(problem: Problem, request_id: str) -> JSONResponse:
    """Render one problem; ``limit`` and ``allowed`` appear only if they are set."""
    code = problem.code
    document = {
        "type": f"/problems/{code}",
        "title": code.summary,
        "status": code.status,
        "detail": problem.detail,
        "instance": request_id,
        "code": code,
        "retryable": code.retryable,
        "limit": problem.limit,
        "allowed": problem.allowed,
    }
    document = {name: value for name, value in document.items() if value is not None}
    return JSONResponse(document, code.status, problem.headers, media_type=MEDIA_TYPE)


def _problem_of_route(request: Request, error: HTTPException) -> Problem:
    headers = error.headers or {}
    if error.status_code == 404:
        detail = "this address does not exist; /openapi.json lists those that do"
        return Problem(Code.NOT_FOUND, detail)
    if error.status_code == 405:
        allowed = headers.get("Allow", "")
        message = f"{request.method[:20]} is not allowed here; use {allowed}"
        return Problem(Code.METHOD_NOT_ALLOWED, message, headers=headers)
    return Problem(Code.MALFORMED_REQUEST, str(error.detail), headers=headers)


def _problem_of_validation(error: RequestValidationError) -> Problem:
    first = error.errors()[0]
    part, *path = first["loc"]
    what, name = "field" if part == "body" else "parameter", ".".join(map(str, path))[:80]
    if first["type"] == "extra_forbidden":
        detail = f"there is no {what} `{name}` here; /openapi.json lists those that exist"
        return Problem(Code.UNKNOWN_PARAMETER, detail)
    if not path:
        return Problem(Code.MALFORMED_REQUEST, f"the {part} is not a JSON object: {first['msg']}")
    return Problem(Code.INVALID_PARAMETER, f"{what} `{name}`: {first['msg']}")
