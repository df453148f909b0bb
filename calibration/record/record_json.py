"""Write ``calibration.json`` with all digits, and read it strictly."""

import json
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Any

from florilege.errors import BundleError

SCHEMA_VERSION = 6


def dump(content: Any) -> str:
    """JSON text of a dataclass, with one line for each list of plain values.

    Equal content gives equal text, and floats have all digits.
    """
    return _lines(content, "") + "\n"


def _lines(content: Any, margin: str) -> str:
    deeper = margin + " "
    if is_dataclass(content):
        entries = [
            f"{json.dumps(entry.name)}: {_lines(getattr(content, entry.name), deeper)}"
            for entry in fields(content)
        ]
        opening, closing = "{", "}"
    elif isinstance(content, tuple) and content and is_dataclass(content[0]):
        entries = [_lines(entry, deeper) for entry in content]
        opening, closing = "[", "]"
    else:
        return json.dumps(content, allow_nan=False, separators=(",", ":"))
    inside = f",\n{deeper}".join(entries)
    return f"{opening}\n{deeper}{inside}\n{margin}{closing}"


def parse(text: str | bytes, kind: Any) -> Any:
    """Read a record of the type ``kind``, a dataclass.

    Raises:
        BundleError: The text is damaged, incomplete, or of another schema version.
    """
    from pydantic_core import from_json  # here, so that the library needs only NumPy

    try:
        version = from_json(text)["schema_version"]
        if version != SCHEMA_VERSION:
            older = isinstance(version, int) and version < SCHEMA_VERSION
            raise BundleError(
                f"calibration.json has schema version {version}, this version reads "
                f"{SCHEMA_VERSION}: "
                + ("run `florilege calibrate BUNDLE --data DATA`" if older else "update florilege")
            )
        return _reader(kind).validate_json(text)
    except (ValueError, TypeError, KeyError) as error:
        raise BundleError(
            f"calibration.json is damaged ({_fault(error)}): calibrate the bundle again"
        ) from error


@cache
def _reader(kind: Any) -> Any:
    """A strict reader of records: every entry must have exactly its declared type."""
    from pydantic import ConfigDict, TypeAdapter

    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    optional: Any = kind | None  # pydantic takes no configuration for a plain dataclass
    return TypeAdapter(optional, config=strict)


def _fault(error: Exception) -> str:
    """The first fault and its place."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    return ": ".join(filter(None, [".".join(map(str, first["loc"])), first["msg"]]))
