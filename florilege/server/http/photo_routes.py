"""The routes that take photos, from the request to its answer.

Docstrings of routes are their descriptions in `/openapi.json`.
"""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Final, TypeVar

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field
from starlette.requests import ClientDisconnect
from starlette.routing import Route
from starlette.types import Receive

from florilege.server.answers.pipeline import Outcome, Pipeline
from florilege.server.answers.plan import Plan
from florilege.server.answers.plot import Box, Plot
from florilege.server.answers.query import IdentifyQuery, SurveyQuery
from florilege.server.engine import Engine, PendingRequest
from florilege.server.feedback import Feedback
from florilege.server.http.cached_responses import LEAST_BYTES, accepts_gzip, compress, encoding
from florilege.server.http.request import (
    COMMON_PROBLEMS,
    GUARDS,
    PHOTOS,
    FindPhotos,
    UploadBudget,
    guard,
    images_of_form,
    parameters_of,
    problem_responses,
    query_of,
    read_images,
)
from florilege.server.problems import Code, Problem
from florilege.server.schemas import Answer, Embeddings, RequestModel, SurveyAnswer

T = TypeVar("T")
_Encoded = tuple[bytes, bool]  # a body, and whether it is compressed
Work = Callable[[Pipeline, Sequence[bytes], PendingRequest[T]], T]
CHECKED_ON_THE_LOOP: Final = 1000
"""Classes that a query names; 1,000 take 0.1 ms, 10,000 about two."""

_PHOTO_PROBLEMS = (
    *COMMON_PROBLEMS,
    *(Code.MALFORMED_REQUEST, Code.UPLOAD_TOO_SLOW, Code.BODY_TOO_LARGE, Code.IMAGE_TOO_LARGE),
    *(Code.UNSUPPORTED_IMAGE_TYPE, Code.IMAGE_UNREADABLE, Code.WRONG_NUMBER_OF_IMAGES),
    *(Code.OVERLOADED, Code.QUEUE_TIMEOUT, Code.LOADING, Code.DRAINING),
)
_SET_PROBLEMS = (Code.NOT_CALIBRATED, Code.UNKNOWN_LIST, Code.UNKNOWN_CLASS)

router = APIRouter(dependencies=GUARDS, responses=problem_responses(*COMMON_PROBLEMS))


@router.post(
    "/v1/identify",
    response_model=Answer,
    openapi_extra=PHOTOS | parameters_of(IdentifyQuery),
    responses=problem_responses(*_PHOTO_PROBLEMS, *_SET_PROBLEMS),
)
async def _identify(request: Request) -> Response:
    """Return the set of species this photo may show.

    Send one photo as the raw body, or one to five photos of the same plant as multipart parts
    named `images`: JPEG, PNG, WebP, HEIC or AVIF. The set grows with the ambiguity of the photo:
    every class scoring at least `lambda` is in it, best first, and on photos like those of the
    validation data it holds `k` classes on average. With `list` or `only`, only some classes are
    scored. The request is safe to repeat.
    """
    query = query_of(request, IdentifyQuery)
    query = query.accepting(request.headers.get("accept-language", ""))
    return (await answer_request(request, query))[1]


def shortest_route() -> Route:
    """The route to ``/v1/identify``, to come before FastAPI's, which describes it.

    FastAPI matches a route twice, and solves dependencies that are none: a fifth of the time in
    which a photo holds the interpreter's lock outside its own thread.
    """

    async def answer(request: Request) -> Response:
        request.scope["route"] = route  # its path is a label of the metrics
        await guard(request)
        return await _identify(request)

    route = Route("/v1/identify", answer, methods=["POST"])
    return route


def _to_json(answer: Answer | SurveyAnswer) -> str:
    return answer.model_dump_json(by_alias=True)


