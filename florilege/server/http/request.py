"""Read a request within its limits: its query, its body, and the photos in it; describe all that.

Nothing is trusted: the declared length is checked before the first byte is read, the bytes are
counted while they arrive, and they must arrive before a deadline.
"""

import asyncio
import threading
from collections import defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from fastapi import Depends, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from florilege.processes import Tally
from florilege.server.http.api_keys import check_key
from florilege.server.problems import MEDIA_TYPE, Code, Problem
from florilege.server.schemas import RequestModel
from florilege.server.settings import MAX_IMAGES, Settings

REPEATED: Final = frozenset({"include", "only", "always"})
"""Parameters that may be repeated; for any other, all but one value would be ignored."""
Q = TypeVar("Q", bound=RequestModel)

MAX_PARAMETERS: Final = 30
"""Different parameters in a query; each unknown one would take an error to describe."""
PARSED_ON_THE_LOOP = 2**20
"""Larger forms are parsed in a thread: 1 MiB takes .3 ms, as long as a request that costs nothing,
and 16 MiB would take 5. Behind others' forms of many parts a photo waits for that thread."""
FEW_PARTS: Final = 12
"""So are forms of more parts, of which a hundred take 3 ms."""
MAX_DIGITS = 18
FIELD = "images"
MAX_PARTS = 100
_SMALLER: Final = "make the photo smaller (1600 pixels on the long side are plenty) or send fewer"
COMMON_PROBLEMS = (
    *(Code.UNKNOWN_PARAMETER, Code.INVALID_PARAMETER, Code.KEY_MISSING, Code.KEY_UNKNOWN),
    *(Code.RATE_LIMITED, Code.HEADERS_TOO_LARGE, Code.INTERNAL_ERROR),
)
_RETRY_AFTER = {
    "description": "Seconds to wait before trying again.",
    "schema": {"type": "integer"},
}
_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDocument"}}}
FindPhotos = Callable[[bytes, str], list[bytes]]  # given a form and its Content-Type
InThread = Callable[[FindPhotos, bytes, str], Awaitable[list[bytes]]]  # calls one elsewhere


def query_of(request: Request, model: type[Q]) -> Q:
    """The query of a request, read as by a parameter ``Annotated[model, Query()]`` of its route.

    FastAPI asks the type of each field anew for each request: for the twenty of a photo that takes
    a third of what the event loop does for it. `parameters_of` describes them.
    """
    query = request.query_params
    values = {name: query.getlist(name) if name in REPEATED else query[name] for name in query}
    with errors_of("query"):
        return model.model_validate(values)


@contextmanager
def errors_of(part: str) -> Iterator[None]:
    """Turn what pydantic says of a ``part`` of a request, ``query`` or ``body``, into FastAPI's."""
    try:
        yield
    except ValidationError as error:
        errors = error.errors(include_url=False)
        located = [{**error, "loc": (part, *error["loc"])} for error in errors]
        raise RequestValidationError(located) from error


def parameters_of(model: type[RequestModel]) -> dict[str, Any]:
    """The OpenAPI description of the query that `query_of` reads."""
    parameters = []
    for name, described in model.model_json_schema()["properties"].items():
        schema = {key: value for key, value in described.items() if value is not None}
        about = {"name": name, "in": "query", "required": False, "schema": schema}
        parameters.append({**about, "description": described["description"]})
    return {"parameters": parameters}


PHOTO = {"type": "string", "format": "binary"}


def body_of(content: dict[str, Any]) -> dict[str, Any]:
    """The OpenAPI description of a body that a route reads itself, by media type."""
    return {"requestBody": {"required": True, "content": content}}


def form_of_photos(**fields: Any) -> dict[str, Any]:
    """The OpenAPI content of a form with one to five photos and further ``fields``."""
    images = {"type": "array", "items": PHOTO, "minItems": 1, "maxItems": MAX_IMAGES}
    schema = {"type": "object", "required": [FIELD], "properties": {FIELD: images, **fields}}
    return {"multipart/form-data": {"schema": schema}}


