"""``florilege calibrate`` and ``florilege evaluate``."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from florilege.calibration.calibrate.calibrate import calibrate_bundle, cautions
from florilege.calibration.calibrate.calibration_settings import CalibrationSettings
from florilege.calibration.calibrate.evaluate import Evaluation
from florilege.calibration.calibrate.gate import Gate, check_comparable
from florilege.calibration.calibrate.noise_rate import check_label_noise, noisy_labels
from florilege.calibration.calibrate.photo_outputs import BundleOutputs, bundle_outputs
from florilege.calibration.commands.bundle_cli import (
    AsJson,
    BundlePath,
    OutputCache,
    WrongLabels,
)
from florilege.calibration.commands.console import (
    EvaluationOutput,
    PageMaker,
    Titled,
    calibration_tables,
    legend_of,
    page_maker,
    print_json,
    summary,
)
from florilege.calibration.monitoring.audit import AuditReport, audit_file
from florilege.calibration.monitoring.recalibration import recalibrate_bundle
from florilege.calibration.record.record_file import read_record, selection_note
from florilege.cores import Workers
from florilege.data.dataset import split_name
from florilege.data.sources import list_source
from florilege.data.split_parts import Part
from florilege.errors import GateFailed, UsageError
from florilege.files import write_atomic
from florilege.hooks import cluster
from florilege.models.bundle import open_bundle
from florilege.models.output_store import cache_folder
from florilege.models.runtime import RuntimeName
from florilege.settings import flags_of
from florilege.terminal import command, conclude, print_table, say, warn

WITH_SCORE_LOG = {"--score-log", "--approve", "--device", "--json", "--config"}
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
AllRules = Annotated[
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
    all_rules: AllRules = False,
    as_json: AsJson = False,
) -> None:
    """Choose every threshold of a bundle on validation photos and store them in the bundle.

    With --score-log, choose the thresholds on unlabelled traffic, for the K of the last
    calibration. This prints the changes; add --approve to store them.
    """
    if score_log is not None:
        if data is not None or report is not None:
            raise UsageError("--score-log calibrates from traffic: leave out --data and --report")
        _recalibrate(ctx, bundle, score_log, approve=approve, as_json=as_json)
        return
    if data is None:
        raise UsageError("--data is missing: name the photos to calibrate on, or --score-log LOG")
    if approve:
        raise UsageError("--approve needs --score-log LOG")
    say(f"{bundle}: choosing its thresholds on the {split} photos of {data}")
    write_page = None if report is None else partial(_write_page, report, page_maker(report))
    record = calibrate_bundle(
        bundle,
        data,
        split,
        device=device,
        workers=_workers(ray, ray_workers),
        report=write_page,
        say=warn,
        cache=cache_folder(output_cache),
        **dict(settings),
    )
    for caution in cautions(record):
        warn(caution)
    content = summary(record)
    _print_result(content, calibration_tables(record, content, all_rules=all_rules), as_json)
    if not as_json:
        every = f"; to list them: {command('bundle', 'inspect', bundle)}"
        conclude(
            f"thresholds of {len(record.rules)} rules are in {bundle}{'' if all_rules else every}",
            *filter(None, [selection_note(record), _report_note(report)]),
            then=[*_evaluate_command(bundle, data, split), ("serve", bundle)],
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
    all_rules: AllRules = False,
    as_json: AsJson = False,
) -> None:
    """Measure the sets of a calibrated bundle on photos it was not calibrated on.

    With --gate, the exit code is 5 if the bundle is worse than --baseline by more than allowed.
    """
    limits = _gate(data, feedback_store, baseline, report, gate, label_noise)
    check_label_noise(label_noise)
    make_page = None if report is None else page_maker(report)
    say(f"{bundle}: measuring its sets on {_places_of(data, split, feedback_store)}")
    audit = _audit(bundle, feedback_store, runtime)
    output = EvaluationOutput()
    if data is not None:
        photos = partial(
            bundle_outputs,
            data=data,
            split=split,
            device=device,
            runtime=runtime,
            cache=cache_folder(output_cache),
        )
        if baseline is not None:
            gated = gate is not None
            check_comparable(bundle, baseline, data, split, device=device, gated=gated)
        output = EvaluationOutput.of(
            photos,
            bundle,
            baseline,
            limits,
            make_page,
            all_rules=all_rules,
            noise=lambda new: noisy_labels(label_noise, new.bundle.classes, data, new.photos),
        )
    if audit is not None:
        output.add_audit(audit)
    _print_result(output.content, output.tables, as_json)
    if report is not None and output.page is not None:
        write_atomic(report, output.page.encode())
    if output.failures:
        raise GateFailed("; ".join(output.failures))
    if data is not None and not as_json:
        notes = [_hidden_note(output.content, all_rules), _report_note(report)]
        conclude(*filter(None, notes), then=[("serve", bundle)])


def _places_of(data: str | None, split: str, feedback_store: Path | None) -> str:
    """What is measured, in words."""
    return f"the {split} photos of {data}" if data else f"the feedback in {feedback_store}"


def _hidden_note(content: Mapping[str, Any], all_rules: bool) -> str:
    rules = {entry["rule"] for entry in content["rules"]}
    return "" if all_rules else f"{len(rules) - 1} more rules are shown with --all"


def _report_note(report: Path | None) -> str:
    return "" if report is None else f"the report is {report}"


def _recalibrate(
    ctx: typer.Context, bundle: Path, score_log: Path, *, approve: bool, as_json: bool
) -> None:
    """Choose thresholds on traffic and print the changes."""
    if others := ", ".join(sorted(_typed_flags(ctx) - WITH_SCORE_LOG)):
        raise UsageError(f"--score-log takes its settings from the bundle: leave out {others}")
    say(f"{bundle}: choosing its thresholds on the traffic in {score_log}")
    outcome = recalibrate_bundle(bundle, score_log, approve=approve)
    if as_json:
        print_json(outcome.to_plain())
        return
    typer.echo("\n".join(outcome.lines()))
    if approve:
        conclude(then=[("serve", bundle)])


def _workers(ray: bool, number: int | None) -> Workers | None:
    """The Ray workers that run the network; None to run it in this process."""
    if ray:
        cluster("ray").demand()
        return Workers(number=number)
    if number is not None:
        raise UsageError("--ray-workers needs --ray")
    return None


def _gate(
    data: str | None,
    feedback_store: Path | None,
    baseline: Path | None,
    report: Path | None,
    gate: Path | None,
    label_noise: str | None,
) -> Gate | None:
    """The gate of ``--gate``, or None; refuses flags that conflict."""
    if data is None and feedback_store is None:
        raise UsageError("--data is missing: name photos to measure on, or --feedback-store DIR")
    flags = {"--baseline": baseline, "--report": report, "--label-noise": label_noise}
    _refuse_pairs([flag for flag, value in flags.items() if value is not None], data)
    if gate is not None and baseline is None:
        raise UsageError("--gate needs a comparison: name the older bundle with --baseline")
    return None if gate is None else Gate.read(gate)


def _refuse_pairs(flags: Sequence[str], data: str | None) -> None:
    """Refuse flags that need photos without any, and those that take labels as they are."""
    if flags and data is None:
        raise UsageError(f"{flags[0]} needs photos: name them with --data")
    if len(flags) > 1 and "--label-noise" in flags:
        raise UsageError(f"{flags[0]} takes labels as they are: leave out --label-noise")


def _audit(
    bundle: Path, feedback_store: Path | None, runtime: RuntimeName | None
) -> AuditReport | None:
    if feedback_store is None:
        return None
    record = read_record(open_bundle(bundle), runtime)
    return audit_file(feedback_store, calibration_id=record.calibration_id)


def _typed_flags(ctx: typer.Context) -> set[str]:
    """The flags given on the command line, not by the environment or a configuration file."""
    return {
        parameter.opts[0]
        for parameter in ctx.command.params
        if (source := ctx.get_parameter_source(parameter.name or "")) is not None
        and source.name == "COMMANDLINE"
        and parameter.param_type_name == "option"
    }


def _print_result(content: Mapping[str, Any], tables: Iterable[Titled], as_json: bool) -> None:
    if as_json:
        print_json(content)
        return
    for number, (title, table) in enumerate(tables):
        if number:
            typer.echo()
        print_table(table, title)
    typer.echo(f"\n{legend_of(content)}")


def _evaluate_command(bundle: Path, data: str, split: str) -> Iterator[tuple[str | Path, ...]]:
    """The command that evaluates the bundle on other photos of the same data."""
    words = ("evaluate", bundle, "--data", data)
    part = Part.parse(split)
    if split_name(part.name) != "test" and "test" in list_source(data, splits=[]).splits:
        yield words
    elif part.stop < 1:
        yield (*words, "--split", f"{part.name}:{part.stop:g}-1")
    elif part.start > 0:
        yield (*words, "--split", f"{part.name}:0-{part.start:g}")


def _write_page(file: Path, make_page: PageMaker, outputs: BundleOutputs) -> None:
    write_atomic(file, make_page(outputs, Evaluation.of(outputs), None).encode())