async def answer_request(
    request: Request,
    query: IdentifyQuery,
    find: FindPhotos = images_of_form,
    write: Callable[[Answer], str] = _to_json,
) -> tuple[Answer, Response]:
    """Answer a query about the photos of a request, which ``find`` finds in its form.

    ``write`` makes the body in the thread of the photo: 10,000 results take 20 ms.

    Raises `ClientDisconnect` if the client left, and a `Problem` if it cannot be answered; if the
    query alone shows this, the body is not read.
    """
    engine: Engine = request.app.state.engine
    plan = await _plan(engine, query)

    zips = accepts_gzip(request)

    def work(
        pipeline: Pipeline, photos: Sequence[bytes], job: PendingRequest[tuple[Outcome, _Encoded]]
    ) -> tuple[Outcome, _Encoded]:
        owner = (pipeline.model.bundle_sha256, request.state.key or "")
        recall = partial(engine.cache.outputs, owner)
        rows = pipeline.all_outputs(photos, stages=job.stages, check=job.check, recall=recall)
        outcome = pipeline.decide(rows, plan, request.state.id, stages=job.stages)
        return outcome, _encoded(write(outcome.answer), zips)

    (outcome, body), photos = await _process_photos(request, engine, work, find)
    feedback: Feedback | None = request.app.state.feedback
    if feedback is not None:
        feedback.remember(outcome, photos, request.state.key)
    engine.observe(outcome)
    return outcome.answer, _json_response(request, body)


# Pillow keeps RGB in four bytes.
_BYTES_A_PIXEL: Final = 4


@router.post(
    "/v1/survey",
    response_model=SurveyAnswer,
    openapi_extra=PHOTOS | parameters_of(SurveyQuery),
    responses=problem_responses(*_PHOTO_PROBLEMS, *_SET_PROBLEMS, Code.TOO_MANY_TILES),
)
async def _survey(request: Request) -> Response:
    """Return the species that one large photo of a plot may show.

    The photo is cut into overlapping tiles. Each gets the set of a single photo, and those that
    look unlike what the model knows are left out. `results` holds the species of all sets, those
    in most tiles first. The figures in `tiles` hold for one tile; no figure holds for the list.
    """
    engine: Engine = request.app.state.engine
    query = query_of(request, SurveyQuery)
    query = query.accepting(request.headers.get("accept-language", ""))
    plan = await _plan(engine, query.of_tile())

    upload_budget: UploadBudget = request.app.state.upload_budget
    with upload_budget.hold() as count:

        def decode(pipeline: Pipeline, photos: Sequence[bytes], job: PendingRequest[Plot]) -> Plot:
            if len(photos) != 1:
                detail = f"send one photo of a plot, got {len(photos)}"
                raise Problem(Code.WRONG_NUMBER_OF_IMAGES, detail, limit=1)
            room = upload_budget.limit - len(photos[0])

            def reserve(pixels: int) -> None:
                """Count a picture before it is decoded, which takes seconds."""
                if _BYTES_A_PIXEL * pixels > room:  # with nothing else in memory, too
                    raise Problem(
                        Code.IMAGE_TOO_LARGE,
                        f"{pixels} pixels; this server has room for {room // _BYTES_A_PIXEL} of "
                        "a plot: send a smaller photo, or parts of it",
                        limit=room // _BYTES_A_PIXEL,
                    )
                count(_BYTES_A_PIXEL * pixels)

            most = engine.settings.max_tiles
            return Plot.open(
                pipeline, photos[0], query, plan, max_tiles=most, check=job.check, reserve=reserve
            )

        plot, photos = await _process_photos(request, engine, decode)
        # Their bytes are counted no longer, and the picture is decoded.
        del photos
        answers = list[Answer]()
        # More would only wait, and fill the queue against other photos or against themselves.
        at_once = min(engine.threads, engine.queue_limit)
        for start in range(0, len(plot.boxes), at_once):
            if await request.is_disconnected():
                raise ClientDisconnect
            boxes = plot.boxes[start : start + at_once]
            answers += await asyncio.gather(*(_submit_tile(engine, plot, box) for box in boxes))
    zips = accepts_gzip(request)

    def finish(_: Pipeline) -> _Encoded:
        return _encoded(_to_json(plot.answer(answers, request.state.id)), zips)

    return _json_response(request, await _submit_part(engine, finish))


async def _submit_tile(engine: Engine, plot: Plot, box: Box) -> Answer:
    def work(pipeline: Pipeline) -> Answer:
        if pipeline.session is not plot.pipeline.session:
            detail = "the model was replaced during the survey; send the photo again"
            raise Problem(Code.LOADING, detail, retry_after=1)
        return plot.answer_tile(box)

    return await _submit_part(engine, work)


async def _submit_part(engine: Engine, part: Callable[[Pipeline], T]) -> T:
    """Do a part of the work on a photo, at one place in the queue."""

    def work(pipeline: Pipeline, _: Sequence[bytes], __: PendingRequest[T]) -> T:
        return part(pipeline)

    # One empty photo: it takes one place, and a request without photos counts as abandoned.
    return await engine.submit(PendingRequest([b""], work, engine.settings.queue_timeout_s))


