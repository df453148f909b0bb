"""The page at `/`: three files without a build step, read once, nothing from elsewhere."""

from importlib.resources import files

from fastapi import APIRouter, Request, Response

from server.http.cached import Cached

FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/sets.js": ("sets.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
    "/icon.svg": ("icon.svg", "image/svg+xml"),
}


def page_router() -> APIRouter:
    """The routes of the page."""
    router = APIRouter(include_in_schema=False)
    for path, (name, media_type) in FILES.items():
        _add(router, path, Cached((files("server") / "web" / name).read_bytes(), media_type))
    return router


def _add(router: APIRouter, path: str, content: Cached) -> None:
    async def send(request: Request) -> Response:
        return content.answer(request)

    router.add_api_route(path, send, methods=["GET", "HEAD"], response_class=Response)
