"""``florilege train``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer
from pydantic import create_model

from florilege.settings import Flag, FlagSettings, fields_of, flags_of
from florilege.terminal import is_first, is_step, say, show
from florilege.training.config import DEFAULT_LOSS, TrainConfig

if TYPE_CHECKING:
    from florilege.training.train import TrainResult

app = typer.Typer(no_args_is_help=True, add_completion=False, help="Train a network.")

FLAGS: Final = (
    *("data", "recipe", "backbone", "loss", "epochs", "batch_size", "image_size", "seed"),
    *("device", "weights", "freeze", "features", "unfreeze", "skip_damaged", "skip_doubtful"),
)
"""The settings with a flag of their own; ``--set`` takes any setting."""
PANELS: Final = {
    "Pictures and machine": ("batch_size", "image_size", "seed", "device", "skip_damaged"),
    "Parts of a network": ("features", "unfreeze", "skip_doubtful"),
}
"""Headings of ``train --help``, each with its settings; the others are described first."""


def flags_for(*names: str) -> Any:
    """The settings of these names as flags: None if not given; help and defaults as configured."""
    return create_model("Flags", __base__=FlagSettings, **{name: _flag_of(name) for name in names})


def _flag_of(name: str) -> Any:
    setting = fields_of(TrainConfig)[name]
    default = DEFAULT_LOSS if name == "loss" else setting.get("default")
    switch = setting.get("type") == "boolean"  # one flag, without a --no-
    flag = Flag(
        name=f"--{name.replace('_', '-')}" if switch else None,
        metavar="DATA" if name == "data" else None,
        default=None if default is None or switch else str(default),
        help=" ".join(setting["description"].split()),
    )
    first = setting.get("anyOf", [setting])[0]  # the other one is null
    kind = {"integer": int, "boolean": bool}.get(str(first.get("type")), str)
    return Annotated[kind | None, flag], None


@app.command("train")
@flags_of(flags_for(*FLAGS), PANELS)
def _train_command(
    settings: FlagSettings,
    out: Annotated[
        Path, typer.Option("--out", metavar="RUN", help="New run folder, or the one to --resume.")
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="NAME=VALUE", help="Any setting, such as loss.alpha=1.0."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    config: Annotated[
        Path | None, typer.Option(help="YAML file of settings, such as the config.yaml of a run.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object at the end.")] = False,
) -> None:
    """Train a network on labelled photos.

    Writes the weights with the best accuracy on `val`, curves and a report to the run folder.
    After Ctrl-C, --resume continues the run to exactly the same result.
    """
    # Here, because torch takes seconds and --help does without.
    from florilege.training.configuration import RunFolder, resolve
    from florilege.training.train import train_run

    folder = RunFolder(out)
    resumed = resume and folder.config.is_file()
    file = config or (folder.config if resumed else None)
    resolved = resolve(settings.model_dump(), overrides=overrides or [], config=file)
    if is_first():
        say(f"reading the photos of {resolved.data}")
    try:
        result = train_run(resolved, out, resume=resume)
    except KeyboardInterrupt:
        _explain_early_stop(folder.last, features_stay=resolved.freeze is not None)
        raise
    if is_first():
        show(
            result,
            [f"{out}: {_summary(result)}"],
            as_json=as_json,
            notes=[f"the run with its curves is in {out}: see {folder.report}"],
            then=[("export", out, "--out", _bundle_of(out))],
        )


def _explain_early_stop(checkpoint: Path, *, features_stay: bool) -> None:
    """Say that there is nothing to resume, unless the loop or a longer command gives hints."""
    if not (checkpoint.exists() or is_step()) and is_first():
        note = "; features computed so far are kept" if features_stay else ""
        say(f"stopped before the first step: nothing to resume, start again{note}")


def _summary(result: "TrainResult") -> str:
    """What a run has reached, in words."""
    if result.accuracy is None:
        return "initial weights written"
    best = f"epoch {result.best_epoch} is best"
    if result.weight_decay is not None:
        best = f"weight decay {result.weight_decay:g}"
    return (
        f"{best}: {result.accuracy * 100:.2f} % of the sets on val hold the right class "
        f"(size {result.set_size})"
    )


def _bundle_of(run: Path) -> Path:
    """The suggested bundle folder of a run: ``bundles/a`` for ``runs/a``."""
    if run.parent.name == "runs":
        return run.parent.with_name("bundles") / run.name
    return run.with_name(f"{run.name}-bundle")
