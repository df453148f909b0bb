"""What each call sends and how its reply is read; no connection is made here."""

import os
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Generic, TypeVar, cast
from urllib.parse import quote

from florilege_client.answers import (
    Answer,
    ClassDetails,
    ClassList,
    Embeddings,
    FeedbackReceipt,
    IdentifyOptions,
    ModelCard,
    SurveyAnswer,
    SurveyOptions,
)
from florilege_client.reading import Reply, read

T = TypeVar("T")
Photo = str | os.PathLike[str] | bytes | BinaryIO
"""The path of a photo, its bytes, or an open binary file."""


@dataclass(frozen=True, kw_only=True)
class Call(Generic[T]):
    """A request that may be sent any number of times, and what makes an answer of its reply."""

    method: str
    path: str
    read: Callable[[Reply], T]
    params: Sequence[tuple[str, str]] = ()
    headers: Mapping[str, str] | None = None
    content: bytes | None = None
    files: Sequence[tuple[str, tuple[str, bytes]]] | None = None
    json: Mapping[str, Any] | None = None

    def arguments(self) -> dict[str, Any]:
        """The same for `request` of httpx, but for the address."""
        names = ("method", "params", "headers", "content", "files", "json")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}


def identify(photos: Sequence[Photo], options: IdentifyOptions) -> Call[Answer]:
    """Ask what photos show. They are read here, once, so that the call can be repeated.

    Raises:
        ValueError: There is no photo, or one is of another type.
        OSError: A file cannot be read.
    """
    if not photos:
        raise ValueError("identify needs a photo, or several of one plant")
    return _upload("/v1/identify", photos, cast("Mapping[str, Any]", options), Answer)


def survey(photo: Photo, options: SurveyOptions) -> Call[SurveyAnswer]:
    """Ask what the tiles of one photo show. Raises OSError if the file cannot be read."""
    return _upload("/v1/survey", [photo], cast("Mapping[str, Any]", options), SurveyAnswer)


def embeddings(photos: Sequence[Photo]) -> Call[Embeddings]:
    """Ask for features. Raises ValueError without a photo, OSError if a file cannot be read."""
    if not photos:
        raise ValueError("embeddings needs a photo, or several")
    return _upload("/v1/embeddings", photos, {}, Embeddings)


def _upload(path: str, photos: Sequence[Photo], query: Mapping[str, Any], kind: type[T]) -> Call[T]:
    contents = [_bytes(photo) for photo in photos]
    one = len(contents) == 1
    return Call(
        method="POST",
        path=path,
        read=lambda reply: read(reply, kind),
        params=_params(query),
        headers={"Content-Type": "application/octet-stream"} if one else None,
        content=contents[0] if one else None,
        files=None if one else [("images", ("photo", each)) for each in contents],
    )


def model() -> Call[ModelCard]:
    """Ask which model answers."""
    return Call(method="GET", path="/v1/model", read=lambda reply: read(reply, ModelCard))


def classes(*, q: str | None, limit: int | None, lang: str | None) -> Call[ClassList]:
    """Ask which classes there are."""
    return Call(
        method="GET",
        path="/v1/classes",
        read=lambda reply: read(reply, ClassList),
        params=_params({"q": q, "limit": limit, "lang": lang}),
    )


def species(class_id: str, *, lang: str | None) -> Call[ClassDetails]:
    """Ask about one class."""
    return Call(
        method="GET",
        path=f"/v1/classes/{quote(class_id, safe='')}",
        read=lambda reply: read(reply, ClassDetails),
        params=_params({"lang": lang}),
    )


def feedback(
    answer: Answer | str,
    class_id: str,
    *,
    note: str | None,
    consent: bool,
    idempotency_key: str | None,
) -> Call[FeedbackReceipt]:
    """Say what photos really showed; the key makes it safe to repeat."""
    body = {
        "request_id": answer if isinstance(answer, str) else answer.id,
        "class_id": class_id,
        "note": note,
        "consent": consent,
    }
    return Call(
        method="POST",
        path="/v1/feedback",
        read=lambda reply: read(reply, FeedbackReceipt),
        headers={"Idempotency-Key": idempotency_key or uuid.uuid4().hex},
        json=body,
    )


def health(path: str) -> Call[bool]:
    """Ask an address that answers 200 where all is well."""
    return Call(method="GET", path=path, read=lambda reply: reply.status == 200)


def _bytes(photo: Photo) -> bytes:
    if isinstance(photo, bytes):
        return photo
    if isinstance(photo, str | os.PathLike):
        return Path(photo).read_bytes()
    if not hasattr(photo, "read"):
        raise ValueError(
            "a photo is a path, bytes or an open binary file, and several are arguments of their "
            f"own, identify(*photos); got {type(photo).__name__}"
        )
    content = photo.read()
    if not isinstance(content, bytes):
        raise ValueError("open a photo in binary mode, as in open(path, 'rb')")
    return content


def _params(query: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Query parameters; of a sequence each word, and what is None is left out."""
    pairs = []
    for name, value in query.items():
        values = [value] if isinstance(value, str) or not isinstance(value, Sequence) else value
        pairs += [(name, _text(each)) for each in values if each is not None]
    return pairs


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
