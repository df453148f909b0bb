"""All routes. Their docstrings are their descriptions in `/openapi.json`."""

import asyncio
from functools import partial
from typing import Annotated

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import PlainTextResponse
from limits import parse
from pydantic import Field, ValidationError
from pydantic.json_schema import SkipJsonSchema

from florilege.server.answers.common_names import accepted_languages, fallback_chain
from florilege.server.answers.query import IdentifyQuery, Language, SurveyQuery
from florilege.server.background.feedback import Feedback, FeedbackBody, FeedbackReceipt
from florilege.server.http.api_keys import check_key, client_of
from florilege.server.http.body import read_body
from florilege.server.http.bundle_info import BundleInfo
from florilege.server.http.cached_response import CachedResponse
from florilege.server.http.identify import answer_request, embed_request, render, survey_request
from florilege.server.http.openapi import COMMON_PROBLEMS, PHOTO, PHOTOS, body_of, problem_responses
from florilege.server.http.parameters import BundleInfoOf, EngineOf, refuse_repeated
from florilege.server.model_schemas import ModelCard
from florilege.server.problems import Code, Problem
from florilege.server.schemas import (
    Answer,
    ClassEntry,
    ClassList,
    Embeddings,
    Health,
    RequestModel,
    SurveyAnswer,
)

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
MAX_FEEDBACK_BYTES = 8192
MAX_IDEMPOTENCY_KEY_LENGTH = 200

PHOTO_PROBLEMS = (
    *COMMON_PROBLEMS,
    *(Code.MALFORMED_REQUEST, Code.UPLOAD_TOO_SLOW, Code.BODY_TOO_LARGE, Code.IMAGE_TOO_LARGE),
    *(Code.UNSUPPORTED_IMAGE_TYPE, Code.IMAGE_UNREADABLE, Code.WRONG_NUMBER_OF_IMAGES),
    *(Code.OVERLOADED, Code.QUEUE_TIMEOUT, Code.LOADING, Code.DRAINING),
)
SET_PROBLEMS = (Code.NOT_CALIBRATED, Code.UNKNOWN_LIST, Code.UNKNOWN_CLASS)
FEEDBACK = body_of({"application/json": {"schema": FeedbackBody.model_json_schema()}})
_IdempotencyKey = Annotated[
    str | SkipJsonSchema[None],
    Header(
        alias="Idempotency-Key",
        description="Any text; repeating a request with the same text stores nothing twice.",
        min_length=1,
        max_length=MAX_IDEMPOTENCY_KEY_LENGTH,
    ),
]

guarded = [Depends(check_key), Depends(refuse_repeated)]
router = APIRouter(dependencies=guarded, responses=problem_responses(*COMMON_PROBLEMS))
feedback_router = APIRouter(dependencies=guarded, responses=problem_responses(*COMMON_PROBLEMS))
operations = APIRouter()


@router.post(
    "/v1/identify",
    response_model=Answer,
    openapi_extra=PHOTOS,
    responses=problem_responses(*PHOTO_PROBLEMS, *SET_PROBLEMS),
)
async def identify(
    request: Request, query: Annotated[IdentifyQuery, Query()], engine: EngineOf
) -> Response:
    """Return the set of species this photo may show.

    Send one photo as the raw body, or one to five photos of the same plant as multipart parts
    named `images`: JPEG, PNG, WebP, HEIC or AVIF. The set grows with the ambiguity of the photo:
    every class scoring at least `lambda` is in it, best first, and on photos like those of the
    validation data it holds `k` classes on average. With `list` or `only`, only some classes are
    scored. The request is safe to repeat.
    """
    query = query.accepting(request.headers.get("accept-language", ""))
    answer, headers = await answer_request(request, engine, query)
    return await render(engine, answer, headers)


@router.post(
    "/v1/survey",
    response_model=SurveyAnswer,
    openapi_extra=PHOTOS,
    responses=problem_responses(*PHOTO_PROBLEMS, *SET_PROBLEMS, Code.TOO_MANY_TILES),
)
async def survey(
    request: Request, query: Annotated[SurveyQuery, Query()], engine: EngineOf
) -> Response:
    """Return the species that one large photo of a plot may show.

    The photo is cut into overlapping tiles. Each gets the set of a single photo, and those that
    look unlike what the model knows are left out. `results` holds the species of all sets, those
    in most tiles first. The figures in `tiles` hold for one tile; no figure holds for the list.
    """
    return await survey_request(request, engine, query)


class _EmbeddingsQuery(RequestModel):
    """How to write features."""

    base64: bool = Field(False, description="Write float32 in base64 instead of numbers.")


@router.post(
    "/v1/embeddings",
    response_model=Embeddings,
    openapi_extra=PHOTOS,
    responses=problem_responses(*PHOTO_PROBLEMS, Code.NO_FEATURES),
)
async def embeddings(
    request: Request, query: Annotated[_EmbeddingsQuery, Query()], engine: EngineOf
) -> Response:
    """Return the features of one to five photos, the input of the network's last layer.

    They tell how alike photos look to the network. Compare only those of the same `model`.
    """
    return await embed_request(request, engine, base64=query.base64)


class _NoQuery(RequestModel):
    """No parameters at all."""


