"""Answers that stay the same for a bundle: sent once, then confirmed by their ETag."""

import hashlib

from fastapi import Request, Response
from pydantic import BaseModel


def cached_json(request: Request, content: BaseModel, *, vary: str | None = None) -> Response:
    """Render ``content``, or 304 where the caller has it already."""
    body = content.model_dump_json(by_alias=True).encode()
    return cached(request, body, "application/json", vary=vary)


def cached(request: Request, body: bytes, media_type: str, *, vary: str | None = None) -> Response:
    """Send ``body``, or 304 where ``If-None-Match`` names it."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if vary is not None:
        headers["Vary"] = vary
    known = {part.strip().removeprefix("W/") for part in _if_none_match(request).split(",")}
    if tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=media_type)


def _if_none_match(request: Request) -> str:
    return request.headers.get("if-none-match", "")
