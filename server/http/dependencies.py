"""FastAPI dependencies of the routes, and the schema of a photo."""

from typing import Annotated, Any

from fastapi import Depends, Request

from florilege.server.engine import Engine
from florilege.server.http.bundle_info import BundleInfo
from florilege.server.http.multipart import FIELD
from florilege.server.settings import MAX_IMAGES

PHOTO = {"type": "string", "format": "binary"}


def form_of_photos(**fields: Any) -> dict[str, Any]:
    """The OpenAPI content of a form with one to five photos and further ``fields``."""
    images = {"type": "array", "items": PHOTO, "minItems": 1, "maxItems": MAX_IMAGES}
    schema = {"type": "object", "required": [FIELD], "properties": {FIELD: images, **fields}}
    return {"multipart/form-data": {"schema": schema}}


# Asynchronous: FastAPI runs plain functions in a thread, which costs more than they do.
async def _engine(request: Request) -> Engine:
    engine: Engine = request.app.state.engine
    return engine


async def _about(request: Request) -> BundleInfo:
    about: BundleInfo = request.app.state.about
    return about


EngineOf = Annotated[Engine, Depends(_engine)]
BundleInfoOf = Annotated[BundleInfo, Depends(_about)]
