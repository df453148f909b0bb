"""``florilege calibrate`` and ``florilege evaluate``."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from calibration.live.audit import audit_file
from calibration.live.recalibrate import recalibrate_bundle
from calibration.offline.calibrate import calibrate_bundle, cautions
from calibration.offline.evaluate import evaluation_of
from calibration.offline.gate import check_comparable, compare_scored, read_gate
from calibration.offline.scored import scored_bundle
from calibration.offline.settings import DEFAULT_DELTA, DEFAULT_SMALL_CLASSES
from calibration.printing import (
    audit_table,
    calibration_table,
    comparison_table,
    evaluation_table,
    photos_table,
    print_json,
    print_table,
    summary,
    warn,
)
from calibration.record import CalibrationRecord
from calibration.record.reading import read_record
from calibration.rejection.familiarity import DEFAULT_METHOD, DEFAULT_SHARE
from calibration.rules.class_conditional import SmallClasses
from calibration.scores import ScoreKind
from models.bundle import open_bundle
from models.errors import GateFailed, UsageError
from models.files import files_beside

NO_METHOD = "none"
WITH_SCORES = {
    *("--scores", "--correct-prior", "--approve"),
    *("--device", "--json", "--config"),
}
"""The flags of ``calibrate`` that go with a score log."""

app = typer.Typer(help="Choose and check the thresholds of a bundle.")

BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.")]
Data = Annotated[str | None, typer.Option(help="Folder, manifest, or flora.")]
Device = Annotated[Literal["auto", "cpu", "cuda"], typer.Option(help="Where the network runs.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def calibrate(
    ctx: typer.Context,
    bundle: BundlePath,
    data: Data = None,
    split: Annotated[
        str, typer.Option(help="Split to calibrate on, or a part: test:0-0.3.")
    ] = "val",
    k: Annotated[
        str | None,
        typer.Option(help="Mean set sizes to offer. [default: 1,2,3,5,10, as classes allow]"),
    ] = None,
    coverage: Annotated[str, typer.Option(help="Coverages to offer.")] = "0.9,0.95",
    min_size: Annotated[int, typer.Option(help="1: every set holds its best class; or 0.")] = 1,
    micro_weight: Annotated[
        float, typer.Option(help="For the balanced rules: 1 counts photos, 0 counts classes.")
    ] = 0.5,
    head: Annotated[
        str | None, typer.Option(help="Head that serves. [default: the best on these photos]")
    ] = None,
    score_kind: Annotated[
        ScoreKind | None, typer.Option(help="Scores that serve. [default: the better ones]")
    ] = None,
    temperature: Annotated[
        str, typer.Option(help="Temperatures of softmax; the best on these photos serves.")
    ] = "1",
    rejection_method: Annotated[
        str, typer.Option(help="What tells photos of something else: auto, a method, or none.")
    ] = DEFAULT_METHOD,
    suspect_share: Annotated[
        float, typer.Option(help="Share of these photos that is to be suspect.")
    ] = DEFAULT_SHARE,
    delta: Annotated[
        float, typer.Option(help="How often a calibration may break guarantee=probability.")
    ] = DEFAULT_DELTA,
    max_size: Annotated[
        int | None,
        typer.Option(help="Largest set under a guaranteed mean size. [default: 50, or 2 K]"),
    ] = None,
    small_classes: Annotated[
        SmallClasses, typer.Option(help="For class_coverage: what classes with few photos get.")
    ] = DEFAULT_SMALL_CLASSES,
    report: Annotated[
        Path | None, typer.Option(help="Folder for pictures; needs the extra `report`.")
    ] = None,
    scores: Annotated[
        Path | None, typer.Option(help="Score log of a server: calibrate from traffic, no --data.")
    ] = None,
    correct_prior: Annotated[
        bool, typer.Option(help="With --scores: correct for changed class frequencies.")
    ] = False,
    approve: Annotated[
        bool, typer.Option(help="With --scores: put the new thresholds into the bundle.")
    ] = False,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Choose every threshold of a bundle on validation photos and put them into it.

    With --scores thresholds are chosen from unlabelled traffic instead, for what was asked for
    before: the difference is printed, and nothing is changed without --approve.
    """
    if scores is not None:
        if data is not None or report is not None:
            raise UsageError("--scores takes traffic in place of --data, and no --report")
        if others := _flags_given(ctx) - WITH_SCORES:
            raise UsageError(
                f"--scores keeps what was asked for before: leave out {', '.join(sorted(others))}"
            )
        _from_traffic(bundle, scores, correct_prior, approve, as_json)
        return
    if data is None:
        raise UsageError("--data is missing: name the photos to calibrate on, or --scores LOG")
    if correct_prior or approve:
        raise UsageError("--correct-prior and --approve go with --scores LOG")
    record = calibrate_bundle(
        bundle,
        data,
        split,
        ks=None if k is None else numbers(k, "--k"),
        coverages=numbers(coverage, "--coverage"),
        min_size=min_size,
        micro_weight=micro_weight,
        head=head,
        score_kind=score_kind,
        temperatures=numbers(temperature, "--temperature"),
        rejection_method=None if rejection_method == NO_METHOD else rejection_method,
        suspect_share=suspect_share,
        delta=delta,
        max_size=max_size,
        small_classes=small_classes,
        device=device,
        report=nullcontext if report is None else _report(report),
    )
    for caution in cautions(record):
        warn(caution)
    _show(record, as_json)


