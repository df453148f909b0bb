"""What ``florilege calibrate`` and ``evaluate`` do once their flags are read."""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from florilege.calibration.calibrate.calibrate import calibrate_bundle
from florilege.calibration.calibrate.calibration_settings import CalibrationSettings
from florilege.calibration.calibrate.cautions import cautions
from florilege.calibration.calibrate.evaluate import Evaluation
from florilege.calibration.calibrate.gate import Gate, check_comparable
from florilege.calibration.calibrate.noise_rate import noisy_labels
from florilege.calibration.calibrate.photo_outputs import BundleOutputs, bundle_outputs
from florilege.calibration.commands.console import (
    EvaluationOutput,
    PageMaker,
    calibration_tables,
    legend_of,
    page_maker,
    summary,
)
from florilege.calibration.monitoring.audit import AuditReport, audit_file
from florilege.calibration.monitoring.recalibration import recalibrate_bundle
from florilege.calibration.record.record_file import read_record, selection_note
from florilege.cores import Workers
from florilege.data.dataset import Part, split_name
from florilege.data.sources import list_source
from florilege.errors import GateFailed
from florilege.files import write_atomic
from florilege.hooks import cluster
from florilege.models.bundle import open_bundle
from florilege.models.output_store import cache_folder
from florilege.models.runtime import RuntimeName
from florilege.terminal import Titled, command, conclude, is_step, say, show, warn

Device = Literal["auto", "cpu", "cuda"]


def calibrate(
    bundle: Path,
    data: str,
    split: str,
    settings: CalibrationSettings,
    *,
    report: Path | None,
    device: Device,
    ray: bool,
    ray_workers: int | None,
    output_cache: str | None,
    all_rules: bool,
    as_json: bool,
) -> None:
    """Choose every threshold of a bundle on photos, and print what they give."""
    say(f"{bundle}: choosing its thresholds on the {split} photos of {data}")
    write_page = None if report is None else partial(_write_page, report, page_maker(report))
    record = calibrate_bundle(
        bundle,
        data,
        split,
        device=device,
        workers=_workers(ray_workers) if ray else None,
        report=write_page,
        say=warn,
        cache=cache_folder(output_cache),
        **dict(settings),
    )
    for caution in cautions(record, brief=is_step()):
        warn(caution)
    content = summary(record)
    every = f"; to list them: {command('bundle', 'inspect', bundle)}"
    where = f"thresholds of {len(record.rules)} rules are in {bundle}{'' if all_rules else every}"
    evaluate = _evaluate_command(bundle, data, split, skip_damaged=settings.skip_damaged)
    show(
        content,
        _parts(content, calibration_tables(record, content, all_rules=all_rules)),
        as_json=as_json,
        notes=filter(None, [where, selection_note(record), _report_note(report)]),
        then=chain(evaluate, [("serve", bundle)]),
    )


def recalibrate(bundle: Path, score_log: Path, *, approve: bool, as_json: bool) -> None:
    """Choose thresholds on traffic and print the changes."""
    say(f"{bundle}: choosing its thresholds on the traffic in {score_log}")
    outcome = recalibrate_bundle(bundle, score_log, approve=approve)
    then = [("serve", bundle)] if approve else []
    show(outcome.to_plain(), outcome.lines(), as_json=as_json, then=then)


def evaluate(
    bundle: Path,
    data: str | None,
    split: str,
    *,
    baseline: Path | None,
    gate: Path | None,
    feedback_store: Path | None,
    report: Path | None,
    label_noise: str | None,
    device: Device,
    runtime: RuntimeName | None,
    output_cache: str | None,
    skip_damaged: bool,
    all_rules: bool,
    as_json: bool,
) -> None:
    """Measure the sets of a bundle on photos, on feedback, or on both, and print the figures."""
    limits = None if gate is None else Gate.read(gate)
    make_page = None if report is None else page_maker(report)
    say(f"{bundle}: measuring its sets on {_places_of(data, split, feedback_store)}")
    audit = _audit(bundle, feedback_store, runtime)
    output = EvaluationOutput()
    if data is not None:
        if baseline is not None:
            gated = gate is not None
            check_comparable(bundle, baseline, data, split, device=device, gated=gated)
        output = EvaluationOutput.of(
            partial(
                bundle_outputs,
                data=data,
                split=split,
                device=device,
                runtime=runtime,
                cache=cache_folder(output_cache),
                skip_damaged=skip_damaged,
                say=cache(warn),  # two bundles leave out the same photos
            ),
            bundle,
            baseline,
            limits,
            make_page,
            all_rules=all_rules,
            noise=lambda new: noisy_labels(label_noise, new.bundle.classes, data, new.photos, warn),
        )
    if audit is not None:
        output.add_audit(audit)
    show(output.content, _parts(output.content, output.tables), as_json=as_json)
    _finish_evaluation(output, report)
    if data is not None and not as_json:
        notes = [_hidden_note(output.content, all_rules), _report_note(report)]
        conclude(*filter(None, notes), then=[("serve", bundle)])


def _finish_evaluation(output: EvaluationOutput, report: Path | None) -> None:
    """Write the report, whether or not the gate fails; then raise GateFailed if it does."""
    if report is not None and output.page is not None:
        write_atomic(report, output.page.encode())
    if output.failures:
        raise GateFailed("; ".join(output.failures))


def _places_of(data: str | None, split: str, feedback_store: Path | None) -> str:
    """What is measured, in words."""
    return f"the {split} photos of {data}" if data else f"the feedback in {feedback_store}"


def _hidden_note(content: Mapping[str, Any], all_rules: bool) -> str:
    rules = {entry["rule"] for entry in content["rules"]}
    return "" if all_rules else f"{len(rules) - 1} more rules are shown with --all"


def _report_note(report: Path | None) -> str:
    return "" if report is None else f"the report is {report}"


def _workers(number: int | None) -> Workers:
    """The Ray workers that run the network."""
    cluster("ray").demand()
    return Workers(number=number)


def _audit(
    bundle: Path, feedback_store: Path | None, runtime: RuntimeName | None
) -> AuditReport | None:
    if feedback_store is None:
        return None
    record = read_record(open_bundle(bundle), runtime)
    return audit_file(feedback_store, calibration_id=record.calibration_id)


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
