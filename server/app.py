"""The application: composes the parts, holds no logic."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from models.images import ACCEPTED
from models.runtime import installed
from server.afterwards.opening import open_afterwards, open_feedback
from server.answers.about import model_card
from server.answers.pipeline import open_pipeline
from server.engine import Engine
from server.errors import Problem
from server.http.body import Held
from server.http.cached import Cached
from server.http.edge import Edge
from server.http.handlers import on_http_exception, on_invalid_query, on_problem
from server.http.page import page_router
from server.metrics import Metrics
from server.routes import feedback_router, operations, router
from server.schemas import Limits
from server.settings import Settings


def create_app(settings: Settings) -> FastAPI:
    """Open the bundle and build the application. It is ready once its lifespan has begun.

    Raises:
        BundleError: The bundle is damaged or not calibrated.
        UsageError: A folder to write to cannot be used.
    """
    pipeline = open_pipeline(
        settings.bundle,
        device=settings.device,
        max_pixels=settings.max_pixels,
        max_decoding_pixels=settings.max_decoding_pixels,
    )
    metrics = Metrics()
    feedback = open_feedback(settings, pipeline, metrics)
    engine = Engine(pipeline, settings, metrics, open_afterwards(settings, pipeline, metrics))

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await engine.start()
        yield
        engine.close()

    app = FastAPI(
        title="Florilege",
        version=installed("florilege") or "0",
        summary="Sets of candidate species for a photo, K on average.",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        lifespan=lifespan,
    )
    limits = Limits.of(settings, media_types=list(ACCEPTED))
    app.state.card = Cached(model_card(pipeline, limits, feedback=feedback is not None))
    app.state.engine = engine
    app.state.feedback = feedback
    app.state.held = Held(settings.max_held_bytes)
    app.add_exception_handler(Problem, on_problem)
    app.add_exception_handler(HTTPException, on_http_exception)
    app.add_exception_handler(RequestValidationError, on_invalid_query)
    app.include_router(router)
    if feedback is not None:
        app.include_router(feedback_router)
    app.include_router(operations)
    app.include_router(page_router())
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["GET", "POST"],
            allow_headers=["Content-Type", "X-Request-Id", "Idempotency-Key"],
            expose_headers=["X-Request-Id", "Retry-After", "Server-Timing"],
        )
    app.add_middleware(Edge, metrics=metrics)
    return app
