"""Responses that stay the same, revalidated by ETag: web pages, model card, classes, pictures.

Text goes in gzip to clients that accept it. Our own few lines, not a middleware: bodies that stay
the same are compressed once, and that of a long answer outside the event loop.
"""

import gzip
import hashlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from functools import cache
from typing import Final

from fastapi import APIRouter, Request, Response

from florilege.files import SERVICE_WORKER, page_files, service_worker
from florilege.server.answers.pipeline import Pipeline
from florilege.server.bounds import BoundedThread, RecentItems
from florilege.server.http.model_card import ModelCard
from florilege.server.settings import Settings

LEAST_BYTES: Final = 1_000  # a shorter text fits one packet anyway
FAST: Final = 1  # 28 kB in 0.03 ms, a thousandth of a photo; level 6 takes three times as long
ONCE: Final = 6  # for bodies that are sent many times

_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
    "png": "image/png",
    "webmanifest": "application/manifest+json",
}
_COMPRESSED: Final = ("text/", "application/", "image/svg+xml")
LIST_BYTES: Final = 16 * 2**20  # of cached lists; one of 10,000 classes has 3 MB
OWN_BYTES: Final = 1000  # of a cached list beside its body; most searches match next to nothing
_MAX_AGE: Final = "max-age=3600"  # of a picture; pages show the same few again and again


def accepts_gzip(request: Request) -> bool:
    """Whether ``Accept-Encoding`` names gzip without refusing it (RFC 9110, section 12.5.3)."""
    for entry in request.headers.get("accept-encoding", "").lower().split(","):
        coding, _, weight = entry.partition(";")
        if coding.strip() == "gzip":
            return weight.replace(" ", "") not in ("q=0", "q=0.0", "q=0.00", "q=0.000")
    return False


def compress(body: bytes, level: int = FAST) -> bytes:
    """The body in gzip; the same bytes at any time."""
    return gzip.compress(body, level, mtime=0)


def encoding(zipped: bool) -> Mapping[str, str]:
    """The headers of a body that may be compressed."""
    vary = {"Vary": "Accept-Encoding"}
    return {**vary, "Content-Encoding": "gzip"} if zipped else vary


class CachedResponse:
    """A body with its ETag, which clients revalidate unless ``control`` says otherwise."""

    def __init__(
        self, body: bytes, media_type: str = "application/json", control: str = "no-cache"
    ) -> None:
        self._body, self._media_type, self._control = body, media_type, control
        self._hash = hashlib.sha256(body).hexdigest()[:32]
        zips = media_type.startswith(_COMPRESSED) and len(body) >= LEAST_BYTES
        self._zipped = compress(body, ONCE) if zips else None
        self.size = len(body) + len(self._zipped or b"")

    def answer(self, request: Request, *, vary: str | None = None) -> Response:
        """The body, or 304 if ``If-None-Match`` names it; with a key, for private caches only."""
        # Shared caches pass over a request with Authorization by themselves (RFC 9111, section
        # 3.5), but not over one with X-API-Key.
        private = "" if request.state.key is None else "private, "
        zipped = self._zipped if accepts_gzip(request) else None
        tag = f'"{self._hash}"' if zipped is None else f'"{self._hash}-gzip"'  # other bytes
        headers = {"ETag": tag, "Cache-Control": private + self._control}
        if self._zipped is not None:
            headers |= encoding(zipped is not None)
        if vary is not None:
            headers["Vary"] = ", ".join(filter(None, (vary, headers.get("Vary"))))
        tags = request.headers.get("if-none-match", "").strip()
        # Within a list, and behind W/ too: If-None-Match compares weakly (RFC 9110, section
        # 13.1.2).
        if tag in tags or tags == "*":
            headers.pop("Content-Encoding", None)
            return Response(status_code=304, headers=headers)
        body = self._body if zipped is None else zipped
        return Response(body, headers=headers, media_type=self._media_type)

    async def send(self, request: Request) -> Response:
        """Answer a request as `answer` does; this is the function of a route."""
        return self.answer(request)


@cache  # every application of a process has the same
def page_router() -> APIRouter:
    """The web pages, read once: `/NAME` for each file, and `/` for `index.html` too."""
    router = APIRouter(include_in_schema=False)
    pages = page_files()
    pages[SERVICE_WORKER] = service_worker(pages)
    for name, content in pages.items():
        page = CachedResponse(content, _MEDIA_TYPES[name.rpartition(".")[2]])
        for path in (f"/{name}", *(["/"] if name == "index.html" else [])):
            router.add_api_route(path, page.send, methods=["GET", "HEAD"], response_class=Response)
    return router


def _json(card: ModelCard) -> CachedResponse:
    return CachedResponse(card.model_dump_json(by_alias=True).encode())


class BundleInfo:
    """All cached responses of one bundle; ``thumbnails`` are pictures by class id."""

    def __init__(self, pipeline: Pipeline, settings: Settings) -> None:
        card = ModelCard.of_pipeline(pipeline, settings)
        self.card = _json(card)
        self.short_card = _json(card.model_copy(update={"rules": []}))
        self.classes = pipeline.taxa
        self._lists = RecentItems[CachedResponse](LIST_BYTES, lambda item: item.size + OWN_BYTES)
        self.pictures = pipeline.bundle.open_pictures()
        self._look_alikes = pipeline.bundle.read_look_alikes()
        self.thumbnails = {
            name: CachedResponse(picture, "image/jpeg", _MAX_AGE)
            for name, picture in pipeline.bundle.read_thumbnails().items()
        }

    def details(self, class_id: str, languages: Sequence[str]) -> bytes:
        """A class with its pictures and the classes it is confused with."""
        others = self._look_alikes.get(self.classes.classes.index_of[class_id], ())
        return self.classes.details(class_id, languages, self.pictures.credits(class_id), others)

    def picture(self, class_id: str, number: int | None) -> CachedResponse | None:
        """The thumbnail of a class, or one of its reference pictures; None if it has none."""
        if number is None:
            return self.thumbnails.get(class_id)
        if not 1 <= number <= len(self.pictures.credits(class_id)):
            return None
        return CachedResponse(self.pictures.read(class_id, number - 1), "image/jpeg", _MAX_AGE)

    def known_languages(self, languages: Sequence[str]) -> tuple[str, ...]:
        """Those in which a class has a name: the others give the same lists."""
        return tuple(language for language in languages if language in self.classes.languages)

    async def cached_list(
        self, thread: BoundedThread, write: Callable[..., bytes], *query: Hashable
    ) -> CachedResponse:
        """The list that ``write(*query)`` writes in ``thread``; the last few are cached."""
        name = (write.__name__, *query)

        def make() -> CachedResponse:
            response = self._lists.find(name)  # of another client that waited for the thread
            if response is None:
                response = CachedResponse(write(*query))
                self._lists.add(name, response)
            return response

        response = self._lists.find(name)
        return await thread.run(make) if response is None else response
