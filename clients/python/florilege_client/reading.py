"""From the bytes of a reply to an answer or an error. Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import cache
from http.client import responses
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from florilege_client.errors import Problem, StrangeAnswer

T = TypeVar("T")
Read = Callable[[Any], Any]

PROBLEM = "application/problem+json"
LONGEST_TEXT = 200  # characters of a refusal that is no problem document


@dataclass(frozen=True)
class Reply:
    """What a server sent back; the names of ``headers`` are in lower case."""

    status: int
    headers: Mapping[str, str]
    content: bytes


def read(reply: Reply, kind: type[T]) -> T:
    """The answer of a reply.

    Fields that ``kind`` does not know are passed over: a newer server may send more.

    Raises:
        StrangeAnswer: It is none.
    """
    try:
        answer: T = _reader(cast("Any", kind))(json.loads(reply.content))
    except (ValueError, RecursionError) as error:
        raise StrangeAnswer(
            f"{reply.status}, but no {kind.__name__} of Florilege ({error}): is the address right?"
        ) from error
    return answer


def problem(reply: Reply, today: float) -> Problem:
    """What a reply without success says, at ``today``, seconds of the epoch."""
    document: Any = None
    if reply.headers.get("content-type", "").partition(";")[0].strip() == PROBLEM:
        try:
            document = json.loads(reply.content)
        except (ValueError, RecursionError):
            document = None
    wait_s = retry_after(reply.headers.get("retry-after", ""), today)
    if not isinstance(document, dict) or "code" not in document:
        return Problem(
            _of_another(reply),
            status=reply.status,
            request_id=reply.headers.get("x-request-id"),
            retryable=reply.status in (429, 503),
            retry_after=wait_s,
        )
    return Problem(
        str(document.get("detail", "")),
        status=reply.status,
        code=str(document["code"]),
        request_id=document.get("instance"),
        retryable=bool(document.get("retryable")),
        retry_after=wait_s,
        limit=document.get("limit"),
        allowed=document.get("allowed"),
    )


def _of_another(reply: Reply) -> str:
    """What to say of a refusal that is no problem document."""
    if 300 <= reply.status < 400 and "location" in reply.headers:
        return f"the server is at {reply.headers['location']}: give that as its address"
    phrase = responses.get(reply.status, "an unknown status")
    text = reply.content[:LONGEST_TEXT].decode("utf-8", "replace").strip()
    return f"{phrase}, and not from Florilege: {text}" if text else f"{phrase}, without a word"


def retry_after(header: str, today: float) -> float | None:
    """Seconds to wait by a ``Retry-After``: a number, or a date; None where it is neither.

    Example:
        >>> retry_after("7", 0.0), retry_after("Thu, 01 Jan 1970 00:01:00 GMT", 50.0)
        (7.0, 10.0)
    """
    header = header.strip()
    if header.isascii() and header.isdigit():
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return None
    if date.tzinfo is None:  # an offset of -0000; the standard has GMT alone
        date = date.replace(tzinfo=UTC)
    return max(0.0, date.timestamp() - today)


@cache
def _reader(kind: Any) -> Read:
    """What makes a ``kind`` of JSON."""
    arguments = get_args(kind)
    match get_origin(kind):
        case None if is_dataclass(kind):
            return _object_reader(kind)
        case None:
            return lambda value: _simple(kind, value)
        case origin if origin in (Union, UnionType):
            (inner,) = (_reader(each) for each in arguments if each is not NoneType)
            return lambda value: None if value is None else inner(value)
        case origin if origin is Literal:
            return lambda value: _simple(str, value)  # a newer server may know more words
        case origin if origin is tuple and arguments[-1] is not Ellipsis:
            readers = [_reader(each) for each in arguments]
            return lambda value: tuple(
                inner(each) for inner, each in zip(readers, _list(value), strict=True)
            )
        case origin if origin is tuple:
            each_reader = _reader(arguments[0])
            return lambda value: tuple(each_reader(each) for each in _list(value))
    value_reader = _reader(arguments[1])
    return lambda value: {name: value_reader(each) for name, each in _object(value).items()}


def _object_reader(kind: Any) -> Read:
    hints = get_type_hints(kind)
    readers = [
        (each.name, each.metadata.get("json", each.name), _reader(hints[each.name]))
        for each in fields(kind)
    ]

    def read_object(value: Any) -> Any:
        content = _object(value)
        values = {}
        for name, key, inner in readers:
            try:
                values[name] = inner(content.get(key))
            except ValueError as error:
                raise ValueError(f"`{key}`: {error}") from None
        return kind(**values)

    return read_object


def _simple(kind: type, value: Any) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    # Not `isinstance`, for which true and false are whole numbers.
    if type(value) is not kind:
        raise ValueError(f"a {kind.__name__} is expected, not {str(value)[:40]}")
    return value


def _object(value: Any) -> dict[str, Any]:
    content: dict[str, Any] = _simple(dict, value)
    return content


def _list(value: Any) -> list[Any]:
    items: list[Any] = _simple(list, value)
    return items
