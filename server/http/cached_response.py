"""Responses that stay the same, such as the web pages: sent once, then revalidated by ETag."""

import hashlib
from importlib.resources import files

from fastapi import APIRouter, Request, Response

MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}


class CachedResponse:
    """A body with its ETag, which clients revalidate unless ``control`` says otherwise."""

    def __init__(
        self, body: bytes, media_type: str = "application/json", control: str = "no-cache"
    ) -> None:
        self._body, self._media_type, self._control = body, media_type, control
        self._tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'

    def answer(self, request: Request, *, vary: str | None = None) -> Response:
        """The body, or 304 if ``If-None-Match`` names it; with a key, for private caches only."""
        private = "" if request.state.key is None else "private, "
        headers = {"ETag": self._tag, "Cache-Control": private + self._control}
        if vary is not None:
            headers["Vary"] = vary
        tags = request.headers.get("if-none-match", "").strip()
        if self._tag in tags or tags == "*":
            return Response(status_code=304, headers=headers)
        return Response(self._body, headers=headers, media_type=self._media_type)

    async def send(self, request: Request) -> Response:
        """As `answer`, as the function of a route."""
        return self.answer(request)


def page_router() -> APIRouter:
    """The web pages, read once: `/NAME` for each file, and `/` for `index.html`."""
    router = APIRouter(include_in_schema=False)
    for file in (files("florilege.server") / "web").iterdir():
        media_type = MEDIA_TYPES.get(file.name.rpartition(".")[2])
        if media_type is not None:
            page = CachedResponse(file.read_bytes(), media_type)
            path = "/" if file.name == "index.html" else f"/{file.name}"
            router.add_api_route(path, page.send, methods=["GET", "HEAD"], response_class=Response)
    return router
