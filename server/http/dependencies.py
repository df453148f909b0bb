"""What the routes take from the application: FastAPI dependencies, and the schema of a photo."""

from typing import Annotated

from fastapi import Depends, Request

from florilege.server.engine import Engine
from florilege.server.http.bundle_info import BundleInfo

PHOTO = {"type": "string", "format": "binary"}


# Asynchronous, since FastAPI hands plain functions to a thread, which costs more than they do.
async def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


async def _about(request: Request) -> BundleInfo:
    about: BundleInfo = request.app.state.about
    return about


EngineOf = Annotated[Engine, Depends(_engine)]
BundleInfoOf = Annotated[BundleInfo, Depends(_about)]
