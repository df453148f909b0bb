"""`POST /v1/survey`: the tiles of one photo pass the queue like photos of their own."""

import asyncio
from collections.abc import Sequence
from time import monotonic

from fastapi import Request
from starlette.requests import ClientDisconnect

from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.plot import Box, Plot, answer_tile, open_plot, survey_answer
from florilege.server.answers.query import LocalizedQuery, SurveyQuery
from florilege.server.engine import Engine, PendingRequest
from florilege.server.http.body import UploadBudget
from florilege.server.http.identify import check_query, process_photos
from florilege.server.problems import Code, Problem
from florilege.server.schemas import Answer, SurveyAnswer

Opened = tuple[Pipeline, Plot]
BYTES_A_PIXEL = 4  # of a decoded picture


async def survey_request(
    request: Request, engine: Engine, query: SurveyQuery
) -> tuple[SurveyAnswer, dict[str, str]]:
    """Answer a query about the tiles of a photo; also returns the headers.

    As many tiles as there are threads are in the queue at once, so that other requests wait for one
    tile, not for a survey. Raises as `answer_request`, also if the queue is full for later tiles.
    """
    localized_query = query.localized(request.headers.get("accept-language", ""))
    await check_query(engine, localized_query)

    def decode(pipeline: Pipeline, photos: Sequence[bytes], job: PendingRequest[Opened]) -> Opened:
        if len(photos) != 1:
            detail = f"send one photo of a plot, got {len(photos)}"
            raise Problem(Code.WRONG_NUMBER_OF_IMAGES, detail, limit=1)
        most = engine.settings.max_tiles
        return pipeline, open_plot(pipeline, photos[0], query, max_tiles=most, check=job.check)

    (pipeline, plot), photos, headers = await process_photos(request, engine, decode)
    del photos  # their bytes are no longer counted
    upload_budget: UploadBudget = request.app.state.upload_budget
    answers = list[Answer]()
    with upload_budget.hold() as count:
        count(BYTES_A_PIXEL * plot.image.width * plot.image.height)
        at_once = min(engine.threads, engine.queue_limit)
        for start in range(0, len(plot.boxes), at_once):
            if await request.is_disconnected():
                raise ClientDisconnect
            boxes = plot.boxes[start : start + at_once]
            tiles = [_submit_tile(engine, pipeline, plot, box, localized_query) for box in boxes]
            answers += await asyncio.gather(*tiles)
    result = await engine.in_side_thread(survey_answer, plot, answers, query, request.state.id)
    return result, headers


async def _submit_tile(
    engine: Engine, opened: Pipeline, plot: Plot, box: Box, query: LocalizedQuery
) -> Answer:
    def work(pipeline: Pipeline, _: Sequence[bytes], __: PendingRequest[Answer]) -> Answer:
        if pipeline.session is not opened.session:
            detail = "the model was replaced during the survey; send the photo again"
            raise Problem(Code.LOADING, detail, retry_after=1)
        return answer_tile(opened, plot, box, query)

    deadline = monotonic() + engine.settings.queue_timeout_s
    return await engine.submit(PendingRequest([b""], work, deadline))  # one place in the queue
