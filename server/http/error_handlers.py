"""Turn exceptions into problem documents (RFC 9457)."""

from typing import Any

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from florilege.server.engine import Engine
from florilege.server.problems import (
    MEDIA_TYPE,
    InvalidParameter,
    MalformedRequest,
    MethodNotAllowed,
    NotFound,
    Problem,
    UnknownParameter,
)


def problem_response(problem: Problem, request_id: str) -> JSONResponse:
    """Render one problem; ``limit`` and ``allowed`` appear only if they are set."""
    document: dict[str, Any] = {
        "type": f"/problems/{problem.code}",
        "title": problem.title,
        "status": problem.status,
        "detail": problem.detail,
        "instance": request_id,
        "code": problem.code,
        "retryable": problem.retryable,
    }
    if problem.limit is not None:
        document["limit"] = problem.limit
    if problem.allowed is not None:
        document["allowed"] = problem.allowed
    headers = problem.response_headers()
    return JSONResponse(document, problem.status, headers, media_type=MEDIA_TYPE)


async def on_problem(request: Request, error: Exception) -> Response:
    """Answer one of our own errors."""
    assert isinstance(error, Problem)
    note_problem(request, error)
    return problem_response(error, request.state.request_id)


def note_problem(request: Request, problem: Problem) -> None:
    """Count a problem, and pass its code to the log."""
    engine: Engine = request.app.state.engine
    engine.metrics.rejected.labels(problem.code).inc()
    request.state.code = problem.code


async def on_http_exception(request: Request, error: Exception) -> Response:
    """Answer what the framework refuses: unknown routes and methods."""
    assert isinstance(error, HTTPException)
    headers = dict(error.headers or {})
    problem: Problem = MalformedRequest(str(error.detail), headers=headers)
    if error.status_code == 404:
        problem = NotFound("this address does not exist; /openapi.json lists those that do")
    if error.status_code == 405:
        allowed = headers.get("Allow", headers.get("allow", ""))
        problem = MethodNotAllowed(
            f"{request.method[:20]} is not allowed here; use {allowed}", headers=headers
        )
    return await on_problem(request, problem)


async def on_invalid_query(request: Request, error: Exception) -> Response:
    """Answer an unknown or invalid parameter, naming it."""
    assert isinstance(error, RequestValidationError)
    return await on_problem(request, problem_of_query(error))


def problem_of_query(error: RequestValidationError) -> Problem:
    """The problem of an unknown or invalid parameter."""
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"][1:])[:80]
    if first["type"] == "extra_forbidden":
        return UnknownParameter(
            f"there is no parameter `{name}` here; /openapi.json lists those that exist"
        )
    return InvalidParameter(f"parameter `{name}`: {first['msg']}")
