"""Read a request body within its limits, and find the photos in it.

Nothing is trusted: the declared length is checked before the first byte is read, the bytes are
counted while they arrive, and they must arrive before a deadline.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass

from fastapi import Request

from florilege.server.http.multipart import images_of_form
from florilege.server.problems import Code, Problem
from florilege.server.settings import Settings

PARSED_ON_THE_LOOP = 256 * 1024
"""Larger forms are parsed in a thread: 4 MB take about a millisecond, too long for the loop."""

MAX_DIGITS = 18

FindPhotos = Callable[[bytes, str], list[bytes]]  # given a form and its Content-Type
InThread = Callable[[FindPhotos, bytes, str], Awaitable[list[bytes]]]  # calls one elsewhere


@dataclass
class UploadBudget:
    """The bytes of all request bodies in memory now, and their limit."""

    limit: int
    now: int = 0

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts bytes until the block ends; a `Problem` of too many."""
        total = 0

        def count(size: int) -> None:
            nonlocal total
            if self.now + size > self.limit:
                raise Problem(
                    Code.OVERLOADED,
                    f"uploads fill the {self.limit} bytes set aside for them; try again shortly",
                    retry_after=1,
                )
            self.now += size
            total += size

        try:
            yield count
        finally:
            self.now -= total


@asynccontextmanager
async def read_images(
    request: Request,
    settings: Settings,
    upload_budget: UploadBudget,
    find: FindPhotos = images_of_form,
    *,
    in_thread: InThread = asyncio.to_thread,
) -> AsyncIterator[list[bytes]]:
    """Read the body and yield its photos; their bytes count as held until the block ends.

    The body is one photo, or a form in which ``find`` finds them, ``in_thread`` if it is large.
    Forms must be parsed one at a time, because each is held twice while it is parsed. Raises as
    `read_body`, and a `Problem` if the photos are too few, too many or more than the budget.
    """
    limit, deadline_s = settings.max_body_bytes, settings.upload_deadline_s
    content_type, max_images = request.headers.get("content-type", ""), settings.max_images
    with upload_budget.hold() as count:
        body = await read_body(request, limit=limit, deadline_s=deadline_s, count=count)
        if not content_type.lower().startswith("multipart/form-data"):
            images = [body] if body else []  # the bytes decide the type, whatever the header says
        elif len(body) > PARSED_ON_THE_LOOP:
            images = await in_thread(find, body, content_type)
        else:
            images = find(body, content_type)
        del body  # not to hold it in memory beside its photos
        if not 1 <= len(images) <= max_images:
            raise Problem(
                Code.WRONG_NUMBER_OF_IMAGES,
                f"send 1 to {max_images} photos of one plant, as multipart parts named `images` or "
                f"one as the raw body; got {len(images) or 'none'}",
                limit=max_images,
            )
        yield images


async def read_body(
    request: Request,
    *,
    limit: int,
    deadline_s: float,
    count: Callable[[int], None] = lambda _: None,
) -> bytes:
    """Read a whole body; ``count`` gets the size of each chunk and may refuse it.

    Raises `ClientDisconnect` if the client left, and a `Problem` if the declared or actual size
    exceeds ``limit`` bytes, the body is late, or the Content-Length is invalid.
    """
    declared = request.headers.get("content-length", "0")
    if not declared.isdecimal():
        detail = f"Content-Length must be a number, got {declared[:40]!r}"
        raise Problem(Code.MALFORMED_REQUEST, detail)
    if len(declared) > MAX_DIGITS or int(declared) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(deadline_s), aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                if len(body) + len(chunk) > limit:
                    raise _too_large(limit)
                count(len(chunk))
                body += chunk
    except TimeoutError as error:
        raise Problem(
            Code.UPLOAD_TOO_SLOW,
            f"the body must arrive within {deadline_s:g} seconds; "
            "send a smaller photo or try again on a better connection",
            limit=deadline_s,
        ) from error
    return bytes(body)


def _too_large(limit: int) -> Problem:
    return Problem(
        Code.BODY_TOO_LARGE,
        f"a request may have {limit} bytes; make the photo smaller (1600 pixels on the long side "
        "are plenty) or send fewer",
        limit=limit,
    )
