"""Waiting for an answer only as long as somebody wants it."""

import asyncio

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from florilege.server.answers.pipeline import Outcome
from florilege.server.engine import Engine, PendingRequest


async def answer_while_connected(engine: Engine, job: PendingRequest, receive: Receive) -> Outcome:
    """Submit a job whose body is read; give it up when the client leaves before its turn.

    Raises:
        ClientDisconnect: The client left; the job is dropped if it has not begun.
        Problem: As `Engine.submit`.
    """
    work = asyncio.ensure_future(engine.submit(job))
    leaving = asyncio.ensure_future(_until_disconnect(receive))
    try:
        await asyncio.wait((work, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        leaving.cancel()
        if not work.done():
            job.abandoned.set()
            work.add_done_callback(lambda task: task.cancelled() or task.exception())


async def _until_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
