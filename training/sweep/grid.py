"""The settings of a sweep: every combination of the given values."""

import json
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final

from florilege.errors import UsageError, repeated
from florilege.training.configuration import parse_yaml

_NOT_SWEPT: Final = {
    "seed": "use --seeds N, the number of seeds of each setting",
    "data": "use --data; figures on different photos cannot be compared",
}

Changes = dict[str, Any]
"""One setting of the grid: values by the dotted names of what changes."""


def overrides_of(changes: Mapping[str, Any]) -> list[str]:
    """Changes as ``--set`` takes them."""
    return [f"{name}={json.dumps(value)}" for name, value in changes.items()]


def words_of(changes: Mapping[str, Any]) -> str:
    """Changes in words, such as ``loss.epsilon=0.1, epochs=3``."""
    return ", ".join(f"{name}={_plain(value)}" for name, value in changes.items()) or "as it is"


def points_of(over: Sequence[str]) -> list[Changes]:
    """Every combination of ``NAME=V1,V2`` texts; without texts a single one, without changes.

    Raises:
        UsageError: A text of another form, a name or value given twice, or a name that a sweep
            cannot vary.

    Example:
        >>> points_of(["loss.alpha=0.1,1", "epochs=3"])
        [{'loss.alpha': 0.1, 'epochs': 3}, {'loss.alpha': 1, 'epochs': 3}]
    """
    axes = [_axis(text) for text in over]
    names = [name for name, _ in axes]
    if twice := repeated(names):
        raise UsageError(f"--over {twice[0]} is given twice: put all its values into one --over")
    return [
        dict(zip(names, values, strict=True)) for values in product(*(values for _, values in axes))
    ]


def _axis(text: str) -> tuple[str, list[Any]]:
    name, separator, listed = text.partition("=")
    name = name.strip()
    if not (name and separator and listed.strip()):
        raise UsageError(f"--over takes NAME=V1,V2 such as loss.epsilon=0.1,0.2, got {text!r}")
    if name in _NOT_SWEPT:
        raise UsageError(f"--over {name} cannot be swept: {_NOT_SWEPT[name]}")
    values = parse_yaml(f"[{listed}]", f"--over {text!r}: the list of values")
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        raise UsageError(f"--over {text!r}: {_plain(twice[0])} is given twice")
    return name, values


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
