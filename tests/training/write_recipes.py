"""Write `docs/recipes.md` from the recipes themselves: `python -m tests.training.write_recipes`."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

from training.recipes import RECIPES, Recipe
from training.recipes.cli import heading, row

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
HEAD = """# Recipes

Written from the recipes themselves (`python -m tests.training.write_recipes`); `florilege recipes`
lists them, with `--json` all that is here. `florilege train --recipe NAME --data DATA` trains one,
`florilege sweep NAME --data DATA --seeds 3` with several seeds and the test figures beside those in
print ([training.md](training.md#sweeps)).

## Ours

| recipe | for | cost |
|---|---|---|
"""
PUBLISHED = """
## Rows of the papers

- [A] Garcin, Servajean, Salmon, Joly: *A two-head loss function for deep average-K classification*,
  2023 (hal-04204318); [S] its supplement.
- [N] Garcin, Servajean, Joly, Salmon: *Stochastic smoothing of the top-K calibrated hinge loss for
  deep imbalanced classification*, ICML 2022; version 2 is arXiv 2202.02193.
- [B] Berrada, Zisserman, Kumar: *Smooth loss functions for deep top-k classification*, ICLR 2018.

Figures are percentages of test photos as printed, ± half of the 95 % interval where there is one.
**None of these rows has been measured here in full.** GPU hours are an estimate from what is in
print; where there is none, nothing is known. A recipe of a row with options, such as `noise=0.2`,
adds them to `--data` unless it names them itself. All compute in float32 (`--set precision=bf16` is
faster on a GPU).
"""

Named = tuple[str, Recipe]


def page() -> str:
    """The whole page."""
    ours = [item for item in RECIPES.items() if not item[1].source]
    published = [item for item in RECIPES.items() if item[1].source]
    lines = [f"| `{name}` | {recipe.about} | {recipe.cost} |" for name, recipe in ours]
    sections = [
        section(title, list(items))
        for title, items in groupby(published, key=lambda item: heading(item[1]))
    ]
    return "\n".join([HEAD.rstrip("\n"), *lines, PUBLISHED, "\n".join(sections)])


def section(title: str, items: Sequence[Named]) -> str:
    """One table of a paper, and how its recipes depart from it."""
    lines = [
        f"### {title}",
        "",
        "| recipe | row | data | in print | GPU h |",
        "|---|---|---|---|---|",
    ]
    for name, each in items:
        figures = "; ".join(str(figure) for figure in each.printed)
        hours = "" if each.gpu_hours is None else f"{each.gpu_hours:.1f}, {each.cost}"
        lines.append(f"| `{name}` | {row(each)} | `{each.example}` | {figures} | {hours} |")
    silent = "Departures from print, and what is ours where print is silent:"
    return "\n".join([*lines, "", silent, "", *_departures(items), ""])


def _departures(items: Sequence[Named]) -> Iterator[str]:
    for departure in dict.fromkeys(each for _, recipe in items for each in recipe.departures):
        names = [f"`{name}`" for name, recipe in items if departure in recipe.departures]
        yield f"- {departure}" + ("" if len(names) == len(items) else f" ({', '.join(names)})")


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
