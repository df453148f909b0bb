"""From a request with photos to its answer, in any format."""

import asyncio
from collections.abc import Callable
from time import monotonic
from typing import Final

from fastapi import Request
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from florilege.server.answers.pipeline import Outcome
from florilege.server.answers.query import LocalizedQuery
from florilege.server.background.feedback import Feedback
from florilege.server.engine import Engine, PendingRequest
from florilege.server.http.body import FindPhotos, UploadBudget, read_images
from florilege.server.http.multipart import images_of_form
from florilege.server.schemas import Answer

RENDERED_ON_THE_LOOP: Final = 100
"""Results; 100 take 0.2 ms, 10,000 about 20 ms."""


async def answer_request(
    request: Request, engine: Engine, query: LocalizedQuery, find: FindPhotos = images_of_form
) -> tuple[Answer, dict[str, str]]:
    """Answer a query about the photos of a request, which ``find`` finds in its form.

    Returns:
        The answer, and the headers that go with it.

    Raises:
        ClientDisconnect: The client left.
        Problem: It cannot be answered. If the query alone shows this, the body is not read.
    """
    engine.check_accepting()
    if query.only is None:
        engine.pipeline.check_query(query)
    else:  # thousands of classes may be named, or misspelt
        await engine.in_side_thread(engine.pipeline.check_query, query)
    upload_budget: UploadBudget = request.app.state.upload_budget
    received = read_images(
        request, engine.settings, upload_budget, find, in_thread=engine.in_side_thread
    )
    async with received as photos:
        engine.metrics.http_bytes.observe(sum(len(photo) for photo in photos))
        job = PendingRequest(
            photos, query, request.state.id, monotonic() + engine.settings.queue_timeout_s
        )
        request.state.stages = job.stages
        outcome = await _answer_while_connected(engine, job, request.receive)
    feedback: Feedback | None = request.app.state.feedback
    if feedback is not None:
        feedback.remember(outcome, photos, request.state.key)
    engine.observe(outcome, job)
    timing = ", ".join(f"{s};dur={1000 * t:.2f}" for s, t in job.stages.items())
    return outcome.answer, {"Server-Timing": timing}


async def _answer_while_connected(engine: Engine, job: PendingRequest, receive: Receive) -> Outcome:
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


async def render(engine: Engine, answer: Answer, to_json: Callable[[Answer], str]) -> str:
    """Serialise an answer; a long one outside the event loop."""
    if len(answer.results) <= RENDERED_ON_THE_LOOP:
        return to_json(answer)
    return await engine.in_side_thread(to_json, answer)
