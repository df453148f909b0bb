"""The application: composes the parts, holds no logic."""

import json
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from functools import cache, partial

from fastapi import FastAPI
from starlette.middleware.cors import CORSMiddleware

from florilege.errors import own_version
from florilege.hooks import routers
from florilege.processes import Tally, WorkerGroup
from florilege.server.bounds import PixelBudget
from florilege.server.engine import Engine
from florilege.server.feedback import Feedback
from florilege.server.http.api_keys import ApiKeys, RateCounter
from florilege.server.http.cached_responses import BundleInfo, page_router
from florilege.server.http.middleware import HANDLED, RequestMiddleware, open_traces, send_problem
from florilege.server.http.photo_routes import router as photo_router
from florilege.server.http.photo_routes import shortest_route
from florilege.server.http.request import UploadBudget
from florilege.server.prometheus import Metrics
from florilege.server.routes import feedback_router, openapi_document, operations, router
from florilege.server.serve import Reloader, pipeline_of
from florilege.server.settings import Settings


def create_app(settings: Settings, group: WorkerGroup | None = None) -> FastAPI:
    """Open the bundle and build the application. It is ready once its lifespan has started.

    ``group`` are the workers of a server with several, of which this process is one.
    Raises a `FlorilegeError` if the bundle, a list, the keys or a folder cannot be used.
    """
    keys = None if settings.keys_file is None else ApiKeys(settings.keys_file, group)
    budget = PixelBudget(settings.max_decoding_pixels, group)
    pipeline, metrics, traces = pipeline_of(settings, budget), Metrics(group), open_traces()
    feedback = Feedback.open(settings, metrics, group)
    engine = Engine(pipeline, settings, metrics, group)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        async with reloader.running():
            yield
        engine.close()
        if feedback is not None:
            feedback.close()
        if traces is not None:
            traces.close()

    app = FastAPI(
        title="Florilege",
        version=own_version(),
        summary="Sets of candidate species for a photo, K on average.",
        openapi_url=None,  # a route of ours sends it: FastAPI writes it anew for each request
        docs_url=None,  # FastAPI's pages load scripts from a CDN
        redoc_url=None,
        # A redirect (307) would have clients send the photo a second time; a slash too many is a
        # 404.
        redirect_slashes=False,
        generate_unique_id_function=lambda route: route.name.removeprefix("_"),
        lifespan=lifespan,
        # FastAPI's spans contain the query, and so keys of the Pl@ntNet routes; ours do not.
        telemetry={"tracing": False, "metrics": False, "logs": False, "auto_configure": False},
    )
    app.state.engine = engine
    app.state.about = BundleInfo(pipeline, settings)
    app.state.feedback = feedback
    app.state.feedback_rates = RateCounter("client", group)
    app.state.keys = keys
    app.state.reloader = reloader = Reloader(app.state)
    app.state.upload_budget = UploadBudget(
        settings.max_held_bytes, Tally() if group is None else group.tally("held_bytes")
    )
    for error in HANDLED:
        app.add_exception_handler(error, send_problem)
    app.router.routes.append(shortest_route())
    app.include_router(photo_router)
    app.include_router(router)
    if feedback is not None:
        app.include_router(feedback_router)
    for plugin_router in routers(settings):
        app.include_router(plugin_router)
    app.include_router(operations)
    app.include_router(page_router())
    if settings.cors_origins:
        _allow_pages_of(app, settings.cors_origins)
    app.openapi = cache(partial(openapi_document, app))  # type: ignore[method-assign]  # as FastAPI documents it
    app.state.openapi_json = cache(lambda: json.dumps(app.openapi()).encode())
    # Added last, so outermost: what CORSMiddleware answers by itself gets its id and headers too.
    app.add_middleware(
        RequestMiddleware, metrics=metrics, access_log=settings.access_log, traces=traces
    )
    return app


def _allow_pages_of(app: FastAPI, origins: Iterable[str]) -> None:
    """Let pages of other origins send requests and read answers."""
    app.add_middleware(
        CORSMiddleware,
        allow_origins=list(origins),
        allow_methods=["GET", "POST"],
        allow_headers=[
            *("Content-Type", "X-Request-Id", "Idempotency-Key"),
            *("Authorization", "X-API-Key"),
        ],
        expose_headers=[
            *("X-Request-Id", "Retry-After", "Server-Timing"),
            *("RateLimit", "RateLimit-Policy"),
        ],
    )
