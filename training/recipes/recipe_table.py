"""Read ``recipes.yaml``: our recipes as they are, the papers' tables row by row."""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import yaml

from florilege.training.recipes.recipe import PublishedFigure, Recipe

_FIGURE: Final = re.compile(r"(?P<percent>[\d.]+)( ± (?P<interval>.+)| \(sd (?P<deviation>.+)\))?")

Plain = Mapping[str, Any]


def read_yaml(name: str) -> dict[str, Any]:
    """Read a YAML file of this folder."""
    text = Path(__file__).with_name(name).read_text("utf-8")
    content: dict[str, Any] = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    return content


def read_recipes() -> dict[str, Recipe]:
    """All recipes by name, in the order of the file."""
    plain = read_yaml("recipes.yaml")
    recipes = {name: Recipe(**{"settings": {}, **fields}) for name, fields in plain["ours"].items()}
    for table in plain["tables"]:
        recipes |= _recipes_of(table, plain["shared"]["departures_of_losses"])
    return recipes


def _recipes_of(
    table: Plain, of_losses: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, Recipe]]:
    """The recipes of one table: each method with each row that has a figure."""
    for name in table["order"]:
        method = table["methods"][name]
        for number, row in enumerate(table["rows"]):
            values = {**row, "method": name}
            values = {**_filled(method, values), **values}
            figures = tuple(_figures(table, name, number, values))
            if "figures" in table and not figures:
                continue
            hours = _entry(table.get("gpu_hours", {}).get(name), number)
            loss = values["loss"]
            departures = (
                *_filled(table["departures"], values),
                *row.get("departures", ()),
                *_filled(method.get("departures", []), values),
                *of_losses.get(loss["name"], ()),
            )
            yield (
                _filled(table["name"], values),
                Recipe(
                    about=_filled(table["about"], values),
                    settings={
                        **_filled(table["settings"], values),
                        "loss": loss,
                        "validation": _filled(table["validation"], values),
                        **method.get("settings", {}),
                    },
                    data=table["data"],
                    options=_filled(table.get("options", ""), values),
                    source=_filled(table["source"], values),
                    printed=figures,
                    departures=tuple(filter(None, departures)),
                    gpu_hours=hours,
                    cost="" if hours is None else table["cost"],
                ),
            )


def _figures(table: Plain, method: str, number: int, values: Plain) -> Iterator[PublishedFigure]:
    """The published figures of a method in a row of the table."""
    validation = _filled(table["validation"], values)
    for part in table.get("figures", ()):
        value = _entry(part.get(method, ()), number)
        if value is None:
            continue
        figure = _FIGURE.fullmatch(str(value))
        assert figure is not None, f"recipes.yaml: {value!r} is not a figure"
        yield PublishedFigure(
            metric=part.get("metric", validation["metric"]),
            k=part.get("k", validation["k"]),
            source=_filled(part["source"], values),
            **{key: float(text) for key, text in figure.groupdict().items() if text is not None},
        )


def _entry(entries: Any, number: int) -> Any:
    """The entry of a list for a row, None beyond its end; other values hold for every row."""
    if not isinstance(entries, Sequence):
        return entries
    return entries[number] if number < len(entries) else None


def _filled(plain: Any, values: Plain) -> Any:
    """``plain`` with each ``{name}`` replaced by its value, as a number if it is the whole text."""
    match plain:
        case str():
            alone = plain.removeprefix("{").removesuffix("}")
            if plain == f"{{{alone}}}" and alone in values:
                return values[alone]
            return plain.format_map(values)
        case Mapping():
            return {key: _filled(value, values) for key, value in plain.items()}
        case list():
            return [_filled(value, values) for value in plain]
        case _:
            return plain