@app.command()
def evaluate(
    bundle: BundlePath,
    data: Data = None,
    split: Annotated[
        str, typer.Option(help="Split to measure on, or a part: test:0.3-1.")
    ] = "test",
    against: Annotated[
        Path | None, typer.Option(help="An older bundle to compare with on the same photos.")
    ] = None,
    gate: Annotated[
        Path | None, typer.Option(help="With --against: what may be lost, a yaml file.")
    ] = None,
    audit: Annotated[
        Path | None, typer.Option(help="Labelled feedback of a server, in place of --data.")
    ] = None,
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure the sets of a calibrated bundle on photos it was not calibrated on.

    With --gate the exit code is 5 where the bundle is worse than --against by more than allowed.
    """
    _check_evaluate(data, against, gate, audit)
    content: dict[str, Any] = {}
    tables = []
    reasons: list[str] = []
    if audit is not None:
        record = read_record(open_bundle(bundle))
        report = audit_file(audit, calibration_id=record.calibration_id)
    if data is not None:
        if against is not None:
            check_comparable(bundle, against, data, split, device=device, gated=gate is not None)
        allowed = None if gate is None else read_gate(gate)
        score = partial(scored_bundle, data=data, split=split, device=device)
        with score(bundle) as new:
            evaluation = evaluation_of(new)
            content, tables = evaluation.to_plain(), [evaluation_table(evaluation)]
            if against is not None:
                with score(against) as old:
                    compared = compare_scored(new, old)
                reasons = [] if allowed is None else allowed.reasons(compared[0])
                content["against"] = [asdict(comparison) for comparison in compared]
                content["gate"] = (
                    None if allowed is None else {"passed": not reasons, "why": reasons}
                )
                tables.append(comparison_table(compared, str(against)))
    if audit is not None:
        content["audit"] = report.to_plain()
        tables.append(audit_table(report))
        for count, why in ((report.other_calibrations, "answered by another calibration"),
                           (report.damaged, "damaged")):  # fmt: skip
            if count:
                warn(f"{count} rows of feedback left out: {why}")
    if as_json:
        print_json(content)
    else:
        for table in tables:
            print_table(table)
    if reasons:
        raise GateFailed("; ".join(reasons))


def numbers(text: str, flag: str) -> list[float]:
    """Numbers separated by commas.

    Raises:
        UsageError: Something else.

    Example:
        >>> numbers("1, 2.5", "--k")
        [1.0, 2.5]
    """
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise UsageError(f"{flag} takes numbers separated by commas, got {text!r}") from error


def _flags_given(ctx: typer.Context) -> set[str]:
    """The flags on the command line, not those that environment and configuration file set."""
    return {
        parameter.opts[0]
        for parameter in ctx.command.params
        if (source := ctx.get_parameter_source(parameter.name or "")) is not None
        and source.name == "COMMANDLINE"
        and parameter.param_type_name == "option"
    }


def _show(record: CalibrationRecord, as_json: bool) -> None:
    if as_json:
        print_json(summary(record))
        return
    print_table(calibration_table(record))
    if (several := photos_table(record)) is not None:
        print_table(several)


def _from_traffic(
    bundle: Path, log: Path, correct_prior: bool, approve: bool, as_json: bool
) -> None:
    outcome = recalibrate_bundle(bundle, log, correct_prior=correct_prior, approve=approve)
    if as_json:
        print_json(outcome.to_plain())
        return
    for line in outcome.lines():
        typer.echo(line)


def _report(folder: Path) -> Callable[[CalibrationRecord], AbstractContextManager[None]]:
    """What writes the report; asked for, and the folder made, before anything takes time."""
    try:
        from calibration.offline.charts import write_pictures
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--report needs {error.name}: pip install 'florilege[report]', or leave it out"
        ) from error
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(f"--report {folder} can be no folder: {error.strerror}") from error

    @contextmanager
    def written(record: CalibrationRecord) -> Iterator[None]:
        with files_beside(folder) as beside:
            write_pictures(record, beside)
            yield

    return written


def _check_evaluate(
    data: str | None, against: Path | None, gate: Path | None, audit: Path | None
) -> None:
    if data is None and audit is None:
        raise UsageError("--data is missing: name the photos to measure on, or --audit FILE")
    if data is None and against is not None:
        raise UsageError("--against needs photos: name them with --data")
    if gate is not None and against is None:
        raise UsageError("--gate judges a comparison: name the older bundle with --against")
    if gate is not None:
        read_gate(gate)
