"""``florilege recipes``."""

import json
import re
from dataclasses import asdict
from itertools import groupby
from typing import Annotated, Any

import typer
from rich.text import Text

from florilege.terminal import conclude, new_table, print_result, print_table
from florilege.training.recipes import RECIPES, Recipe
from florilege.training.recipes.recipe import cost_of

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
        typer.echo(
            json.dumps({"recipes": [_plain(name, recipe) for name, recipe in RECIPES.items()]})
        )
        return
    _print_ours([item for item in RECIPES.items() if not item[1].source])
    published = [item for item in RECIPES.items() if item[1].source]
    for title, items in groupby(published, key=lambda item: item[1].heading):
        typer.echo()
        _print_published(title, list(items))
    typer.echo()
    print_result("[A] two-head paper, [S] its supplement, [N] noised top-K, [B] smooth top-k")
    print_result("GPU h: hours of one run, published or (~) estimated; see docs/recipes.md")
    name, recipe = published[0]
    conclude(then=[("train", "--recipe", name, "--data", recipe.example, "--out", "RUN")])


def _plain(name: str, recipe: Recipe) -> dict[str, Any]:
    """A recipe for JSON, with the counted and estimated cost of a row."""
    cost = cost_of(recipe)
    work = {} if cost is None else {**asdict(cost), "estimated_gpu_hours": cost.gpu_hours}
    return {"name": name, **asdict(recipe), "example": recipe.example, "work": work or None}


def hours_of(recipe: Recipe) -> str:
    """GPU hours of a run: as published, or an estimate such as ``~5.2``."""
    if recipe.gpu_hours is not None:
        return f"{recipe.gpu_hours:.1f}"
    cost = cost_of(recipe)
    return "" if cost is None else f"~{cost.gpu_hours:.1f}"


def _print_ours(items: list[Named]) -> None:
    table = new_table(("recipe", "for"), words=("recipe", "for"))
    table.columns[1].no_wrap, table.columns[1].max_width = False, 65
    for name, recipe in items:
        table.add_row(name, Text(recipe.about.replace("`", "")))
    print_table(table, "ours")


def _print_published(title: str, items: list[Named]) -> None:
    words = ("recipe", "row", "published")
    table = new_table((*words, "GPU h"), words=words)
    for name, recipe in items:
        first = re.sub(r" \(sd [\d.]+\)", "", recipe.published.partition("; ")[0])
        table.add_row(name, Text(recipe.row), Text(first or "-"), hours_of(recipe))
    print_table(table, title)
