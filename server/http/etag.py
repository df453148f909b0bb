"""Answers that stay the same for a bundle: sent once, then confirmed by their ETag."""

import hashlib

from fastapi import Request, Response
from pydantic import BaseModel


class CachedResponse:
    """A body with its ETag; made once where it never changes.

    Clients ask each time whether it is still so, or first after ``max_age_s`` seconds.
    """

    def __init__(
        self,
        body: bytes | BaseModel,
        media_type: str = "application/json",
        *,
        max_age_s: int | None = None,
    ) -> None:
        if isinstance(body, BaseModel):
            body = body.model_dump_json(by_alias=True).encode()
        self._body, self._media_type = body, media_type
        self._control = "no-cache" if max_age_s is None else f"max-age={max_age_s}"
        self._tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'

    def answer(self, request: Request, *, vary: str | None = None) -> Response:
        """The body, or 304 where ``If-None-Match`` names it.

        What was asked for with a key is for its owner's cache alone.
        """
        private = "" if request.state.key is None else "private, "
        headers = {"ETag": self._tag, "Cache-Control": private + self._control}
        if vary is not None:
            headers["Vary"] = vary
        named = request.headers.get("if-none-match", "").strip()
        if self._tag in named or named == "*":
            return Response(status_code=304, headers=headers)
        return Response(self._body, headers=headers, media_type=self._media_type)
