"""JSON files of a bundle, read and validated by pydantic."""

from pathlib import Path
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from florilege.errors import BundleError

Content = TypeVar("Content")
_UNKNOWN_KEY: Final = ("extra_forbidden", "unexpected_keyword_argument")


def read_json(kind: type[Content], text: str | bytes, where: str | Path) -> Content:
    """Read a file of a bundle; a `BundleError` that names ``where`` if it is damaged or newer."""
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        fault, advice = first_fault(error), "copy or export the bundle again"
        if any(map(_is_newer, error.errors())):
            advice = "a newer florilege may have written it: upgrade florilege"
        raise BundleError(f"{where} is damaged: {fault}; {advice}") from error


def _is_newer(fault: ErrorDetails) -> bool:
    too_high = fault["loc"] == ("schema_version",) and fault["type"] == "less_than_equal"
    return too_high or fault["type"] in _UNKNOWN_KEY


def first_fault(error: ValidationError) -> str:
    """The first refused key, with the reason and its value."""
    first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    message = f"{message[0].lower()}{message[1:]}"
    if first["type"] in _UNKNOWN_KEY:
        return f"unknown key {name!r}"
    if not name:
        return message
    value = "" if first["type"] == "missing" else f", got {first['input']!r}"
    return f"{name}: {message}{value}"
