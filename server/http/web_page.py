"""The web pages at `/`: files without a build step, read once, without external content."""

from importlib.resources import files

from fastapi import APIRouter, Request, Response

from florilege.server.http.etag import CachedResponse

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


def page_router() -> APIRouter:
    """The routes of the pages: `/NAME` for each file, and `/` for `index.html`."""
    router = APIRouter(include_in_schema=False)
    for file in (files("florilege.server") / "web").iterdir():
        media_type = MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            content = CachedResponse(file.read_bytes(), media_type)
            _add(router, "/" if file.name == "index.html" else f"/{file.name}", content)
    return router


def _add(router: APIRouter, path: str, content: CachedResponse) -> None:
    async def send(request: Request) -> Response:
        return content.answer(request)

    router.add_api_route(path, send, methods=["GET", "HEAD"], response_class=Response)
