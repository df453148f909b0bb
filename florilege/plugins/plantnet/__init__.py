"""``serve --plantnet``: routes for apps that were written for the Pl@ntNet API."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from florilege.hooks import hookimpl

if TYPE_CHECKING:
    from fastapi import APIRouter

    from florilege.server.settings import Settings


@hookimpl
def routers(settings: "Settings") -> "Sequence[APIRouter]":
    """The routes, if they are asked for."""
    if not settings.plantnet:
        return ()
    from florilege.plugins.plantnet.plantnet_routes import plantnet_router, status_router

    return plantnet_router, status_router
