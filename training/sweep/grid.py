"""The settings of a sweep: every combination of the given values, and what they change."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, Final

import yaml

from florilege.data.options import parse_options
from florilege.errors import UsageError
from florilege.training.config import TrainConfig
from florilege.training.configuration import parse_values, resolve
from florilege.training.recipes import RECIPES
from florilege.training.recipes.cost import cost_of
from florilege.training.run_folder import MAY_CHANGE

_NOT_SWEPT: Final = {
    "seed": "use --seeds N, the number of seeds of each setting",
    "data": "use --data; figures on different photos cannot be compared",
}
PER_RUN: Final = ("seed", *(name for name in MAY_CHANGE if name != "epochs"))
"""Settings that are not part of the request of a sweep."""

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
    twice = [name for name, count in Counter(name for name, _ in axes).items() if count > 1]
    if twice:
        raise UsageError(f"--over {twice[0]} is given twice: put all its values into one --over")
    names = [name for name, _ in axes]
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
    try:
        values = parse_values(listed)
    except yaml.YAMLError as error:
        raise UsageError(f"--over {text!r}: the values are not YAML: {error}") from error
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        raise UsageError(f"--over {text!r}: {_plain(twice[0])} is given twice")
    return name, values


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def changed_settings(config: TrainConfig, learned_from: int) -> list[str]:
    """Differences from the recipe of a run that may change its figures, such as ``epochs=4``.

    Data other than the published ones are detected by their number of training photos. Options of
    the data count, such as ``noise=0.2`` if the recipe has none. The path of the data, the seed and
    the settings that a resumed run may change do not count, except ``epochs``.
    """
    path, _ = parse_options(config.data)
    recipe_values = _values(resolve({"recipe": config.recipe, "data": path}))
    values = _values(config)
    names = dict.fromkeys([*values, *recipe_values])
    changes = [
        f"{name}={values.get(name)}"
        for name in names
        if values.get(name) != recipe_values.get(name)
    ]
    cost = cost_of(RECIPES[config.recipe])
    if cost is not None and (photos := cost.pictures // recipe_values["epochs"]) != learned_from:
        changes.append(f"{learned_from:,} training photos instead of {photos:,}")
    return changes


def _values(config: TrainConfig) -> dict[str, Any]:
    """Settings by their dotted names, and options of the data."""
    plain = {name: value for name, value in config.to_plain().items() if name not in PER_RUN}
    _, options = parse_options(plain.pop("data"))
    del plain["recipe"]
    return dict(_flat(plain)) | options.model_dump()


def _flat(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
