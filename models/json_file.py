"""JSON files of a bundle, read and validated by pydantic."""

from pathlib import Path
from typing import TypeVar

from pydantic import TypeAdapter, ValidationError

from florilege.errors import BundleError

Content = TypeVar("Content")


def read_json(kind: type[Content], text: str | bytes, where: str | Path) -> Content:
    """Read a file of a bundle.

    Raises:
        BundleError: It is damaged or newer than this version; the message names ``where``.
    """
    try:
        return TypeAdapter(kind).validate_json(text)
    except ValidationError as error:
        newer = [each for each in error.errors() if each["loc"] == ("schema_version",)]
        if newer and newer[0]["type"] == "less_than_equal":
            raise BundleError(
                f"{where} has schema {newer[0]['input']}, which this florilege does not support: "
                "upgrade florilege"
            ) from error
        fault = first_fault(error)
        raise BundleError(
            f"{where} is damaged: {fault}; copy or export the bundle again"
        ) from error


def first_fault(error: ValidationError) -> str:
    """The first refused key, with the reason and its value."""
    first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    message = first["msg"].removeprefix("Value error, ")
    message = f"{message[0].lower()}{message[1:]}"
    if first["type"] == "extra_forbidden":
        return f"unknown key {name!r}"
    if not name or first["type"] == "missing":
        return f"{name} {message}".strip()
    return f"{name}: {message}, got {first['input']!r}"