PHOTOS = body_of(
    {
        **form_of_photos(),
        "image/*": {"schema": PHOTO},
        "application/octet-stream": {"schema": PHOTO},  # code generators do not know wildcards
    }
)


def problem_responses(*codes: Code) -> dict[int | str, Any]:
    """The errors of a route, by status, for FastAPI's ``responses``."""
    texts = defaultdict[int, list[str]](list)
    for code in sorted(codes, key=lambda code: code.status):
        texts[code.status].append(f"`{code}`: {code.summary.lower()}.")
    return {
        status: {"description": " ".join(text), "content": _PROBLEM}
        | ({"headers": {"Retry-After": _RETRY_AFTER}} if status in (429, 503) else {})
        for status, text in texts.items()
    }


# Asynchronous: FastAPI runs plain functions in a thread, which costs more than they do. One for all
# checks: it takes as long to call each.
async def guard(request: Request) -> None:
    """Check the key of a request and the names of its parameters, before any other work."""
    check_key(request)
    _refuse_repeated(request)


def _refuse_repeated(request: Request) -> None:
    """Raise a `Problem` if a parameter outside `REPEATED` is repeated, or if there are too many."""
    names: set[str] = set()
    for name, _ in request.query_params.multi_items():
        if name in names and name not in REPEATED:
            detail = f"parameter `{name[:80]}`: it is given more than once"
            raise Problem(Code.INVALID_PARAMETER, detail)
        names.add(name)
        if len(names) > MAX_PARAMETERS:
            detail = f"more than {MAX_PARAMETERS} parameters; /openapi.json lists them"
            raise Problem(Code.INVALID_PARAMETER, detail)


GUARDS: Final = (Depends(guard),)
"""What every route checks before any other work."""


@dataclass
class UploadBudget:
    """The bytes of all request bodies in memory, of all workers, and their limit."""

    limit: int
    uploads: Tally = field(default_factory=Tally)

    @property
    def now(self) -> int:
        """The bytes held now."""
        return self.uploads.total

    @contextmanager
    def hold(self) -> Iterator[Callable[[int], None]]:
        """Yield a function that counts bytes until the block ends; it refuses too many."""
        total, open_, changing = 0, True, threading.Lock()  # a survey counts in a thread

        def count(size: int) -> None:
            nonlocal total
            with changing:
                # Nobody would release what a thread counts after its client has left.
                if not open_ or not self.uploads.add_within(size, self.limit):
                    raise Problem(
                        Code.OVERLOADED,
                        f"uploads fill the {self.limit} bytes set aside for them; try again "
                        "shortly",
                        retry_after=1,
                    )
                total += size

        try:
            yield count
        finally:
            with changing:
                open_ = False
                self.uploads.release(total)


class _Parts:
    """Collects the parts of one body; `MultipartParser` calls the methods ``on_...`` in order.

    It gets the whole body at once, so each name and value of a header arrives in one piece.
    """

    def __init__(self) -> None:
        self.parts: list[tuple[str, bytes]] = []
        self.complete = False
        self._headers: dict[bytes, bytes] = {}
        self._field = b""
        self._chunks: list[bytes] = []

    def on_part_begin(self) -> None:
        if len(self.parts) >= MAX_PARTS:
            detail = f"a form may have {MAX_PARTS} parts"
            raise Problem(Code.MALFORMED_REQUEST, detail, limit=MAX_PARTS)
        self._headers, self._chunks = {}, []

    def on_header_field(self, data: bytes, start: int, end: int) -> None:
        self._field = data[start:end].lower()

    def on_header_value(self, data: bytes, start: int, end: int) -> None:
        self._headers[self._field] = data[start:end]

    def on_part_data(self, data: bytes, start: int, end: int) -> None:
        self._chunks.append(data[start:end])

    def on_part_end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        if b"name" not in options:
            detail = "every part of the form needs a name in Content-Disposition"
            raise Problem(Code.MALFORMED_REQUEST, detail)
        name = options[b"name"].decode("utf-8", "replace")
        empty_file_input = options.get(b"filename") == b"" and not any(self._chunks)
        # Browsers send a part without a name and content for a file input that was left empty.
        if not empty_file_input:
            self.parts.append((name, b"".join(self._chunks)))

    def on_end(self) -> None:
        self.complete = True


