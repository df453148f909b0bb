"""The routes for whoever runs the server: is it alive, is it ready, how is it doing."""

from typing import Annotated

from fastapi import APIRouter, Depends, Request, Response

from server.engine import Engine
from server.schemas import Health, ProblemDocument

router = APIRouter()

PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"


# Asynchronous, since FastAPI hands plain functions to a thread, which costs more than they do.
async def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


EngineOf = Annotated[Engine, Depends(_engine)]


@router.get("/livez")
async def livez() -> Health:
    """Return 200 as long as the process answers at all. A failure means: restart it."""
    return Health(status="alive")


@router.get(
    "/readyz",
    responses={503: {"model": ProblemDocument, "description": "Loading or about to stop."}},
)
async def readyz(engine: EngineOf) -> Health:
    """Return 200 once the model is loaded, verified and warm, 503 while starting or stopping.

    Errors: 503 `loading`, `draining`.
    """
    engine.check_ready()
    return Health(status="ready")


@router.get("/metrics")
async def metrics(engine: EngineOf) -> Response:
    """Return all metrics in the Prometheus text format."""
    return Response(engine.metrics.text(), media_type=PROMETHEUS)
