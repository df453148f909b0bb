"""The settings that a sweep goes over: every combination of the values given."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Final

import yaml

from florilege.errors import UsageError
from florilege.training.configuration import parse_values

_OTHERWISE: Final = {
    "seed": "--seeds N takes as many seeds of each setting",
    "data": "--data; figures on other photos cannot be compared",
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
    """Every combination of ``NAME=V1,V2`` texts; a single one without changes for none.

    Raises:
        UsageError: A text of another form, a name or value given twice, or a name that is not for
            a sweep.

    Example:
        >>> points_of(["loss.alpha=0.1,1", "epochs=3"])
        [{'loss.alpha': 0.1, 'epochs': 3}, {'loss.alpha': 1, 'epochs': 3}]
    """
    axes = [_axis(text) for text in over]
    twice = [name for name, count in Counter(name for name, _ in axes).items() if count > 1]
    if twice:
        raise UsageError(f"--over {twice[0]} is given twice: put all its values into one")
    names = [name for name, _ in axes]
    return [
        dict(zip(names, values, strict=True)) for values in product(*(values for _, values in axes))
    ]


def _axis(text: str) -> tuple[str, list[Any]]:
    name, separator, listed = text.partition("=")
    name = name.strip()
    if not (name and separator and listed.strip()):
        raise UsageError(f"--over takes NAME=V1,V2 such as loss.epsilon=0.1,0.2, got {text!r}")
    if name in _OTHERWISE:
        raise UsageError(f"--over {name} is not for a sweep: {_OTHERWISE[name]}")
    try:
        values = parse_values(listed)
    except yaml.YAMLError as error:
        raise UsageError(f"--over {text!r}: the values are not YAML: {error}") from error
    twice = [value for place, value in enumerate(values) if value in values[:place]]
    if twice:
        raise UsageError(f"--over {text!r}: {_plain(twice[0])} is there twice")
    return name, values


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
