"""Turn exceptions into problem documents (RFC 9457)."""

from collections.abc import Callable

from fastapi import Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from florilege.server.engine import Engine
from florilege.server.problems import MEDIA_TYPE, Code, Problem

HANDLED = (Problem, HTTPException, RequestValidationError)
"""Our own errors, and what the framework refuses: unknown routes, methods and parameters."""


async def send_problem(request: Request, error: Exception) -> Response:
    """Answer an exception that is `HANDLED`, count it, and pass its code to the log.

    ``request.state.render_problem`` is what `problem_response` is by default.
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
    document = {name: each for name, each in document.items() if each is not None}
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
