"""What ``florilege calibrate`` and ``evaluate`` do once their flags are read."""

from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from florilege.calibration.calibrate import BundleOutputs, Evaluation, Gate, calibrate_bundle
from florilege.calibration.calibrate.cautions import cautions
from florilege.calibration.commands.console import (
    EvaluationOutput,
    PageMaker,
    calibration_tables,
    legend_of,
    page_maker,
    summary,
)
from florilege.calibration.monitoring.audit import audit_file
from florilege.calibration.monitoring.recalibration import recalibrate_bundle
from florilege.calibration.record.record_file import read_record, selection_note
from florilege.calibration.settings import CalibrateCommand, CalibrationSettings, EvaluateCommand
from florilege.cores import Workers
from florilege.data.records import Part, split_name
from florilege.data.sources import list_source
from florilege.errors import GateFailed
from florilege.files import write_atomic
from florilege.hooks import cluster
from florilege.models.bundle import open_bundle
from florilege.models.output_store import cache_folder
from florilege.terminal import Titled, conclude, is_step, say, show, warn
from florilege.terminal import command as command_line


def calibrate(
    bundle: Path, data: str, command: CalibrateCommand, settings: CalibrationSettings
) -> None:
    """Choose every threshold of a bundle on photos, and print what they give."""
    split, report = command.split, command.report
    say(f"{bundle}: choosing its thresholds on the {split} photos of {data}")
    write_page = None if report is None else partial(_write_page, report, page_maker(report))
    record = calibrate_bundle(
        bundle,
        data,
        split,
        device=command.device,
        workers=_workers(command.ray_workers) if command.ray else None,
        report=write_page,
        say=warn,
        cache=cache_folder(command.output_cache),
        **dict(settings),
    )
    for caution in cautions(record, brief=is_step()):
        warn(caution)
    content = summary(record)
    where = f"thresholds of {len(record.rules)} rules are in {bundle}"
    if not command.all_rules:
        where += f"; to list them: {command_line('bundle', 'inspect', bundle)}"
    evaluate = _evaluate_command(bundle, data, split, skip_damaged=settings.skip_damaged)
    show(
        content,
        _parts(content, calibration_tables(record, content, all_rules=command.all_rules)),
        as_json=command.as_json,
        notes=filter(None, [where, selection_note(record), _report_note(report)]),
        then=chain(evaluate, [("serve", bundle)]),
    )


def recalibrate(bundle: Path, score_log: Path, command: CalibrateCommand) -> None:
    """Choose thresholds on traffic and print the changes."""
    say(f"{bundle}: choosing its thresholds on the traffic in {score_log}")
    outcome = recalibrate_bundle(bundle, score_log, approve=command.approve)
    then = [("serve", bundle)] if command.approve else []
    show(outcome.to_plain(), outcome.lines(), as_json=command.as_json, then=then)


def evaluate(bundle: Path, command: EvaluateCommand) -> None:
    """Measure the sets of a bundle on photos, on feedback, or on both, and print the figures."""
    data, report = command.data, command.report
    limits = None if command.gate is None else Gate.read(command.gate)
    make_page = None if report is None else page_maker(report)
    of_photos = f"the {command.split} photos of {data}"
    say(f"{bundle}: measuring its sets on "
        f"{of_photos if data else f'the feedback in {command.feedback_store}'}")  # fmt: skip
    audit = None
    if command.feedback_store is not None:
        record = read_record(open_bundle(bundle), command.runtime)
        audit = audit_file(command.feedback_store, calibration_id=record.calibration_id)
    output = EvaluationOutput()
    if data is not None:
        output = EvaluationOutput.of(bundle, data, command, limits, make_page)
    if audit is not None:
        output.add_audit(audit)
    show(output.content, _parts(output.content, output.tables), as_json=command.as_json)
    _finish_evaluation(output, report)
    if data is not None and not command.as_json:
        notes = [_hidden_note(output.content, command.all_rules), _report_note(report)]
        conclude(*filter(None, notes), then=[("serve", bundle)])


def _finish_evaluation(output: EvaluationOutput, report: Path | None) -> None:
    """Write the report, whether or not the gate fails; then raise GateFailed if it does."""
    if report is not None and output.page is not None:
        write_atomic(report, output.page.encode())
    if output.failures:
        raise GateFailed("; ".join(output.failures))


def _hidden_note(content: Mapping[str, Any], all_rules: bool) -> str:
    rules = {entry["rule"] for entry in content["rules"]}
    return "" if all_rules else f"{len(rules) - 1} more rules are shown with --all"


def _report_note(report: Path | None) -> str:
    return "" if report is None else f"the report is {report}"


def _workers(number: int | None) -> Workers:
    """The Ray workers that run the network."""
    cluster("ray").demand()
    return Workers(number=number)


def _parts(content: Mapping[str, Any], tables: Iterable[Titled]) -> Iterator[str | Titled]:
    """The tables, and the legend below them."""
    for titled in tables:
        yield titled
        yield ""
    yield legend_of(content)


def _evaluate_command(
    bundle: Path, data: str, split: str, *, skip_damaged: bool
) -> Iterator[tuple[str | Path, ...]]:
    """The command that evaluates the bundle on other photos of the same data."""
    flags = ("--skip-damaged",) if skip_damaged else ()
    words: tuple[str | Path, ...] = ("evaluate", bundle, "--data", data, *flags)
    part = Part.parse(split)
    if split_name(part.name) != "test" and "test" in list_source(data, splits=[]).splits:
        yield words
    elif part.stop < 1:
        yield (*words, "--split", f"{part.name}:{part.stop:g}-1")
    elif part.start > 0:
        yield (*words, "--split", f"{part.name}:0-{part.start:g}")


def _write_page(file: Path, make_page: PageMaker, outputs: BundleOutputs) -> None:
    write_atomic(file, make_page(outputs, Evaluation.of(outputs), None).encode())
