"""Processor time that the event loop takes for one photo, with the thread of the photo left out.

    python -m benchmarks.load.event_loop BUNDLE [--profile]

The interpreter's lock is held for all of it, so its reverse is the most that one process answers a
second, whatever the machine. The application gets requests without HTTP around them, and for the
work on a photo the stored result of the first. The median and the least of twelve rounds of 200
photos are printed, in microseconds; other work on the machine changes them little.
"""

import argparse
import asyncio
import cProfile
import pstats
import time
from pathlib import Path
from statistics import median
from typing import Any

from fastapi import FastAPI

from benchmarks.load.server import jpeg
from florilege.server.app import create_app
from florilege.server.engine import Engine, PendingRequest
from florilege.server.settings import Settings

ROUNDS, PHOTOS, SHOWN = 12, 200, 40


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--profile", action="store_true", help="also list where the time goes")
    arguments = parser.parse_args()
    app = create_app(Settings(bundle=arguments.bundle, watch=False))
    _answer_at_once(app.state.engine)
    asyncio.run(_measure(app, profile=arguments.profile))


def _answer_at_once(engine: Engine) -> None:
    """Do the work on the first photo alone, and give its result to all others."""
    results = list[Any]()

    def submit(job: PendingRequest[Any]) -> asyncio.Future[Any]:
        if not results:
            results.append(job.work(engine.pipeline, job.photos, job))
        future = asyncio.get_running_loop().create_future()
        future.set_result(results[0])
        job.stages.update(queue=0.0, decode=0.0, forward=0.0, decide=0.0)
        return future

    engine.submit = submit  # type: ignore[method-assign]


async def _measure(app: FastAPI, *, profile: bool) -> None:
    photo = jpeg(640, 480, 25_000)

    async def answer_photos() -> float:
        started = time.thread_time()
        for _ in range(PHOTOS):
            await _ask(app, photo)
        return 1e6 * (time.thread_time() - started) / PHOTOS

    async with app.router.lifespan_context(app):
        await answer_photos()
        rows = [await answer_photos() for _ in range(ROUNDS)]
        print(f"microseconds a photo: median {median(rows):.0f}, least {min(rows):.0f}")
        if profile:
            with cProfile.Profile() as profiler:
                await answer_photos()
            pstats.Stats(profiler).sort_stats("tottime").print_stats(SHOWN)


async def _ask(app: FastAPI, photo: bytes) -> None:
    names = {"host": "x", "content-length": str(len(photo)), "user-agent": "a", "accept": "*/*"}
    headers = [(name.encode(), value.encode()) for name, value in names.items()]
    scope = {
        **{"type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": "POST"},
        **{"scheme": "http", "path": "/v1/identify", "raw_path": b"/v1/identify"},
        **{"query_string": b"", "root_path": "", "headers": headers, "state": {}},
        **{"client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2)},
    }
    body, ended = [{"type": "http.request", "body": photo, "more_body": False}], asyncio.Event()

    async def receive() -> Any:
        if not body:
            await ended.wait()
        return body.pop()

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200

    await app(scope, receive, send)


if __name__ == "__main__":
    main()
