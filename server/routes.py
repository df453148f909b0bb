"""The routes an application uses. The docstrings are what `/openapi.json` says about them."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response

from server.afterwards.feedback import Feedback
from server.afterwards.remembered import Remembered
from server.answers.about import class_entry, find_classes, model_card
from server.answers.names import fallback_chain
from server.engine import Engine, Job
from server.errors import ClassNotFound
from server.http.body import Held, read_images
from server.http.cached import cached_json
from server.http.parameters import (
    ClassesQuery,
    ClassQuery,
    IdentifyQuery,
    NoQuery,
    languages,
    refuse_repeated,
)
from server.http.waiting import answer_while_connected
from server.schemas import Answer, ClassEntry, ClassList, ModelCard, ProblemDocument

router = APIRouter(
    dependencies=[Depends(refuse_repeated)],
    responses={
        "4XX": {"model": ProblemDocument, "description": "The request cannot be answered."},
        "5XX": {"model": ProblemDocument, "description": "The server cannot answer now."},
    },
)

PHOTO = {"type": "string", "format": "binary"}
BODY: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["images"],
                    "properties": {
                        "images": {"type": "array", "items": PHOTO, "minItems": 1, "maxItems": 5}
                    },
                }
            },
            "image/*": {"schema": PHOTO},
        },
    }
}


# Asynchronous, since FastAPI hands plain functions to a thread, which costs more than they do.
async def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


async def _held(request: Request) -> Held:
    held: Held = request.app.state.held
    return held


async def _feedback(request: Request) -> Feedback | None:
    feedback: Feedback | None = request.app.state.feedback
    return feedback


EngineOf = Annotated[Engine, Depends(_engine)]


@router.post("/v1/identify", response_model=Answer, openapi_extra=BODY)
async def identify(
    request: Request,
    query: Annotated[IdentifyQuery, Query()],
    engine: EngineOf,
    held: Annotated[Held, Depends(_held)],
    feedback: Annotated[Feedback | None, Depends(_feedback)],
) -> Response:
    """Return the set of species this photo may show.

    Send one photo as the raw body, or one to five photos of the same plant as multipart parts
    named `images`: JPEG, PNG, WebP, HEIC or AVIF. The set grows with the ambiguity of the photo:
    every class scoring at least `lambda` is in it, best first, and on photos like those of the
    validation data it holds `k` classes on average. It may be repeated safely.

    Errors: 400 `malformed_request`, `unknown_parameter`, `invalid_parameter`; 408
    `upload_too_slow`; 413 `body_too_large`, `image_too_large`; 415 `unsupported_image_type`;
    422 `image_unreadable`, `wrong_number_of_images`, `not_calibrated`; 503 `overloaded`,
    `queue_timeout`, `loading`, `draining`.
    """
    engine.check_accepting()
    ask = query.ask(request.headers.get("accept-language", ""))
    engine.check_calibrated(ask)
    settings = engine.settings
    async with read_images(request.receive, request.headers, settings, held) as photos:
        engine.metrics.http_bytes.observe(sum(len(photo) for photo in photos))
        job = Job(photos, ask, request.state.request_id, engine.deadline())
        outcome = await answer_while_connected(engine, job, request.receive)
    if feedback is not None:
        feedback.answers.keep(job.request_id, Remembered.of(outcome.drawn))
    engine.observe(outcome, job)
    timing = ", ".join(f"{s};dur={1000 * t:.2f}" for s, t in job.stages.seconds.items())
    return Response(
        outcome.answer.model_dump_json(by_alias=True),
        media_type="application/json",
        headers={"Server-Timing": timing, "Cache-Control": "no-store"},
    )


@router.get("/v1/model", response_model=ModelCard)
async def model(request: Request, engine: EngineOf, query: Annotated[NoQuery, Query()]) -> Response:
    """Return which model answers, what it is calibrated for, and the limits of a request.

    `rules` lists for each rule every K (or coverage) it is calibrated for, with its threshold
    and what was measured with it. The answer changes only with the bundle: use its ETag.
    """
    return cached_json(request, model_card(engine.pipeline, engine.settings))


@router.get("/v1/classes", response_model=ClassList)
async def classes(
    request: Request, engine: EngineOf, query: Annotated[ClassesQuery, Query()]
) -> Response:
    """Return the classes the model knows, all of them unless `q` or `limit` is given."""
    chain = fallback_chain(languages(query.lang, request.headers.get("accept-language", "")))
    listed = find_classes(engine.pipeline.bundle.classes, chain, q=query.q, limit=query.limit)
    return cached_json(request, listed, vary="Accept-Language")


@router.get("/v1/classes/{class_id:path}", response_model=ClassEntry)
async def one_class(
    request: Request, class_id: str, engine: EngineOf, query: Annotated[ClassQuery, Query()]
) -> Response:
    """Return one class by its id.

    Errors: 404 `class_not_found`.
    """
    table = engine.pipeline.bundle.classes
    if class_id not in table.index_of:
        raise ClassNotFound(f"no class has the id {class_id[:80]!r}; /v1/classes lists all")
    chain = fallback_chain(languages(query.lang, request.headers.get("accept-language", "")))
    entry = class_entry(table[table.index_of[class_id]], chain)
    return cached_json(request, entry, vary="Accept-Language")
