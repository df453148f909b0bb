"""Write the tables of `docs/recipes.md`: `python -m tests.plugins.papers.write_recipes`."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from florilege.plugins.papers.published import PAPERS, Cost, PublishedRecipe, _hours_of
from florilege.training.recipes import RECIPES, Recipe

PAGE = Path(__file__).parents[3] / "docs" / "recipes.md"
COST_COLUMNS = (
    *("data", "network", "batch", "epochs", "steps", "pictures, millions", "EFLOP"),
    *("CPU s per step", "on that core, days", "GPU h"),
)
Named = tuple[str, Recipe]
Published = tuple[str, PublishedRecipe]


def tables() -> dict[str, list[str]]:
    """The lines of each block of the page."""
    ours = [item for item in RECIPES.items() if item[0] not in PAPERS]
    published = list(PAPERS.items())
    rows = [f"| `{name}` | {recipe.about} | {recipe.cost} |" for name, recipe in ours]
    sections = [
        section(title, list(items))
        for title, items in groupby(published, key=lambda item: item[1].heading)
    ]
    head = [f"| {' | '.join(COST_COLUMNS)} |", f"{'|---' * len(COST_COLUMNS)}|"]
    return {
        "ours": ["| recipe | for | cost |", "|---|---|---|", *rows],
        "published": sections,
        "cost": [*head, *cost_lines(published)],
    }


def page() -> str:
    """The whole page with the current tables."""
    text = PAGE.read_text("utf-8")
    for name, lines in tables().items():
        begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->\n"
        before, _, rest = text.partition(begin)
        text = before + begin + "\n".join(lines) + "\n" + end + rest.partition(end)[2]
    return text


def section(title: str, items: Sequence[Published]) -> str:
    """One table of a paper, and the departures of its recipes."""
    optional = any(each.options for _, each in items)
    columns = ["recipe", "row", *(["`--data`"] if optional else []), "published", "GPU h"]
    lines = [f"### {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, each in items:
        data = [f"`{each.example}`"] if optional else []
        cells = (f"`{name}`", each.row, *data, each.published or "-", _hours_of(each))
        lines.append(f"| {' | '.join(cells)} |")
    hours = dict.fromkeys(each.cost for _, each in items if each.gpu_hours)
    result = [f"Published GPU hours: {cost}." for cost in hours]
    silent = "Departures from the paper, and our choices where it is silent:"
    return "\n\n".join(["\n".join(lines), *result, silent, "\n".join(_departures(items))]) + "\n"


def cost_lines(items: Sequence[Named]) -> list[str]:
    """A line for each network, batch size and data set."""
    results = dict[str, None]()
    for _, recipe in items:
        cost, settings = Cost.of(recipe), recipe.settings
        assert cost is not None
        data = recipe.data if "noise" in recipe.options else recipe.example
        hours = processor_hours(cost)
        days = "" if hours is None else f"{hours / 24:.3g}"
        cells = (
            f"`{data}`",
            settings["backbone"],
            settings["batch_size"],
            settings["epochs"],
            f"{cost.steps:,}",
            f"{cost.pictures / 1e6:.4g}",
            f"{cost.operations / 1e18:.3g}",
            "" if cost.step_seconds is None else f"{cost.step_seconds:.3g}",
            days,
            f"{cost.gpu_hours:.3g}",
        )
        results[f"| {' | '.join(map(str, cells))} |"] = None
    return list(results)


def processor_hours(cost: Cost) -> float | None:
    """Hours of one core like the measured one."""
    if cost.step_seconds is None:
        return None
    return cost.step_seconds * cost.passes / cost.batch / 3600


def _departures(items: Sequence[Published]) -> Iterator[str]:
    for departure in dict.fromkeys(each for _, recipe in items for each in recipe.departures):
        yield f"- {departure}{_whose(departure, items)}"


def _whose(departure: str, items: Sequence[Published]) -> str:
    """Which recipes a departure belongs to, in few words; empty for all."""
    those = [each for _, each in items if departure in each.departures]
    if len(those) == len(items):
        return ""
    if all(each.options for each in those) and len(those) == sum(bool(r.options) for _, r in items):
        return " (rows with wrong labels)"
    kinds: tuple[Callable[[Recipe], str], ...] = (
        lambda each: each.settings["loss"]["name"],
        lambda each: each.settings["backbone"],
    )
    for kind in kinds:
        values = dict.fromkeys(map(kind, those))
        if len(those) == sum(kind(each) in values for _, each in items):
            return f" ({', '.join(f'`{value}`' for value in values)})"
    raise AssertionError(departure)


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
