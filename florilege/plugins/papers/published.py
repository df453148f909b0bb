"""The recipes of published tables: their settings, their figures, and the cost of a run.

``florilege recipes`` lists them beside our own.

``papers.yaml`` holds the tables row by row; ``costs.yaml`` what the costs are counted from.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import groupby, product
from pathlib import Path
from typing import Annotated, Any, Final

import typer
import yaml
from rich.text import Text

from florilege.data.layouts import folder, image_lists
from florilege.data.options import parse_options
from florilege.hooks import Recipe
from florilege.plugins.papers.data_sets import CIFAR_PLACE, PLANTNET_PLACE
from florilege.terminal import conclude, new_table, print_json, print_result, print_table
from florilege.training.config import Metric, MetricName

_FOLDER: Final = Path(__file__).parent
_PLACES: Final[Mapping[str, str]] = {
    "cifar-100-python": CIFAR_PLACE,
    "plantnet_300K": PLANTNET_PLACE,
    "imagenet": folder.IMAGENET_PLACE,
    "ImageNet_LT": image_lists.LISTS,
}
_FIGURE: Final = re.compile(r"(?P<percent>[\d.]+)( ± (?P<interval>.+)| \(sd (?P<deviation>.+)\))?")

Plain = Mapping[str, Any]


def _read(name: str) -> dict[str, Any]:
    # libyaml's loader, where PyYAML has it: 5 ms instead of 35.
    content: dict[str, Any] = yaml.load(
        (_FOLDER / name).read_text("utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    )
    return content


COSTS: Final = _read("costs.yaml")
_IMAGENET_CLASSES: Final = 1000
SUSTAINED: Final = 5e12
"""Operations per second that the estimates assume of a GPU in float32.

The published times amount to 3.4e12 (65 s per epoch of DenseNet 40-40, [N] 4.3) and 6.2e12 (a day
and a half of ResNet-18 on two cards, [B] 5.2), by the same count; current GPUs are faster.
"""


@dataclass(frozen=True, kw_only=True)
class PublishedFigure:
    """A figure on test photos from a published table."""

    metric: MetricName
    k: int
    percent: float
    interval: float | None = None  # half of the 95 % interval, if published
    deviation: float | None = None  # standard deviation over seeds, if published
    source: str  # such as "[A] table 1, row AVG-K"

    @property
    def name(self) -> str:
        """The metric, such as ``average-5``."""
        return str(Metric(name=self.metric, k=self.k)).removesuffix(" accuracy")

    @property
    def value(self) -> str:
        """The figure with its spread, such as ``97.35 ± 0.06`` or ``94.34 (sd 0.09)``."""
        spread = "" if self.interval is None else f" ± {self.interval:.2f}"
        spread = spread if self.deviation is None else f" (sd {self.deviation:.2f})"
        return f"{self.percent:.2f}{spread}"


@dataclass(frozen=True, kw_only=True)
class PublishedRecipe(Recipe):
    """A row of a paper's table with its figures; ``cost`` is the source of its GPU hours."""

    source: str = ""  # paper, table and row, such as "[A] table 1, row AVG-5"
    printed: tuple[PublishedFigure, ...] = ()
    departures: tuple[str, ...] = ()  # from the paper, and our choices where it is silent
    gpu_hours: float | None = None  # of a run, as published; `Cost.of` estimates others

    @property
    def heading(self) -> str:
        """Paper, table and data set, such as ``[A] table 1: cifar-100-python``."""
        return f"{self.source.partition(', row ')[0]}: {self.data}"

    @property
    def row(self) -> str:
        """The row of the table, such as ``AVG-5``."""
        return self.source.partition(", row ")[2]

    @property
    def published(self) -> str:
        """Its figures by metric, with the paper if there are several.

        Such as ``top-5 94.34 (sd 0.09) [B], 94.24 [N]; top-1 76.68 (sd 0.38) [B], 76.56 [N]``.
        """
        owners = [figure.source.partition(" ")[0] for figure in self.printed]  # such as [A]
        papers = {*owners, *re.findall(r"\[\w]", self.source)}
        values = dict[str, list[str]]()
        for figure, paper in zip(self.printed, owners, strict=True):
            owner = f" {paper}" if len(papers) > 1 else ""
            values.setdefault(figure.name, []).append(figure.value + owner)
        return "; ".join(f"{name} {', '.join(words)}" for name, words in values.items())


def _read_tables() -> dict[str, PublishedRecipe]:
    """The recipes of all tables by name, in the order of the file."""
    plain = _read("papers.yaml")
    recipes: dict[str, PublishedRecipe] = {}
    for table in plain["tables"]:
        recipes |= _recipes_of(table, plain["shared"]["departures_of_losses"])
    return recipes


def _recipes_of(
    table: Plain, of_losses: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, PublishedRecipe]]:
    """The recipes of one table: each method with each row that has a figure."""
    texts = {
        key: entry for key, entry in table.items() if key not in ("methods", "rows", "figures")
    }
    for name, (number, row) in product(table["order"], enumerate(table["rows"])):
        method, values = table["methods"][name], {**row, "method": name}
        values = {**_filled(method, values), **values}
        filled, loss = _filled(texts, values), values["loss"]
        figures = tuple(_figures(table, name, number, values))
        if "figures" in table and not figures:
            continue
        hours = _entry(table.get("gpu_hours", {}).get(name), number)
        departures = (
            *filled["departures"],
            *row.get("departures", ()),
            *_filled(method.get("departures", []), values),
            *of_losses.get(loss["name"], ()),
        )
        settings = {**filled["settings"], "loss": loss, "validation": filled["validation"]}
        recipe = PublishedRecipe(
            about=filled["about"],
            settings=settings | method.get("settings", {}),
            data=table["data"],
            data_place=_PLACES[table["data"]],
            options=filled.get("options", ""),
            source=filled["source"],
            printed=figures,
            departures=tuple(filter(None, departures)),
            gpu_hours=hours,
            cost="" if hours is None else table["cost"],
        )
        yield filled["name"], recipe