@router.get("/v1/model", response_model=ModelCard)
async def model(
    request: Request, about: BundleInfoOf, query: Annotated[_NoQuery, Query()]
) -> Response:
    """Return the model, what it is calibrated for, and the limits of a request.

    `rules` lists for each rule every K (or coverage) it is calibrated for, with its threshold
    and what was measured with it. The answer changes only with the bundle: use its ETag.
    """
    return about.card.answer(request)


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


@router.get("/v1/classes", response_model=ClassList)
async def classes(
    request: Request,
    about: BundleInfoOf,
    engine: EngineOf,
    query: Annotated[_ClassesQuery, Query()],
) -> Response:
    """Return the classes the model knows, all of them unless `q` or `limit` is given."""
    chain = _chain(request, query.lang)
    class_list = await engine.in_side_thread(about.list_of_classes, chain, query.q, query.limit)
    return class_list.answer(request, vary="Accept-Language")


@router.get(
    "/v1/classes/{class_id:path}",
    response_model=ClassEntry,
    responses=problem_responses(Code.CLASS_NOT_FOUND),
)
async def one_class(
    request: Request, class_id: str, about: BundleInfoOf, query: Annotated[_ClassQuery, Query()]
) -> Response:
    """Return one class by its id."""
    _check_class(about, class_id)
    entry = about.classes.entry(class_id, _chain(request, query.lang))
    return CachedResponse(entry).answer(request, vary="Accept-Language")


class _ThumbnailQuery(RequestModel):
    """The class whose picture to show."""

    class_id: str = Field(description="Id of the class.")


@router.get(
    "/v1/thumbnails",
    response_class=Response,
    responses={
        200: {"content": {"image/jpeg": {"schema": PHOTO}}},
        **problem_responses(Code.CLASS_NOT_FOUND, Code.THUMBNAIL_NOT_FOUND),
    },
)
async def thumbnail(
    request: Request, about: BundleInfoOf, query: Annotated[_ThumbnailQuery, Query()]
) -> Response:
    """Return a small reference picture of one class, a JPEG.

    The `thumbnail` of a taxon gives its address, author and licence.
    """
    _check_class(about, query.class_id)
    if query.class_id not in about.thumbnails:
        detail = f"there is no picture of the class {query.class_id[:80]!r}"
        raise Problem(Code.THUMBNAIL_NOT_FOUND, detail)
    return about.thumbnails[query.class_id].answer(request)


def _check_class(about: BundleInfo, class_id: str) -> None:
    if class_id not in about.classes:
        detail = f"no class has the id {class_id[:80]!r}; /v1/classes lists all"
        raise Problem(Code.CLASS_NOT_FOUND, detail)


def _chain(request: Request, lang: str | None) -> list[str]:
    return fallback_chain(accepted_languages(lang or request.headers.get("accept-language", "")))


@feedback_router.post(
    "/v1/feedback",
    status_code=202,
    response_model=FeedbackReceipt,
    openapi_extra=FEEDBACK,
    responses=problem_responses(
        *COMMON_PROBLEMS,
        *(Code.MALFORMED_REQUEST, Code.ANSWER_NOT_FOUND, Code.CLASS_NOT_FOUND),
        *(Code.UPLOAD_TOO_SLOW, Code.BODY_TOO_LARGE, Code.IDEMPOTENCY_KEY_REUSED),
        Code.FEEDBACK_NOT_STORED,
    ),
)
async def feedback(
    request: Request,
    query: Annotated[_NoQuery, Query()],
    engine: EngineOf,
    idempotency_key: _IdempotencyKey = None,
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
    rate = parse(engine.settings.feedback_rate)
    request.app.state.feedback_rates.count(rate, client_of(request))
    media_type = request.headers.get("content-type", "").partition(";")[0].strip()
    if media_type.lower() != "application/json":
        raise Problem(Code.MALFORMED_REQUEST, "send feedback as Content-Type: application/json")
    deadline_s = engine.settings.upload_deadline_s
    body = await read_body(request, limit=MAX_FEEDBACK_BYTES, deadline_s=deadline_s)
    try:
        feedback_body = FeedbackBody.model_validate_json(body)
    except ValidationError as error:
        errors = error.errors(include_url=False)
        located = [{**each, "loc": ("body", *each["loc"])} for each in errors]
        raise RequestValidationError(located) from error
    take = partial(
        store.take,
        feedback_body,
        key=request.state.key,
        idempotency_key=idempotency_key,
        pipeline=engine.pipeline,
    )
    return await asyncio.get_running_loop().run_in_executor(store.thread, take)


@operations.get("/livez")
async def livez() -> Health:
    """Return 200 while the process responds. If it does not, restart it."""
    return Health(status="alive")


@operations.get("/readyz", responses=problem_responses(Code.LOADING, Code.DRAINING))
async def readyz(engine: EngineOf) -> Health:
    """Return 200 once the model is loaded, verified and warm, 503 while starting or stopping."""
    engine.check_ready()
    return Health(status="ready")


@operations.get("/metrics", response_class=PlainTextResponse)
async def metrics(engine: EngineOf) -> Response:
    """Return all metrics in the Prometheus text format."""
    return Response(engine.metrics.text(), media_type=PROMETHEUS)