class _EmbeddingsQuery(RequestModel):
    """How to write features."""

    base64: bool = Field(False, description="Write float32 in base64 instead of numbers.")


@router.post(
    "/v1/embeddings",
    response_model=Embeddings,
    openapi_extra=PHOTOS,
    responses=problem_responses(*_PHOTO_PROBLEMS, Code.NO_FEATURES),
)
async def _embeddings(request: Request, query: Annotated[_EmbeddingsQuery, Query()]) -> Response:
    """Return the features of one to five photos, the input of the network's last layer.

    They tell how alike photos look to the network. Compare only those of the same `model`.
    """
    engine: Engine = request.app.state.engine
    engine.check_accepting()
    _demand_features(engine.pipeline)

    def work(pipeline: Pipeline, photos: Sequence[bytes], job: PendingRequest[str]) -> str:
        # Asked again: another bundle may be served since the upload began.
        _demand_features(pipeline)
        rows = pipeline.all_outputs(photos, features=True, stages=job.stages, check=job.check)
        features = [row.features[0].astype("<f4") for row in rows if row.features is not None]
        texts = [b64encode(row.tobytes()).decode() for row in features]
        # By their shortest decimals: 512 features are 6.1 kB so, and 10.6 with those of float64.
        numbers = [row.astype(str).astype(float).tolist() for row in features]
        return Embeddings(
            model=pipeline.model,
            dimensions=len(features[0]),
            embeddings=None if query.base64 else numbers,
            base64=texts if query.base64 else None,
        ).model_dump_json()

    body, _ = await _process_photos(request, engine, work)
    return _json_response(request, _encoded(body, accepts_gzip(request)))


def _demand_features(pipeline: Pipeline) -> None:
    if pipeline.session.dimensions is None:
        detail = "the network of this model has no output `features`: its operator exports it again"
        raise Problem(Code.NO_FEATURES, detail)


async def _plan(engine: Engine, query: IdentifyQuery) -> Plan:
    """What a query asks of the bundle that is served now.

    Raises the `Problem` of a query that no photo can satisfy, or of a server that takes none.
    """
    engine.check_accepting()
    planner = engine.pipeline.planner
    if planner.lists.names_at_most(query, CHECKED_ON_THE_LOOP):
        return planner.plan(query)
    # thousands of classes, or names whose neighbours are searched
    return await engine.lookups.run(planner.plan, query)


async def _process_photos(
    request: Request, engine: Engine, work: Work[T], find: FindPhotos = images_of_form
) -> tuple[T, Sequence[bytes]]:
    """Do ``work`` on the photos of a request, in the queue; returns its result and the photos."""
    upload_budget: UploadBudget = request.app.state.upload_budget
    received = read_images(
        request, engine.settings, upload_budget, find, in_thread=engine.forms.run
    )
    async with received as photos:
        engine.metrics.http_bytes.observe(sum(len(photo) for photo in photos))
        job = PendingRequest(photos, work, engine.settings.queue_timeout_s)
        request.state.stages = job.stages
        result = await _answer_while_connected(engine, job, request.receive)
    for stage, seconds in job.stages.items():
        engine.metrics.stage_seconds.labels(stage).observe(seconds)
    return result, photos


async def _answer_while_connected(engine: Engine, job: PendingRequest[T], receive: Receive) -> T:
    """Submit a job; drop it if it has not started when the client disconnects."""
    work = engine.submit(job)
    leaving = asyncio.ensure_future(_until_disconnect(receive))
    try:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        leaving.cancel()
        if not work.done():
            job.abandon()
            # Asks for its exception, or asyncio logs that nobody has.
            work.add_done_callback(lambda task: task.cancelled() or task.exception())
        del work  # it may hold an exception, whose traceback holds this frame and the photos


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _encoded(text: str, zips: bool) -> _Encoded:
    body = text.encode()
    zipped = zips and len(body) >= LEAST_BYTES
    return (compress(body) if zipped else body), zipped


def _json_response(request: Request, encoded: _Encoded) -> Response:
    """An answer with the time of each stage since the upload."""
    body, zipped = encoded
    timing = ", ".join(f"{stage};dur={1000 * s:.2f}" for stage, s in request.state.stages.items())
    headers = {"Server-Timing": timing, **encoding(zipped)}
    return Response(body, headers=headers, media_type="application/json")
