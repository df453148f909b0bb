"""From a request with photos to its answer, in whatever shape that is then told."""

from collections.abc import Callable
from typing import Final

from fastapi import Request

from florilege.server.answers.query import LocalizedQuery
from florilege.server.background.feedback import Feedback
from florilege.server.engine import Engine, PendingRequest
from florilege.server.http.body import Find, UploadBudget, read_images
from florilege.server.http.disconnect import answer_while_connected
from florilege.server.http.multipart import images_of_form
from florilege.server.schemas import Answer

RENDERED_ON_THE_LOOP: Final = 100
"""Results: a hundred take a fifth of a millisecond, 10,000 some 20."""


async def answered(
    request: Request, engine: Engine, query: LocalizedQuery, find: Find = images_of_form
) -> tuple[Answer, dict[str, str]]:
    """Answer what is asked about the photos of a request, which ``find`` takes from its form.

    Returns:
        The answer, and the headers that go with it.

    Raises:
        ClientDisconnect: The client left.
        Problem: It cannot be answered; nothing of the body is read where that is clear before.
    """
    engine.check_accepting()
    if query.only is None:
        engine.pipeline.check_query(query)
    else:  # thousands of classes may be named, or misspelt
        await engine.in_side_thread(engine.pipeline.check_query, query)
    upload_budget: UploadBudget = request.app.state.upload_budget
    received = read_images(request.receive, request.headers, engine.settings, upload_budget, find)
    async with received as photos:
        engine.metrics.http_bytes.observe(sum(len(photo) for photo in photos))
        job = PendingRequest(photos, query, request.state.id, engine.deadline())
        request.state.stages = job.stages.seconds
        outcome = await answer_while_connected(engine, job, request.receive)
    feedback: Feedback | None = request.app.state.feedback
    if feedback is not None:
        feedback.remember(outcome, photos, request.state.key)
    engine.observe(outcome, job)
    timing = ", ".join(f"{s};dur={1000 * t:.2f}" for s, t in job.stages.seconds.items())
    return outcome.answer, {"Server-Timing": timing}


async def rendered(engine: Engine, answer: Answer, render: Callable[[Answer], str]) -> str:
    """An answer as it is sent; a long one is written beside the event loop."""
    if len(answer.results) <= RENDERED_ON_THE_LOOP:
        return render(answer)
    return await engine.in_side_thread(render, answer)
