"""``florilege calibrate`` and ``florilege evaluate``."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from florilege.calibration.calibrate.calibrate import calibrate_bundle, cautions
from florilege.calibration.calibrate.calibration_settings import CalibrationSettings
from florilege.calibration.calibrate.card_section import selection_note
from florilege.calibration.calibrate.diagnostics import Findings, findings_of
from florilege.calibration.calibrate.evaluate import Evaluation, evaluation_of
from florilege.calibration.calibrate.gate import Gate, check_comparable, compare_outputs, read_gate
from florilege.calibration.calibrate.photo_outputs import BundleOutputs, bundle_outputs
from florilege.calibration.console import (
    Titled,
    audit_table,
    calibration_tables,
    comparison_table,
    evaluation_tables,
    lists_tables,
    print_json,
    summary,
)
from florilege.calibration.monitoring.audit import audit_file
from florilege.calibration.monitoring.recalibration import recalibrate_bundle
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.data.dataset import split_name
from florilege.data.sources import list_source
from florilege.data.split_parts import Part
from florilege.errors import GateFailed, UsageError, install_hint
from florilege.files import check_writable, files_beside, write_atomic
from florilege.models.bundle import open_bundle
from florilege.ray_tasks import Workers, demand_ray
from florilege.settings import flags_of
from florilege.terminal import command, conclude, print_table, warn

WITH_SCORE_LOG = {"--score-log", "--approve", "--device", "--json", "--config"}
"""The flags of ``calibrate`` that go with a score log."""

app = typer.Typer(help="Choose and check the thresholds of a bundle.")

BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.")]
Data = Annotated[str | None, typer.Option(help="Folder, manifest, or flora.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where the network runs.")]
AllRules = Annotated[
    bool, typer.Option("--all", help="Show every rule and guarantee, not only average_k.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
@flags_of(CalibrationSettings)
def calibrate(
    ctx: typer.Context,
    bundle: BundlePath,
    settings: CalibrationSettings,
    data: Data = None,
    split: Annotated[
        str, typer.Option(help="Split to calibrate on, or part of one: test:0-0.3.")
    ] = "val",
    report: Annotated[
        Path | None, typer.Option(help="Folder for pictures; needs the extra `report`.")
    ] = None,
    score_log: Annotated[
        Path | None, typer.Option(help="Score log of a server: calibrate from it, without --data.")
    ] = None,
    approve: Annotated[
        bool, typer.Option(help="With --score-log: put the new thresholds into the bundle.")
    ] = False,
    device: Device = "auto",
    ray: Annotated[
        bool, typer.Option("--ray", help="Run the network on a Ray cluster (RAY_ADDRESS), or here.")
    ] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="With --ray: processes of all machines together.")
    ] = None,
    all_rules: AllRules = False,
    as_json: AsJson = False,
) -> None:
    """Choose every threshold of a bundle on validation photos and put them into it.

    With --score-log, thresholds are chosen from unlabelled traffic instead, for the K asked for
    before: the changes are printed, but the bundle stays as it is without --approve.
    """
    if score_log is not None:
        if data is not None or report is not None:
            raise UsageError("--score-log calibrates from traffic: leave out --data and --report")
        if others := ", ".join(sorted(_flags_given(ctx) - WITH_SCORE_LOG)):
            raise UsageError(f"--score-log keeps what was asked for before: leave out {others}")
        outcome = recalibrate_bundle(bundle, score_log, approve=approve)
        if as_json:
            print_json(outcome.to_plain())
        else:
            typer.echo("\n".join(outcome.lines()))
            if approve:
                conclude(then=[("serve", bundle)])
        return
    if data is None:
        raise UsageError("--data is missing: name the photos to calibrate on, or --score-log LOG")
    if approve:
        raise UsageError("--approve goes with --score-log LOG")
    writer = nullcontext if report is None else _report(report)
    record = calibrate_bundle(
        bundle,
        data,
        split,
        device=device,
        workers=_workers(ray, workers),
        report=writer,
        **dict(settings),
    )
    for caution in cautions(record):
        warn(caution)
    shown = summary(record)
    tables = [*calibration_tables(record, all_rules=all_rules), *lists_tables(shown)]
    _show(shown, tables, as_json)
    if not as_json:
        every = f"; to list them: {command('bundle', 'inspect', bundle)}"
        conclude(
            f"thresholds of {len(record.rules)} rules are in {bundle}{'' if all_rules else every}",
            *filter(None, [selection_note(record)]),
            *([] if report is None else [f"pictures are in {report}"]),
            then=[*_on_other_photos(bundle, data, split), ("serve", bundle)],
        )


@app.command()
def evaluate(
    bundle: BundlePath,
    data: Data = None,
    split: Annotated[
        str, typer.Option(help="Split to measure on, or part of one: test:0.3-1.")
    ] = "test",
    baseline: Annotated[
        Path | None, typer.Option(help="An older bundle to compare with on the same photos.")
    ] = None,
    gate: Annotated[
        Path | None, typer.Option(help="With --baseline: a yaml file that says what may be lost.")
    ] = None,
    feedback_store: Annotated[
        Path | None,
        typer.Option(help="Feedback of a server, instead of --data: its folder, or lines of JSON."),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="File for a page about it, .html; needs the extra `report`.")
    ] = None,
    device: Device = "auto",
    all_rules: AllRules = False,
    as_json: AsJson = False,
) -> None:
    """Measure the sets of a calibrated bundle on photos it was not calibrated on.

    With --gate, the exit code is 5 if the bundle is worse than --baseline by more than allowed.
    """
    allowed = _gate(data, baseline, gate, feedback_store)
    drawn = None if report is None else _page(report, data)
    content: dict[str, Any] = {}
    tables: list[Titled] = []
    reasons: list[str] = []
    html: str | None = None
    if feedback_store is not None:
        record = read_record(open_bundle(bundle))
        audited = audit_file(feedback_store, calibration_id=record.calibration_id)
    if data is not None:
        if baseline is not None:
            check_comparable(bundle, baseline, data, split, device=device, gated=gate is not None)
        shown = partial(bundle_outputs, data=data, split=split, device=device)
        with shown(bundle) as new:
            evaluation = evaluation_of(new)
            for warning in evaluation.warnings:
                warn(warning)
            content = evaluation.to_plain()
            tables = [*evaluation_tables(content, all_rules=all_rules), *lists_tables(content)]
            older: Findings | None = None
            if baseline is not None:
                with shown(baseline) as old:
                    compared = compare_outputs(new, old)
                    if drawn is not None:
                        older = findings_of(old.record, old.outputs)
                reasons = [] if allowed is None else allowed.reasons(compared[0])
                content["against"] = [asdict(comparison) for comparison in compared]
                judged = {"passed": not reasons, "why": reasons}
                content["gate"] = None if allowed is None else judged
                tables.append(comparison_table(compared, str(baseline), all_rules=all_rules))
            html = None if drawn is None else drawn(new, evaluation, older)
    if feedback_store is not None:
        content["audit"] = audited.to_plain()
        tables.append(audit_table(audited))
        for count, why in ((audited.other_calibrations, "answered by another calibration"),
                           (audited.damaged, "damaged")):  # fmt: skip
            if count:
                warn(f"{count} rows of feedback left out: {why}")
    _show(content, tables, as_json)
    if report is not None and html is not None:
        write_atomic(report, html.encode())
    if reasons:
        raise GateFailed("; ".join(reasons))
    if data is not None and not as_json:
        hidden = len({entry["rule"] for entry in content["rules"]}) - 1
        conclude(
            *([] if all_rules else [f"{hidden} more rules are shown with --all"]),
            *([] if report is None else [f"the report is {report}"]),
            then=[("serve", bundle)],
        )


def _workers(ray: bool, number: int | None) -> Workers | None:
    """Who runs the network; None for this process."""
    if not ray:
        if number is not None:
            raise UsageError("--workers goes with --ray")
        return None
    demand_ray()
    return Workers(number=number)


def _flags_given(ctx: typer.Context) -> set[str]:
    """The flags on the command line, not those set by the environment or a configuration file."""
    return {
        parameter.opts[0]
        for parameter in ctx.command.params
        if (source := ctx.get_parameter_source(parameter.name or "")) is not None
        and source.name == "COMMANDLINE"
        and parameter.param_type_name == "option"
    }


def _show(content: object, tables: Iterable[Titled], as_json: bool) -> None:
    if as_json:
        print_json(content)
        return
    for number, (title, table) in enumerate(tables):
        if number:
            typer.echo()
        print_table(table, title)


def _on_other_photos(bundle: Path, data: str, split: str) -> Iterator[tuple[str | Path, ...]]:
    """The command that measures the bundle on photos of the same source that it has not seen."""
    verb = ("evaluate", bundle, "--data", data)
    part = Part.parse(split)
    if split_name(part.name) != "test" and "test" in list_source(data, splits=[]).splits:
        yield verb
    elif part.stop < 1:
        yield (*verb, "--split", f"{part.name}:{part.stop:g}-1")
    elif part.start > 0:
        yield (*verb, "--split", f"{part.name}:0-{part.start:g}")


def _report(folder: Path) -> Callable[[CalibrationRecord], AbstractContextManager[None]]:
    """What writes the report; asked for, and the folder made, before anything takes time."""
    with _extra_report():
        from florilege.calibration.calibrate.calibration_plots import write_pictures
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--report {folder} cannot be a folder: {error.strerror}") from error

    @contextmanager
    def written(record: CalibrationRecord) -> Iterator[None]:
        with files_beside(folder) as beside:
            write_pictures(record, beside)
            yield

    return written


def _page(
    file: Path, data: str | None
) -> Callable[[BundleOutputs, Evaluation, Findings | None], str]:
    """What makes the page; whether it can be, and the file written, before anything takes time."""
    if data is None:
        raise UsageError("--report needs photos: name them with --data")
    with _extra_report():
        from florilege.calibration.calibrate.evaluation_report import evaluation_report
    try:
        check_writable(file)
    except OSError as error:
        raise UsageError(
            f"--report {file} cannot be written: {error.strerror}; name a file in a folder that "
            "is there"
        ) from error
    return evaluation_report


@contextmanager
def _extra_report() -> Iterator[None]:
    """Say which extra is missing where an import inside fails."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--report needs {error.name}; leave it out, or {install_hint('report')}"
        ) from error


def _gate(
    data: str | None, baseline: Path | None, gate: Path | None, feedback_store: Path | None
) -> Gate | None:
    """The gate, if one is named; refuses flags that do not go together."""
    if data is None and feedback_store is None:
        raise UsageError("--data is missing: name photos to measure on, or --feedback-store DIR")
    if data is None and baseline is not None:
        raise UsageError("--baseline needs photos: name them with --data")
    if gate is not None and baseline is None:
        raise UsageError("--gate judges a comparison: name the older bundle with --baseline")
    return None if gate is None else read_gate(gate)