def images_of_form(body: bytes, content_type: str) -> list[bytes]:
    """The contents of the parts named ``images``, in order; a `Problem` if there are others."""
    parts = parts_of_form(body, content_type)
    others = sorted({name for name, _ in parts if name != FIELD})
    quoted = ", ".join(f"`{name[:40]}`" for name in others[:5])
    images = [content for name, content in parts if name == FIELD]
    if others and not images:
        raise Problem(
            Code.WRONG_NUMBER_OF_IMAGES,
            f"no part is named `{FIELD}`; the form has {quoted}",
            allowed=[FIELD],
        )
    if others:
        raise Problem(
            Code.UNKNOWN_PARAMETER,
            f"the form may only hold parts named `{FIELD}`; it also has {quoted}; "
            "put options in the query",
            allowed=[FIELD],
        )
    return images


def parts_of_form(body: bytes, content_type: str) -> list[tuple[str, bytes]]:
    """Name and content of every part, in order; a `Problem` if the body is damaged."""
    boundary = parse_options_header(content_type)[1].get(b"boundary")
    if not boundary:
        detail = "the Content-Type multipart/form-data lacks its boundary"
        raise Problem(Code.MALFORMED_REQUEST, detail)
    parts = _Parts()
    try:
        callbacks: Any = {name: getattr(parts, name) for name in dir(parts) if name[:3] == "on_"}
        MultipartParser(boundary, callbacks).write(body)
    except FormParserError as error:
        raise Problem(Code.MALFORMED_REQUEST, f"the multipart body is damaged: {error}") from error
    if not parts.complete:
        raise Problem(Code.MALFORMED_REQUEST, "the multipart body ends before its closing boundary")
    return parts.parts


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
        body = await read_body(
            request, limit=limit, deadline_s=deadline_s, advice=_SMALLER, count=count
        )
        if not content_type.lower().startswith("multipart/form-data"):
            # The bytes decide the type, whatever the header says.
            images = [body] if body else []
        # Each part begins with a line of --BOUNDARY: counted without parsing, they are never too
        # few.
        elif len(body) > PARSED_ON_THE_LOOP or body.count(b"\n--") > FEW_PARTS:
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
    advice: str,
    count: Callable[[int], None] = lambda _: None,
) -> bytes:
    """Read a whole body; ``count`` gets the size of each chunk and may refuse it.

    ``advice`` says what to do about a body that is too large or late.

    Raises `ClientDisconnect` if the client left, and a `Problem` if the declared or actual size
    exceeds ``limit`` bytes, the body is late, or the Content-Length is invalid.
    """
    declared = request.headers.get("content-length", "0")
    # Not `isdigit`: ² is a digit, and `int` refuses it.
    if not declared.isdecimal():
        detail = f"Content-Length must be a number, got {declared[:40]!r}"
        raise Problem(Code.MALFORMED_REQUEST, detail)
    # Python refuses to read a number of more than 4,300 digits.
    if len(declared) > MAX_DIGITS or int(declared) > limit:
        raise _too_large(limit, advice)
    body = bytearray()
    try:
        async with asyncio.timeout(deadline_s), aclosing(request.stream()) as chunks:
            async for chunk in chunks:
                if len(body) + len(chunk) > limit:
                    raise _too_large(limit, advice)
                count(len(chunk))
                body += chunk
    except TimeoutError as error:
        raise Problem(
            Code.UPLOAD_TOO_SLOW,
            f"the body must arrive within {deadline_s:g} seconds; {advice}, or try again on a "
            "better connection",
            limit=deadline_s,
        ) from error
    return bytes(body)


def _too_large(limit: int, advice: str) -> Problem:
    return Problem(Code.BODY_TOO_LARGE, f"a request may have {limit} bytes; {advice}", limit=limit)
