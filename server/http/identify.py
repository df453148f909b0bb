"""From a request with photos to its answer: a set, features, or the survey of a plot."""

import asyncio
from base64 import b64encode
from collections.abc import Callable, Sequence
from functools import partial
from time import monotonic
from typing import Final, TypeVar

from fastapi import Request, Response
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from florilege.server.answers.pipeline import Outcome, Pipeline
from florilege.server.answers.plot import Box, Plot
from florilege.server.answers.query import IdentifyQuery, SurveyQuery
from florilege.server.background.feedback import Feedback
from florilege.server.engine import Engine, PendingRequest
from florilege.server.http.body import FindPhotos, UploadBudget, images_of_form, read_images
from florilege.server.problems import Code, Problem
from florilege.server.schemas import Answer, Embeddings

T = TypeVar("T")
Work = Callable[[Pipeline, Sequence[bytes], PendingRequest[T]], T]
RENDERED_ON_THE_LOOP: Final = 100
"""Results; 100 take 0.2 ms, 10,000 about 20 ms."""


async def answer_request(
    request: Request, engine: Engine, query: IdentifyQuery, find: FindPhotos = images_of_form
) -> tuple[Answer, dict[str, str]]:
    """Answer a query about the photos of a request, which ``find`` finds in its form.

    Returns the answer and its headers. Raises `ClientDisconnect` if the client left, and a
    `Problem` if it cannot be answered; if the query alone shows this, the body is not read.
    """
    await _check_query(engine, query)

    def work(pipeline: Pipeline, photos: Sequence[bytes], job: PendingRequest[Outcome]) -> Outcome:
        owner = (pipeline.model.bundle_sha256, request.state.key or "")
        return pipeline(
            photos,
            query,
            request.state.id,
            stages=job.stages,
            check=job.check,
            recall=partial(engine.cache.outputs, owner),
        )

    outcome, photos, headers = await _process_photos(request, engine, work, find)
    feedback: Feedback | None = request.app.state.feedback
    if feedback is not None:
        feedback.remember(outcome, photos, request.state.key)
    engine.observe(outcome)
    return outcome.answer, headers


async def embed_request(request: Request, engine: Engine, *, base64: bool) -> Response:
    """The `Embeddings` of the photos of a request. Raises as `answer_request`."""
    engine.check_accepting()
    _demand_features(engine.pipeline)

    def work(pipeline: Pipeline, photos: Sequence[bytes], job: PendingRequest[str]) -> str:
        _demand_features(pipeline)  # it may have been replaced during the upload
        rows = pipeline.all_outputs(photos, features=True, stages=job.stages, check=job.check)
        features = [row.features[0].astype("<f4") for row in rows if row.features is not None]
        texts = [b64encode(each.tobytes()).decode() for each in features]
        numbers = [each.astype(str).astype(float).tolist() for each in features]  # few digits
        return Embeddings(
            model=pipeline.model,
            dimensions=len(features[0]),
            embeddings=None if base64 else numbers,
            base64=texts if base64 else None,
        ).model_dump_json()

    body, _, headers = await _process_photos(request, engine, work)
    return Response(body, headers=headers, media_type="application/json")


def _demand_features(pipeline: Pipeline) -> None:
    if pipeline.session.dimensions is None:
        detail = "the network of this model has no output `features`: its operator exports it again"
        raise Problem(Code.NO_FEATURES, detail)


async def survey_request(request: Request, engine: Engine, query: SurveyQuery) -> Response:
    """Answer a query about the tiles of a photo.

    As many tiles as there are threads are in the queue at once, so that other requests wait for one
    tile, not for a survey. Raises as `answer_request`, also if the queue is full for later tiles.
    """
    query = query.accepting(request.headers.get("accept-language", ""))
    await _check_query(engine, query.of_tile())

    def decode(pipeline: Pipeline, photos: Sequence[bytes], job: PendingRequest[Plot]) -> Plot:
        if len(photos) != 1:
            detail = f"send one photo of a plot, got {len(photos)}"
            raise Problem(Code.WRONG_NUMBER_OF_IMAGES, detail, limit=1)
        most = engine.settings.max_tiles
        return Plot.open(pipeline, photos[0], query, max_tiles=most, check=job.check)

    plot, photos, headers = await _process_photos(request, engine, decode)
    del photos  # their bytes are no longer counted
    upload_budget: UploadBudget = request.app.state.upload_budget
    answers = list[Answer]()
    with upload_budget.hold() as count:
        count(4 * plot.image.width * plot.image.height)  # bytes of the decoded picture
        at_once = min(engine.threads, engine.queue_limit)
        for start in range(0, len(plot.boxes), at_once):
            if await request.is_disconnected():
                raise ClientDisconnect
            boxes = plot.boxes[start : start + at_once]
            answers += await asyncio.gather(*(_submit_tile(engine, plot, box) for box in boxes))
    result = await engine.in_side_thread(plot.answer, answers, request.state.id)
    return await render(engine, result, headers)


async def _submit_tile(engine: Engine, plot: Plot, box: Box) -> Answer:
    def work(pipeline: Pipeline, _: Sequence[bytes], __: PendingRequest[Answer]) -> Answer:
        if pipeline.session is not plot.pipeline.session:
            detail = "the model was replaced during the survey; send the photo again"
            raise Problem(Code.LOADING, detail, retry_after=1)
        return plot.answer_tile(box)

    deadline = monotonic() + engine.settings.queue_timeout_s
    return await engine.submit(PendingRequest([b""], work, deadline))  # one place in the queue


async def _check_query(engine: Engine, query: IdentifyQuery) -> None:
    """Raise the `Problem` of a query that no photo can satisfy, or of a server that takes none."""
    engine.check_accepting()
    if query.only is None and query.always is None:
        engine.pipeline.check_query(query)
    else:  # thousands of classes may be named, or misspelt
        await engine.in_side_thread(engine.pipeline.check_query, query)


async def _process_photos(
    request: Request, engine: Engine, work: Work[T], find: FindPhotos = images_of_form
) -> tuple[T, Sequence[bytes], dict[str, str]]:
    """Read the photos of a request and do ``work`` on them in the queue.

    Returns what the work returns, the photos, and the headers of the answer.
    """
    upload_budget: UploadBudget = request.app.state.upload_budget
    received = read_images(
        request, engine.settings, upload_budget, find, in_thread=engine.in_side_thread
    )
    async with received as photos:
        engine.metrics.http_bytes.observe(sum(len(photo) for photo in photos))
        job = PendingRequest(photos, work, monotonic() + engine.settings.queue_timeout_s)
        request.state.stages = job.stages
        result = await _answer_while_connected(engine, job, request.receive)
    for stage, seconds in job.stages.items():
        engine.metrics.stage_seconds.labels(stage).observe(seconds)
    timing = ", ".join(f"{s};dur={1000 * t:.2f}" for s, t in job.stages.items())
    return result, photos, {"Server-Timing": timing}


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
            work.add_done_callback(lambda task: task.cancelled() or task.exception())
        del work  # it may hold an exception, whose traceback holds this frame and the photos


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _json(answer: Answer) -> str:
    return answer.model_dump_json(by_alias=True)


async def render(
    engine: Engine,
    answer: Answer,
    headers: dict[str, str],
    to_json: Callable[[Answer], str] = _json,
) -> Response:
    """Serialise an answer; a long one outside the event loop."""
    if len(answer.results) <= RENDERED_ON_THE_LOOP:
        body = to_json(answer)
    else:
        body = await engine.in_side_thread(to_json, answer)
    return Response(body, headers=headers, media_type="application/json")
