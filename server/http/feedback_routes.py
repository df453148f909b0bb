"""The route for feedback, there only where a store is configured."""

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from pydantic import ValidationError

from server.afterwards.feedback import Feedback
from server.errors import InvalidParameter, MalformedRequest, Problem, UnknownParameter
from server.http.body import read_small
from server.http.parameters import NoQuery, refuse_repeated
from server.schemas import FeedbackBody, FeedbackReceipt, ProblemDocument
from server.settings import Settings

router = APIRouter(
    dependencies=[Depends(refuse_repeated)],
    responses={
        "4XX": {"model": ProblemDocument, "description": "The feedback cannot be used."},
        "5XX": {"model": ProblemDocument, "description": "The feedback is not stored."},
    },
)

MOST_BYTES = 8192
MOST_OF_A_KEY = 200
DESCRIBED: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {"application/json": {"schema": FeedbackBody.model_json_schema()}},
    },
    "parameters": [
        {
            "name": "Idempotency-Key",
            "in": "header",
            "required": False,
            "description": "Any word of the caller's; the same again stores nothing twice.",
            "schema": {"type": "string", "maxLength": MOST_OF_A_KEY},
        }
    ],
}


@router.post(
    "/v1/feedback", status_code=202, response_model=FeedbackReceipt, openapi_extra=DESCRIBED
)
async def feedback(request: Request, query: Annotated[NoQuery, Query()]) -> FeedbackReceipt:
    """Say what a photo really shows, about one of the last 10,000 answers.

    `class_id` is the id of the right class, `not_listed` for a species that is neither in the set
    nor to be named, or `not_an_organism`. Stored are the set, the class, the note, the time and
    the versions of model and thresholds; no photo and no address. Of several pieces of feedback on
    one answer the last one counts. With an `Idempotency-Key` a request may be repeated safely.

    Errors: 400 `malformed_request`, `unknown_parameter`, `invalid_parameter`; 404
    `answer_not_found`, `class_not_found`; 408 `upload_too_slow`; 413 `body_too_large`; 422
    `idempotency_key_reused`; 503 `feedback_not_stored`.
    """
    settings: Settings = request.app.state.engine.settings
    store: Feedback = request.app.state.feedback
    key = request.headers.get("idempotency-key")
    if key is not None and not 0 < len(key) <= MOST_OF_A_KEY:
        raise InvalidParameter(f"Idempotency-Key may have 1 to {MOST_OF_A_KEY} characters")
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        raise MalformedRequest("send feedback as Content-Type: application/json")
    body = await read_small(
        request.receive, request.headers, limit=MOST_BYTES, deadline_s=settings.upload_deadline_s
    )
    return await asyncio.to_thread(store.take, _parsed(body), key)


def _parsed(body: bytes) -> FeedbackBody:
    try:
        return FeedbackBody.model_validate_json(body)
    except ValidationError as error:
        raise _problem(error) from error


def _problem(error: ValidationError) -> Problem:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])[:80]
    if first["type"] == "extra_forbidden":
        return UnknownParameter(f"feedback has no field `{name}`")
    if not name:
        return MalformedRequest(f"the body is no JSON object of feedback: {first['msg']}")
    return InvalidParameter(f"field `{name}`: {first['msg']}")
