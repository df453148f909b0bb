"""``florilege sweep``."""

import json
import os
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from florilege.errors import UsageError, repeated
from florilege.plugins.papers.sweep_record import (
    FILE,
    PICTURE,
    Changes,
    Mean,
    Record,
    value_text,
    words_of,
)
from florilege.settings import FlagSettings, flags_of
from florilege.terminal import conclude, new_table, print_json, print_table, warn
from florilege.training.cli import FLAGS, PANELS, flags_for
from florilege.training.config import TrainConfig

app = typer.Typer(add_completion=False, help="Train a recipe over a grid of settings and seeds.")
_SweepFlags = flags_for(*(name for name in FLAGS if name != "recipe"))
_PANELS: Final = {"Network": ("backbone", "weights", "freeze"), **PANELS}
_NOT_SWEPT: Final = {
    "seed": "use --seeds N, the number of seeds of each setting",
    "data": "use --data; figures on different photos cannot be compared",
}


@app.command("sweep")
@flags_of(_SweepFlags, _PANELS)
def _sweep_command(
    recipe: Annotated[
        str, typer.Argument(metavar="RECIPE", help="Name of a recipe; `florilege recipes` lists.")
    ],
    settings: FlagSettings,
    out: Annotated[
        Path, typer.Option("--out", metavar="FOLDER", help="New folder, or the one to --resume.")
    ],
    over: Annotated[
        list[str] | None,
        typer.Option(
            "--over",
            metavar="NAME=V1,V2",
            help="Values of a setting, such as loss.epsilon=0.1,0.2; repeat to try every "
            "combination.",
        ),
    ] = None,
    seeds: Annotated[
        int, typer.Option(min=1, help="Number of seeds per setting, counting up from --seed.")
    ] = 3,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting, the same in all runs."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue a stopped sweep.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object at the end.")] = False,
) -> None:
    """Train a recipe over a grid of settings, with several seeds each, and compare.

    The setting with the best mean accuracy on `val` is chosen, and only its runs are measured on
    `test`: means over the seeds with 95 % intervals, as a table, a plot and FOLDER/results.json.
    After any interruption, the same command with --resume continues.
    """
    # Here, because torch takes seconds and --help does without.
    from florilege.plugins.papers.sweep import sweep
    from florilege.training.configuration import resolve

    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise UsageError("start a sweep without torchrun: it already trains a run on each GPU")
    flags = settings.model_dump()
    first, points = flags.get("seed") or 0, _points_of(over or [])

    def config_of(changes: Changes, seed: int) -> TrainConfig:
        words = [*(overrides or []), *_overrides_of(changes)]
        config = resolve({**flags, "recipe": recipe, "seed": seed}, overrides=words)
        folder = config.features or str(out / "features")  # one for all runs
        return config.model_copy(update={"features": folder}) if config.freeze else config

    record = sweep(config_of, points, range(first, first + seeds), out, resume=resume)
    if as_json:
        print_json({"out": str(out), **record.to_plain()})
    else:
        _print(record)
        bundles = [("serve", out / "bundles" / f"seed-{run.seed}") for run in record.chosen()]
        picture = [f"the curves are in {out / PICTURE}"] if bundles else []
        conclude(f"all figures are in {out / FILE}", *picture, then=bundles[:1])
    record.check_complete()


def _print(record: Record) -> None:
    """Print the settings with their accuracy on val, then the figures of the best one on test."""
    count = len(record.request["seeds"])
    if count == 1:
        warn("one seed: there is no interval, and other seeds may give other figures")
    over = f"means of {count} seeds with 95 % intervals" if count > 1 else "1 seed"
    best_runs = record.chosen()
    table = new_table(("setting", "val", ""), words=("setting", ""))
    for runs, mean in record.points():
        mark = "chosen" if runs == best_runs else "" if mean else "failed"
        table.add_row(words_of(runs[0].changes), str(mean or "-"), mark)
    print_table(table, f"sets on val with the right class{record.sets}, %, {over}")
    if best_runs:
        typer.echo()
        _print_test(record.tested(), over)


def _print_test(tested: Mapping[str, Mapping[float, Mapping[str, Mean]]], over: str) -> None:
    table = new_table(("K", "average-K", "macro", "set size", "top-K", "macro"))
    for k, average in tested["average_k"].items():
        size, top = average["mean_set_size"], tested["top_k"].get(k)
        spread = "" if size.half is None else f" ± {size.half:.2f}"
        table.add_row(
            f"{k:g}",
            str(average["hit_rate"]),
            str(average["macro_hit_rate"]),
            f"{size.mean:.2f}{spread}",
            *((str(top["hit_rate"]), str(top["macro_hit_rate"])) if top else ("", "")),
        )
    print_table(table, f"on test, %, {over}")


def _points_of(over: Sequence[str]) -> list[Changes]:
    """Every combination of ``NAME=V1,V2`` texts; without texts a single one, without changes.

    Raises:
        UsageError: A text of another form, a name or value given twice, or a name that a sweep
            cannot vary.

    Example:
        >>> _points_of(["loss.alpha=0.1,1", "epochs=3"])
        [{'loss.alpha': 0.1, 'epochs': 3}, {'loss.alpha': 1, 'epochs': 3}]
    """
    axes = [_axis(text) for text in over]
    names = [name for name, _ in axes]
    if twice := repeated(names):
        raise UsageError(f"--over {twice[0]} is given twice: put all its values into one --over")
    return [
        dict(zip(names, values, strict=True)) for values in product(*(values for _, values in axes))
    ]


def _axis(text: str) -> tuple[str, list[Any]]:
    name, separator, listed = text.partition("=")
    name = name.strip()
    if not (name and separator and listed.strip()):
        raise UsageError(f"--over takes NAME=V1,V2 such as loss.epsilon=0.1,0.2, got {text!r}")
    from florilege.training.configuration import parse_yaml

    if name in _NOT_SWEPT:
        raise UsageError(f"--over {name} cannot be swept: {_NOT_SWEPT[name]}")
    values = parse_yaml(f"[{listed}]", f"--over {text!r}: the list of values")
    twice = [value for index, value in enumerate(values) if value in values[:index]]
    if twice:
        raise UsageError(f"--over {text!r}: {value_text(twice[0])} is given twice")
    return name, values


def _overrides_of(changes: Mapping[str, Any]) -> list[str]:
    """Changes as ``--set`` takes them."""
    return [f"{name}={json.dumps(value)}" for name, value in changes.items()]
