"""How a run departs from its recipe, so that its figures are not taken for published ones."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from florilege.data.training_split import parse_options
from florilege.training.config import TrainConfig
from florilege.training.configuration import resolve
from florilege.training.recipes import RECIPES
from florilege.training.recipes.cost import cost_of
from florilege.training.sweep.sweep_record import PER_RUN


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
    return dict(_flat(plain)) | asdict(options)


def _flat(plain: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in plain.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
