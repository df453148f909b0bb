"""Dataclasses from what JSON gives, every entry checked against its annotation."""

import types
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from math import isfinite
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

T = TypeVar("T")


def from_plain(kind: type[T], plain: object, place: str = "") -> T:
    """An object of a dataclass, built from a mapping of its attributes.

    Understands what records are made of: dataclasses, tuples, ``Literal``, ``None``,
    ``bool``, ``int``, ``float`` (finite) and ``str``, and unions of these.

    Args:
        kind: The dataclass.
        plain: What ``json.loads`` gave.
        place: Where it stands, for messages.

    Raises:
        ValueError: An entry is missing, unknown or of another type; the message names its place.

    Example:
        >>> from calibration.record.by_shots import ShotGroup
        >>> from_plain(ShotGroup, {"name": "few", "classes": "2"})
        Traceback (most recent call last):
        ValueError: hit_ci95 is missing
    """
    value: T = _read(kind, plain, place)
    return value


def _read(kind: Any, plain: Any, place: str) -> Any:
    if is_dataclass(kind):
        return _read_fields(kind, plain, place)
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return _read_union(inner, plain, place)
    if origin is tuple and isinstance(plain, list):
        kinds = inner[:1] * len(plain) if inner[1:] == (...,) else inner
        if len(kinds) == len(plain):
            return tuple(
                _read(kind, entry, f"{place}[{index}]")
                for index, (kind, entry) in enumerate(zip(kinds, plain, strict=True))
            )
    if origin is Literal and plain in inner and not isinstance(plain, bool):
        return plain
    if kind is float and type(plain) in (int, float) and isfinite(plain):
        return float(plain)
    if kind in (bool, int, str) and type(plain) is kind:
        return plain
    raise ValueError(f"{place} must be {_name(kind)}, got {_short(plain)}")


def _read_fields(kind: Any, plain: Any, place: str) -> Any:
    if not isinstance(plain, Mapping):
        raise ValueError(f"{place or 'the record'} must be an object, got {_short(plain)}")
    hints, before = get_type_hints(kind), f"{place}." if place else ""
    known = {field.name: field for field in fields(kind) if field.init}
    needed = {
        name for name, field in known.items()
        if field.default is MISSING and field.default_factory is MISSING
    }  # fmt: skip
    for names, what in ((set(plain) - set(known), "unknown"), (needed - set(plain), "missing")):
        if names:
            raise ValueError(f"{before}{min(names)} is {what}")
    return kind(**{name: _read(hints[name], plain[name], before + name) for name in plain})


def _read_union(kinds: tuple[Any, ...], plain: Any, place: str) -> Any:
    if plain is None and type(None) in kinds:
        return None
    others = [kind for kind in kinds if kind is not type(None)]
    for kind in others[:-1]:
        try:
            return _read(kind, plain, place)
        except ValueError:
            continue
    return _read(others[-1], plain, place)


def _name(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(map(repr, get_args(kind)))
    if get_origin(kind) is tuple:
        return "a list"
    return {float: "a finite number", int: "a whole number", bool: "true or false"}.get(
        kind, "text"
    )


def _short(plain: object) -> str:
    text = repr(plain)
    return text if len(text) <= 40 else f"{text[:37]}..."
