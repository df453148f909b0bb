"""``florilege calibrate`` and ``florilege evaluate``."""

from pathlib import Path
from typing import Annotated, Final

import typer

from florilege.calibration.commands import BundlePath
from florilege.calibration.settings import CalibrateCommand, CalibrationSettings, EvaluateCommand
from florilege.errors import UsageError
from florilege.settings import flags_of

_WITH_SCORE_LOG = {"--score-log", "--approve", "--device", "--json", "--config"}
"""Flags of ``calibrate`` that work with ``--score-log``."""

app = typer.Typer(help="Choose and check the thresholds of a bundle.")

_PANELS: Final = {
    "From traffic, without labels": ("score_log", "approve"),
    "Computing": ("device", "ray", "ray_workers", "output_cache", "runtime", "precision"),
    "Scores": ("head", "score_kind", "temperatures", "min_size", "macro_weight"),
    "Promises about new photos": ("delta", "max_size", "label_noise"),
    "Photos of something else": ("rejection_method", "suspect_share"),
    "Lists, places, several photos": ("list_files", "occurrences", "views_wanted"),
}
"""Headings of ``calibrate --help``, each with its settings; the others are described first."""


@app.command("calibrate")
@flags_of(CalibrationSettings, _PANELS)
@flags_of(CalibrateCommand, _PANELS)
def _calibrate_command(
    ctx: typer.Context,
    bundle: BundlePath,
    command: CalibrateCommand,
    settings: CalibrationSettings,
) -> None:
    """Choose every threshold of a bundle on validation photos and store them in the bundle.

    With --score-log, choose the thresholds on unlabelled traffic, for the K of the last
    calibration. This prints the changes; add --approve to store them.
    """
    # Here, because it opens networks and photos, and --help does without.
    from florilege.calibration.commands import threshold_commands

    if command.score_log is not None:
        if command.data is not None or command.report is not None:
            raise UsageError("--score-log calibrates from traffic: leave out --data and --report")
        if others := ", ".join(sorted(_typed_flags(ctx) - _WITH_SCORE_LOG)):
            raise UsageError(f"--score-log takes its settings from the bundle: leave out {others}")
        threshold_commands.recalibrate(bundle, command.score_log, command)
        return
    if command.data is None:
        raise UsageError("--data is missing: name the photos to calibrate on, or --score-log LOG")
    if command.approve:
        raise UsageError("--approve needs --score-log LOG")
    if command.ray_workers is not None and not command.ray:
        raise UsageError("--ray-workers needs --ray")
    threshold_commands.calibrate(bundle, command.data, command, settings)


@app.command("evaluate")
@flags_of(EvaluateCommand, {"Computing": ("device", "runtime", "output_cache")})
def _evaluate_command(
    bundle: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE",
            help="Folder of the bundle, or of a run, which is first exported and calibrated.",
        ),
    ],
    command: EvaluateCommand,
) -> None:
    """Measure the sets of a calibrated bundle on photos it was not calibrated on.

    With --gate, the exit code is 5 if the bundle is worse than --baseline by more than allowed.
    """
    # Here, because it opens networks and photos, and --help does without.
    from florilege.calibration.commands import threshold_commands

    _check_flags(command)
    threshold_commands.evaluate(bundle, command)


def _check_flags(command: EvaluateCommand) -> None:
    """Refuse flags that conflict, or that need photos without any."""
    if command.data is None and command.feedback_store is None:
        raise UsageError("--data is missing: name photos to measure on, or --feedback-store DIR")
    names = ("baseline", "report", "label_noise")
    flags = [name for name in names if getattr(command, name) is not None]
    if flags and command.data is None:
        raise UsageError(f"--{flags[0].replace('_', '-')} needs photos: name them with --data")
    if {"baseline", "label_noise"} <= {*flags}:
        raise UsageError("--baseline takes labels as they are: leave out --label-noise")
    if command.gate is not None and command.baseline is None:
        raise UsageError("--gate needs a comparison: name the older bundle with --baseline")


def _typed_flags(ctx: typer.Context) -> set[str]:
    """The flags given on the command line, not by the environment or a configuration file."""
    return {
        parameter.opts[0]
        for parameter in ctx.command.params
        if (source := ctx.get_parameter_source(parameter.name or "")) is not None
        and source.name == "COMMANDLINE"
        and parameter.param_type_name == "option"
    }
