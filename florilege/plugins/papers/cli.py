"""``florilege recipes``."""

import re
from dataclasses import asdict
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.text import Text

from florilege.plugins.papers.published import PAPERS, Cost, PublishedRecipe
from florilege.terminal import conclude, new_table, print_json, print_result, print_table
from florilege.training.recipes import RECIPES, Recipe

app = typer.Typer(add_completion=False, help="List the recipes.")

Named = tuple[str, Recipe]


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


def _print_others(items: list[Named]) -> None:
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
