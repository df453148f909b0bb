"""The routes that take no photo, and the document at `/openapi.json` with all routes.

Docstrings of routes are their descriptions there. It is complete enough to generate clients from.
"""

import json
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Query, Request, Response
from fastapi.encoders import jsonable_encoder
from fastapi.openapi.utils import get_openapi
from fastapi.responses import PlainTextResponse
from limits import parse
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from florilege.server.answers.query import Language, accepted_languages, fallback_chain
from florilege.server.engine import Engine
from florilege.server.feedback import Feedback, FeedbackBody, FeedbackReceipt
from florilege.server.http.api_keys import client_of
from florilege.server.http.cached_responses import BundleInfo, CachedResponse
from florilege.server.http.model_card import ModelCard
from florilege.server.http.request import (
    COMMON_PROBLEMS,
    GUARDS,
    PHOTO,
    body_of,
    errors_of,
    problem_responses,
    read_body,
)
from florilege.server.problems import Code, Problem, ProblemDocument
from florilege.server.schemas import ClassDetails, ClassList, Health, RequestModel

_EXAMPLES = files("florilege.server") / "http" / "examples.json"
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "header": {"type": "apiKey", "in": "header", "name": "X-API-Key"},
}

_PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
MAX_FEEDBACK_BYTES = 8192
MAX_IDEMPOTENCY_KEY_LENGTH = 200

_FEEDBACK = body_of({"application/json": {"schema": FeedbackBody.model_json_schema()}})
_IdempotencyKey = Annotated[
    str | SkipJsonSchema[None],
    Header(
        alias="Idempotency-Key",
        description="Any text; repeating a request with the same text stores nothing twice.",
        min_length=1,
        max_length=MAX_IDEMPOTENCY_KEY_LENGTH,
    ),
]

_BUSY = (Code.OVERLOADED, Code.QUEUE_TIMEOUT, Code.DRAINING)
router = APIRouter(dependencies=GUARDS, responses=problem_responses(*COMMON_PROBLEMS))
feedback_router = APIRouter(dependencies=GUARDS, responses=problem_responses(*COMMON_PROBLEMS))
operations = APIRouter()


class _NoQuery(RequestModel):
    """No parameters at all."""


class _ModelQuery(RequestModel):
    """How much to tell of the model."""

    rules: bool = Field(
        default=True,
        description="Whether `rules` is filled in; without it the answer is a hundredth as long.",
    )


@router.get("/v1/model", response_model=ModelCard)
async def _model(request: Request, query: Annotated[_ModelQuery, Query()]) -> Response:
    """Return the model, what it is calibrated for, and the limits of a request.

    `rules` lists for each rule every K (or coverage) it is calibrated for, with its threshold
    and what was measured with it. The answer changes only with the bundle: use its ETag.
    """
    about: BundleInfo = request.app.state.about
    return (about.card if query.rules else about.short_card).answer(request)


class _ClassQuery(RequestModel):
    """How to show one class."""

    lang: Language = None


class _ClassesQuery(_ClassQuery):
    """Which classes to list, and how."""

    q: str | None = Field(
        None,
        description="Only classes whose id or any name contains this, ignoring case.",
        max_length=200,
    )
    limit: int | None = Field(None, ge=0, description="Maximum number of classes; all by default.")


@router.get(
    "/v1/classes",
    response_model=ClassList,
    responses=problem_responses(*COMMON_PROBLEMS, *_BUSY),
)
async def _classes(request: Request, query: Annotated[_ClassesQuery, Query()]) -> Response:
    """Return the classes the model knows, all of them unless `q` or `limit` is given."""
    about: BundleInfo = request.app.state.about
    engine: Engine = request.app.state.engine
    languages = about.known_languages(_chain(request, query.lang))
    find = about.classes.find
    class_list = await about.cached_list(engine.lookups, find, languages, query.q, query.limit)
    return class_list.answer(request, vary="Accept-Language")


@router.get(
    # `path`: an id may hold slashes.
    "/v1/classes/{class_id:path}",
    response_model=ClassDetails,
    responses=problem_responses(Code.CLASS_NOT_FOUND),
)
async def _one_class(
    request: Request, class_id: str, query: Annotated[_ClassQuery, Query()]
) -> Response:
    """Return one class by its id, with reference pictures and the classes it is confused with."""
    about = _info_about(request, class_id)
    details = about.details(class_id, _chain(request, query.lang))
    return CachedResponse(details).answer(request, vary="Accept-Language")


class _ThumbnailQuery(RequestModel):
    """The class whose picture to show."""

    class_id: str = Field(description="Id of the class.")
    number: int | None = Field(
        default=None,
        ge=1,
        description="Which of its larger reference pictures, as `/v1/classes/{class_id}` lists "
        "them; its thumbnail by default.",
    )


@router.get(
    "/v1/thumbnails",
    response_class=Response,
    responses={
        200: {"content": {"image/jpeg": {"schema": PHOTO}}},
        **problem_responses(Code.CLASS_NOT_FOUND, Code.THUMBNAIL_NOT_FOUND),
    },
)
async def _thumbnail(request: Request, query: Annotated[_ThumbnailQuery, Query()]) -> Response:
    """Return a reference picture of one class, a JPEG.

    The `thumbnail` of a taxon, and the `pictures` of a class, give address, author and licence.
    """
    about = _info_about(request, query.class_id)
    picture = about.picture(query.class_id, query.number)
    if picture is None:
        detail = f"there is no picture of the class {query.class_id[:80]!r}"
        raise Problem(Code.THUMBNAIL_NOT_FOUND, detail)
    return picture.answer(request)


