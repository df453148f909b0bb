"""JSON files of a bundle, read and validated by pydantic."""

from pathlib import Path
from typing import Final, TypeVar

from pydantic import TypeAdapter, ValidationError

from florilege.errors import BundleError

Content = TypeVar("Content")
_UNKNOWN_KEY: Final = ("extra_forbidden", "unexpected_keyword_argument")


def read_json(kind: type[Content], text: str | bytes, where: str | Path) -> Content:
    """Read a file of a bundle; a `BundleError` that names ``where`` if it is damaged or newer."""
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        fault, advice = first_fault(error), "copy or export the bundle again"
        kinds = {(fault["loc"], fault["type"]) for fault in error.errors()}
        too_high = (("schema_version",), "less_than_equal")
        if too_high in kinds or any(kind in _UNKNOWN_KEY for _, kind in kinds):
            advice = "a newer florilege may have written it: upgrade florilege"
        raise BundleError(f"{where} is damaged: {fault}; {advice}") from error


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