def _figures(table: Plain, method: str, number: int, values: Plain) -> Iterator[PublishedFigure]:
    """The published figures of a method in a row of the table."""
    validation = _filled(table["validation"], values)
    for part in table.get("figures", ()):
        value = _entry(part.get(method, ()), number)
        if value is None:
            continue
        figure = _FIGURE.fullmatch(str(value))
        assert figure is not None, f"papers.yaml: {value!r} is not a figure"
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


PAPERS: Final[Mapping[str, PublishedRecipe]] = _read_tables()
"""The recipes of all tables by name."""


@dataclass(frozen=True, kw_only=True)
class Cost:
    """The cost of a whole run."""

    steps: int  # of the optimiser, one per batch
    pictures: int  # seen in training
    operations: float  # of the network, validation after each epoch included
    passes: float  # the work of the whole run, in training passes of one picture
    batch: int  # pictures per step
    step_seconds: float | None  # processor seconds per step, measured on a CPU

    @property
    def gpu_hours(self) -> float:
        """An estimate: the operations at the rate of :data:`SUSTAINED`."""
        return self.operations / SUSTAINED / 3600

    @classmethod
    def of(cls, recipe: Recipe) -> "Cost | None":
        """The cost of a run of a recipe; None for a recipe for your own data."""
        if recipe.data not in COSTS["photos"]:
            return None
        settings = recipe.settings
        train, val = COSTS["photos"][recipe.data]
        _, options = parse_options(recipe.example)
        if options.per_class:
            train = options.per_class * _IMAGENET_CLASSES
        network, batch, epochs = (settings[name] for name in ("backbone", "batch_size", "epochs"))
        forward, forward_backward = COSTS["gigaflops"][network]
        passes = epochs * (train + val * forward / forward_backward)
        return cls(
            steps=epochs * -(-train // batch),
            pictures=epochs * train,
            operations=passes * forward_backward * 1e9,
            passes=passes,
            batch=batch,
            step_seconds=COSTS["step_seconds"][network].get(batch),
        )


app = typer.Typer(add_completion=False, help="List the recipes.")

_Named = tuple[str, Recipe]


@app.command("recipes")
def _recipes_command(
    as_json: Annotated[
        bool, typer.Option("--json", help="One JSON object, with all details.")
    ] = False,
) -> None:
    """List the recipes: ours, and one for each row of the papers' tables, with its figures.

    Run one with `florilege train --recipe NAME` or `florilege sweep NAME`. docs/recipes.md names
    the papers and lists every departure from them.
    """
    from florilege.training.recipes import RECIPES  # it loads the recipes above

    if as_json:
        print_json({"recipes": [_plain(name, recipe) for name, recipe in RECIPES.items()]})
        return
    _print_others([item for item in RECIPES.items() if item[0] not in PAPERS])
    for title, items in groupby(PAPERS.items(), key=lambda item: item[1].heading):
        typer.echo()
        _print_published(title, list(items))
    typer.echo()
    print_result("[A] two-head paper, [S] its supplement, [N] noised top-K, [B] smooth top-k")
    print_result("GPU h: hours of one run, published or (~) estimated; see docs/recipes.md")
    name, recipe = next(iter(PAPERS.items()))
    conclude(then=[("train", "--recipe", name, "--data", recipe.example, "--out", "RUN")])


def _plain(name: str, recipe: Recipe) -> dict[str, Any]:
    """A recipe for JSON, with the counted and estimated cost of a row."""
    cost = Cost.of(recipe)
    work = {} if cost is None else {**asdict(cost), "estimated_gpu_hours": cost.gpu_hours}
    row = recipe if isinstance(recipe, PublishedRecipe) else PublishedRecipe(**vars(recipe))
    plain = {key: value for key, value in asdict(row).items() if key != "data_place"}
    return {"name": name, **plain, "example": recipe.example, "work": work or None}


def _hours_of(recipe: Recipe) -> str:
    """GPU hours of a run: as published, or an estimate such as ``~5.2``."""
    if isinstance(recipe, PublishedRecipe) and recipe.gpu_hours is not None:
        return f"{recipe.gpu_hours:.1f}"
    cost = Cost.of(recipe)
    return "" if cost is None else f"~{cost.gpu_hours:.1f}"


def _print_others(items: list[_Named]) -> None:
    table = new_table(("recipe", "for"), words=("recipe", "for"))
    table.columns[1].no_wrap, table.columns[1].max_width = False, 65
    for name, recipe in items:
        table.add_row(name, Text(recipe.about.replace("`", "")))
    print_table(table, "ours")


def _print_published(title: str, items: list[tuple[str, PublishedRecipe]]) -> None:
    words = ("recipe", "row", "published")
    table = new_table((*words, "GPU h"), words=words)
    for name, recipe in items:
        first = re.sub(r" \(sd [\d.]+\)", "", recipe.published.partition("; ")[0])
        table.add_row(name, Text(recipe.row), Text(first or "-"), _hours_of(recipe))
    print_table(table, title)