def _info_about(request: Request, class_id: str) -> BundleInfo:
    """The bundle's info; a `Problem` if it has no such class."""
    about: BundleInfo = request.app.state.about
    if class_id not in about.classes:
        detail = f"no class has the id {class_id[:80]!r}; /v1/classes lists all"
        raise Problem(Code.CLASS_NOT_FOUND, detail)
    return about


def _chain(request: Request, lang: str | None) -> list[str]:
    return fallback_chain(accepted_languages(lang or request.headers.get("accept-language", "")))


@feedback_router.post(
    "/v1/feedback",
    status_code=202,
    response_model=FeedbackReceipt,
    openapi_extra=_FEEDBACK,
    responses=problem_responses(
        *COMMON_PROBLEMS,
        *(Code.MALFORMED_REQUEST, Code.ANSWER_NOT_FOUND, Code.CLASS_NOT_FOUND),
        *(Code.UPLOAD_TOO_SLOW, Code.BODY_TOO_LARGE, Code.IDEMPOTENCY_KEY_REUSED),
        Code.FEEDBACK_NOT_STORED,
    ),
)
async def _feedback(
    request: Request, query: Annotated[_NoQuery, Query()], idempotency_key: _IdempotencyKey = None
) -> FeedbackReceipt:
    """Report what a photo really shows, for one of the last 10,000 answers to the same key.

    `class_id` is the id of the right class, `not_listed` for a species that is not in the set and
    cannot be named, or `not_an_organism`. The server stores the set, the class, the note, the time,
    the name of the key and the versions of model and thresholds, but no address. It stores photos
    only with `consent`, which gives them for training under the `feedback_licence` of `/v1/model`.
    The last feedback on an answer counts: without `consent` it deletes the photos that earlier
    feedback kept, even after a restart. With an `Idempotency-Key` a request is safe to repeat.
    """
    store: Feedback = request.app.state.feedback
    engine: Engine = request.app.state.engine
    # Before the body is read: what is too much costs no upload.
    rate = parse(engine.settings.feedback_rate)
    request.app.state.feedback_rates.count(rate, client_of(request))
    media_type = request.headers.get("content-type", "").partition(";")[0].strip()
    if media_type.lower() != "application/json":
        raise Problem(Code.MALFORMED_REQUEST, "send feedback as Content-Type: application/json")
    deadline_s = engine.settings.upload_deadline_s
    body = await read_body(
        request, limit=MAX_FEEDBACK_BYTES, deadline_s=deadline_s, advice="shorten the note"
    )
    with errors_of("body"):
        feedback_body = FeedbackBody.model_validate_json(body)
    take = partial(
        store.take,
        feedback_body,
        key=request.state.key,
        idempotency_key=idempotency_key,
        pipeline=engine.pipeline,
    )
    return await store.thread.run(take)


@operations.get("/livez")
async def _livez() -> Health:
    """Return 200 while the process responds. If it does not, restart it."""
    return Health(status="alive")


@operations.get("/readyz", responses=problem_responses(Code.LOADING, Code.DRAINING))
async def _readyz(request: Request) -> Health:
    """Return 200 once the model is loaded, verified and warm, 503 while starting or stopping."""
    request.app.state.engine.check_ready()
    return Health(status="ready")


@operations.get("/metrics", response_class=PlainTextResponse, responses=problem_responses(*_BUSY))
async def _metrics(request: Request) -> Response:
    """Return all metrics in the Prometheus text format."""
    engine: Engine = request.app.state.engine
    return Response(await engine.reports.run(engine.metrics.text), media_type=_PROMETHEUS)


@operations.get("/openapi.json", include_in_schema=False)
async def _openapi(request: Request) -> Response:
    """Return the description of this interface, which is written once, for the first who asks."""
    engine: Engine = request.app.state.engine
    description = await engine.reports.run(request.app.state.openapi_json)
    return Response(description, media_type="application/json")


def openapi_document(app: FastAPI) -> dict[str, Any]:
    """FastAPI's document with our problems instead of its validation errors, keys and examples."""
    document = get_openapi(
        title=app.title, version=app.version, summary=app.summary, routes=app.routes
    )
    schemas = document["components"]["schemas"]
    for name in ("HTTPValidationError", "ValidationError"):
        schemas.pop(name, None)
    problem = ProblemDocument.model_json_schema(mode="serialization")
    schemas["ProblemDocument"] = jsonable_encoder(problem, exclude_none=True)
    examples = json.loads(_EXAMPLES.read_bytes())
    for methods in document["paths"].values():
        for operation in methods.values():
            operation["summary"] = operation["summary"].strip()  # FastAPI keeps the _ of a name
            responses = operation["responses"]
            if responses.get("422", {}).get("description") == "Validation Error":  # of FastAPI
                del responses["422"]
            for status, example in examples.get(operation["operationId"], {}).items():
                next(iter(responses[status]["content"].values()))["example"] = example
    _describe_keys(document, required=app.state.keys is not None)
    return document


def _describe_keys(document: dict[str, Any], *, required: bool) -> None:
    """Where a request holds its key, beside what the route itself takes; nothing without keys."""
    schemes = document["components"].pop("securitySchemes", {}) | _KEYS
    if required:
        document["components"]["securitySchemes"] = schemes
    for path, methods in document["paths"].items():
        for operation in methods.values():
            own = operation.pop("security", [])
            if required and path.startswith("/v"):  # not the routes of operators
                operation["security"] = [*own, *({name: []} for name in _KEYS)]
