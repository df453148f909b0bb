"""``florilege calibrate`` and ``florilege evaluate``."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Final, Literal

import typer

from florilege.calibration.calibrate.calibration_settings import CalibrationSettings
from florilege.calibration.commands import AsJson, BundlePath, OutputCache, WrongLabels
from florilege.calibration.rules.label_noise import check_label_noise
from florilege.errors import UsageError
from florilege.models.runtime import RuntimeName
from florilege.settings import flags_of

_WITH_SCORE_LOG = {"--score-log", "--approve", "--device", "--json", "--config"}
"""Flags of ``calibrate`` that work with ``--score-log``."""

app = typer.Typer(help="Choose and check the thresholds of a bundle.")

Data = Annotated[str | None, typer.Option(help="Folder, manifest, or flora.")]
_COMPUTING: Final = "Computing"
_TRAFFIC: Final = "From traffic, without labels"
_PANELS: Final = {
    "Scores": ("head", "score_kind", "temperatures", "min_size", "macro_weight"),
    "Promises about new photos": ("delta", "max_size", "label_noise"),
    "Photos of something else": ("rejection_method", "suspect_share"),
    "Lists, places, several photos": ("list_files", "occurrences", "views_wanted"),
    _COMPUTING: ("runtime", "precision"),
}
"""Headings of ``calibrate --help``, each with its settings; the others are described first."""
Device = Annotated[
    Literal["auto", "cpu", "cuda"],
    typer.Option(help="Where the network runs.", rich_help_panel=_COMPUTING),
]
_AllRules = Annotated[
    bool, typer.Option("--all", help="Show every rule and guarantee, not only average_k.")
]
Report = Annotated[
    Path | None, typer.Option(help="HTML file to write a report to; needs the extra `report`.")
]


@app.command()
@flags_of(CalibrationSettings, _PANELS)
def calibrate(
    ctx: typer.Context,
    bundle: BundlePath,
    settings: CalibrationSettings,
    data: Data = None,
    split: Annotated[
        str, typer.Option(help="Split to calibrate on, or part of one: test:0-0.3.")
    ] = "val",
    report: Report = None,
    score_log: Annotated[
        Path | None,
        typer.Option(
            help="Score log of a server to calibrate on, not --data.", rich_help_panel=_TRAFFIC
        ),
    ] = None,
    approve: Annotated[
        bool,
        typer.Option(
            help="With --score-log: store the new thresholds in the bundle.",
            rich_help_panel=_TRAFFIC,
        ),
    ] = False,
    device: Device = "auto",
    ray: Annotated[
        bool,
        typer.Option(
            "--ray",
            help="Run the network on Ray: RAY_ADDRESS or this machine.",
            rich_help_panel=_COMPUTING,
        ),
    ] = False,
    ray_workers: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="With --ray: number of processes on all machines.",
            rich_help_panel=_COMPUTING,
        ),
    ] = None,
    output_cache: OutputCache = None,
    all_rules: _AllRules = False,
    as_json: AsJson = False,
) -> None:
    """Choose every threshold of a bundle on validation photos and store them in the bundle.

    With --score-log, choose the thresholds on unlabelled traffic, for the K of the last
    calibration. This prints the changes; add --approve to store them.
    """
    # Here, because it opens networks and photos, and --help does without.
    from florilege.calibration.commands import threshold_commands

    if score_log is not None:
        if data is not None or report is not None:
            raise UsageError("--score-log calibrates from traffic: leave out --data and --report")
        if others := ", ".join(sorted(_typed_flags(ctx) - _WITH_SCORE_LOG)):
            raise UsageError(f"--score-log takes its settings from the bundle: leave out {others}")
        threshold_commands.recalibrate(bundle, score_log, approve=approve, as_json=as_json)
        return
    if data is None:
        raise UsageError("--data is missing: name the photos to calibrate on, or --score-log LOG")
    if approve:
        raise UsageError("--approve needs --score-log LOG")
    if ray_workers is not None and not ray:
        raise UsageError("--ray-workers needs --ray")
    threshold_commands.calibrate(
        bundle,
        data,
        split,
        settings,
        report=report,
        device=device,
        ray=ray,
        ray_workers=ray_workers,
        output_cache=output_cache,
        all_rules=all_rules,
        as_json=as_json,
    )


@app.command()
def evaluate(
    bundle: Annotated[
        Path,
        typer.Argument(
            metavar="BUNDLE",
            help="Folder of the bundle, or of a run, which is first exported and calibrated.",
        ),
    ],
    data: Data = None,
    split: Annotated[
        str, typer.Option(help="Split to measure on, or part of one: test:0.3-1.")
    ] = "test",
    baseline: Annotated[
        Path | None, typer.Option(help="An older bundle to compare with on the same photos.")
    ] = None,
    gate: Annotated[
        Path | None, typer.Option(help="With --baseline: a YAML file with the allowed losses.")
    ] = None,
    feedback_store: Annotated[
        Path | None,
        typer.Option(help="Feedback store of a server, or JSON Lines, to measure hit rates on."),
    ] = None,
    report: Report = None,
    label_noise: WrongLabels = None,
    device: Device = "auto",
    runtime: Annotated[
        RuntimeName | None,
        typer.Option(
            help="Runtime to measure; by default the one that serves.", rich_help_panel=_COMPUTING
        ),
    ] = None,
    output_cache: OutputCache = None,
    skip_damaged: Annotated[
        bool, typer.Option("--skip-damaged", help="Leave out photos that cannot be read.")
    ] = False,
    all_rules: _AllRules = False,
    as_json: AsJson = False,
) -> None:
    """Measure the sets of a calibrated bundle on photos it was not calibrated on.

    With --gate, the exit code is 5 if the bundle is worse than --baseline by more than allowed.
    """
    # Here, because it opens networks and photos, and --help does without.
    from florilege.calibration.commands import threshold_commands

    _check_flags(data, feedback_store, baseline, report, gate, label_noise)
    threshold_commands.evaluate(
        bundle,
        data,
        split,
        baseline=baseline,
        gate=gate,
        feedback_store=feedback_store,
        report=report,
        label_noise=label_noise,
        device=device,
        runtime=runtime,
        output_cache=output_cache,
        skip_damaged=skip_damaged,
        all_rules=all_rules,
        as_json=as_json,
    )


def _check_flags(
    data: str | None,
    feedback_store: Path | None,
    baseline: Path | None,
    report: Path | None,
    gate: Path | None,
    label_noise: str | None,
) -> None:
    """Refuse flags that conflict."""
    if data is None and feedback_store is None:
        raise UsageError("--data is missing: name photos to measure on, or --feedback-store DIR")
    flags = {"--baseline": baseline, "--report": report, "--label-noise": label_noise}
    _refuse_pairs([flag for flag, value in flags.items() if value is not None], data)
    if gate is not None and baseline is None:
        raise UsageError("--gate needs a comparison: name the older bundle with --baseline")
    check_label_noise(label_noise)


def _refuse_pairs(flags: Sequence[str], data: str | None) -> None:
    """Refuse flags that need photos without any, and those that take labels as they are."""
    if flags and data is None:
        raise UsageError(f"{flags[0]} needs photos: name them with --data")
    if len(flags) > 1 and "--label-noise" in flags:
        raise UsageError(f"{flags[0]} takes labels as they are: leave out --label-noise")


def _typed_flags(ctx: typer.Context) -> set[str]:
    """The flags given on the command line, not by the environment or a configuration file."""
    return {
        parameter.opts[0]
        for parameter in ctx.command.params
        if (source := ctx.get_parameter_source(parameter.name or "")) is not None
        and source.name == "COMMANDLINE"
        and parameter.param_type_name == "option"
    }
