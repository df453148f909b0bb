"""Write `docs/recipes.md` from the recipes: `python -m tests.training.write_recipes`."""

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from pathlib import Path

from florilege.training.recipes import RECIPES, Recipe
from florilege.training.recipes.cli import hours_of
from florilege.training.recipes.cost import SUSTAINED, Cost, cost_of

MEASURED = """one thread of an Intel Xeon
  with AVX-512, torch 2.15, fp32, with other work on the machine (`python -m
  benchmarks.sets.recipes --each network --steps 1`, the step after a first one, 2026-11-22,
  commit c28f70f; DenseNet 40-40 ten steps, 2026-11-23, commit 034378e). Batches of 256
  did not fit into memory and are four of 64. *On that core* is the whole run at that speed"""
STARTING = "all of them did (2026-11-23, commit 6545e23)"

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"
HEAD = """# Recipes

`python -m tests.training.write_recipes` generates this page. `florilege recipes` lists the recipes,
with `--json` in full. `florilege train --recipe NAME --data DATA` trains one; `florilege sweep NAME
--data DATA --seeds 3` trains several seeds ([training.md](training.md#sweeps)).

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

Figures are published percentages of test photos, ± half of the 95 % interval or with the standard
deviation over seeds (sd) if the paper has one, and with the paper if several have the row. The
data: [data.md](data.md#published-data-sets). [losses.md](losses.md#departures-from-the-papers)
lists all departures of the losses.
**None of these rows has been measured here in full**; each has been started. GPU hours are
published or, with ~, estimated ([Cost](#cost)). A recipe of a row with options, such as
`noise=0.2`, adds them to `--data` unless it has options already. All compute in float32
(`--set precision=bf16` is faster on a GPU).
"""

COST_COLUMNS = (
    *("data", "network", "batch", "epochs", "steps", "pictures, millions", "EFLOP"),
    *("CPU s per step", "on that core, days", "GPU h"),
)
COST = f"""## Cost

The cost of a run of a row, one line for each network, batch size and data set. Losses of one
network differ by less than a percent ([losses.md](losses.md#cost)), but in the papers
the smooth loss takes 1.2 times as long on CIFAR-100 ([N] 4.3) and 1.1 times on ImageNet ([B] 5.2).

- Steps, pictures and **EFLOP** (10^18 operations, a multiply and an add count as two) are counted:
  torch's own counter for forward and backward of a picture, and validation after each epoch.
- **CPU s per step** was measured: processor seconds of {MEASURED}.
- **GPU h** is an estimate, not a measurement: operations divided by 3600 s and by
  {SUSTAINED / 1e12:g} TFLOP/s, which a GPU is assumed to sustain in float32. The published times
  amount to 3.4 (DenseNet 40-40, [N] 4.3) and 6.2 TFLOP/s per card (ResNet-18 on two Titan Xp, [B]
  5.2); current GPUs are faster.

`python -m benchmarks.sets.recipes NAME --device cuda --steps 300` measures a row on a GPU, on
synthetic data with the published layout and classes and about the published sizes; without a name
it measures all rows, and with `--each loss` one for each network and loss. `python -m
benchmarks.sets.recipes --batch-size 2 --steps 1` starts all {{rows}} on a CPU, each with its own
network, picture size, classes and loss, through validation to a finished run: {STARTING}.

| {" | ".join(COST_COLUMNS)} |
{"|---" * len(COST_COLUMNS)}|
"""

Named = tuple[str, Recipe]


def page() -> str:
    """The whole page."""
    ours = [item for item in RECIPES.items() if not item[1].source]
    published = [item for item in RECIPES.items() if item[1].source]
    lines = [f"| `{name}` | {recipe.about} | {recipe.cost} |" for name, recipe in ours]
    sections = [
        section(title, list(items))
        for title, items in groupby(published, key=lambda item: item[1].heading)
    ]
    costs = [COST.format(rows=len(published)).rstrip("\n"), *cost_lines(published)]
    return "\n".join([HEAD.rstrip("\n"), *lines, PUBLISHED, *sections, *costs, ""])


def section(title: str, items: Sequence[Named]) -> str:
    """One table of a paper, and the departures of its recipes."""
    optional = any(each.options for _, each in items)
    columns = ["recipe", "row", *(["`--data`"] if optional else []), "published", "GPU h"]
    lines = [f"### {title}", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for name, each in items:
        data = [f"`{each.example}`"] if optional else []
        cells = (f"`{name}`", each.row, *data, each.published or "-", hours_of(each))
        lines.append(f"| {' | '.join(cells)} |")
    hours = dict.fromkeys(each.cost for _, each in items if each.gpu_hours)
    result = [f"Published GPU hours: {cost}." for cost in hours]
    silent = "Departures from the paper, and our choices where it is silent:"
    return "\n\n".join(["\n".join(lines), *result, silent, "\n".join(_departures(items))]) + "\n"


def cost_lines(items: Sequence[Named]) -> list[str]:
    """A line for each network, batch size and data set."""
    results = dict[str, None]()
    for _, recipe in items:
        cost, settings = cost_of(recipe), recipe.settings
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


def _departures(items: Sequence[Named]) -> Iterator[str]:
    for departure in dict.fromkeys(each for _, recipe in items for each in recipe.departures):
        yield f"- {departure}{_whose(departure, items)}"


def _whose(departure: str, items: Sequence[Named]) -> str:
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
