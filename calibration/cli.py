"""``florilege calibrate`` and ``florilege evaluate``."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table as RichTable

from calibration.calibrating import calibrate_bundle, cautions
from calibration.evaluating import Evaluation, RuleResult, asked_points, evaluate_bundle
from calibration.point import OperatingPoint
from calibration.record import CalibrationRecord
from calibration.scores import ScoreKind
from models.errors import UsageError

WIDTH_IN_FILES = 120

app = typer.Typer(help="Choose and check the thresholds of a bundle.")

BundlePath = Annotated[Path, typer.Argument(metavar="BUNDLE", help="Folder of the bundle.")]
Data = Annotated[str, typer.Option(help="Folder, manifest, or flora.")]
Device = Annotated[str, typer.Option(help="auto, cpu or cuda.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@app.command()
def calibrate(
    bundle: BundlePath,
    data: Data,
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
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Choose every threshold of a bundle on validation photos and put them into it."""
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
        device=device,
    )
    for caution in cautions(record):
        Console(stderr=True).print(f"[yellow]warning:[/] {caution}")
    if as_json:
        print_json(summary(record))
    else:
        print_table(calibration_table(record))


@app.command()
def evaluate(
    bundle: BundlePath,
    data: Data,
    split: Annotated[
        str, typer.Option(help="Split to measure on, or a part: test:0.3-1.")
    ] = "test",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Measure the sets of a calibrated bundle on photos it was not calibrated on."""
    evaluation = evaluate_bundle(bundle, data, split, device=device)
    if as_json:
        print_json(evaluation.to_plain())
    else:
        print_table(evaluation_table(evaluation))


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


def summary(record: CalibrationRecord) -> dict[str, object]:
    """What ``calibrate --json`` prints."""
    return {
        "calibration_id": record.calibration_id,
        "head": record.head,
        "score_kind": record.score_kind,
        "split": record.measured.split,
        "rows": record.measured.rows,
        "compared": [
            {"head": head, "score_kind": kind, "k": record.default_k, "hit_rate": rate}
            for (head, kind), rate in record.compared(record.default_k).items()
        ],
        "honest_hit_rate": record.selection.honest_hit_rate,
        "rules": [_plain(point) for point in asked_points(record)],
        "warnings": cautions(record),
    }


def calibration_table(record: CalibrationRecord) -> RichTable:
    """The thresholds as a table for people."""
    table = new_table(
        f"{record.measured.rows:,} photos of {record.measured.split}, head {record.head}, "
        f"{record.score_kind}",
        ("rule", "asked", "lambda", "size", "hits", "95 %"),
    )
    for point in asked_points(record):
        table.add_row(
            point.rule,
            f"{point.k if point.k is not None else point.coverage:g}",
            "-" if point.lambda_val is None else f"{point.lambda_val:.6g}",
            f"{point.expected_size.value:.3f}",
            f"{point.hit_rate.value:.3f}",
            _interval(point.hit_rate.ci95),
        )
    return table


def evaluation_table(evaluation: Evaluation) -> RichTable:
    """The results as a table for people."""
    rows = evaluation.rules[0].rows
    table = new_table(
        f"{evaluation.bundle} on {rows:,} photos of {evaluation.split}",
        ("rule", "asked", "size", "hits", "95 %", "macro", "empty", *evaluation.rules[0].shots),
    )
    for result in evaluation.rules:
        table.add_row(*_cells(result))
    return table


def new_table(title: str, headings: tuple[str, ...]) -> RichTable:
    """A table whose first column holds words and whose others hold numbers."""
    table = RichTable(
        title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    for heading in headings:
        left = heading == "rule"
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    return table


def print_table(table: RichTable) -> None:
    """On stdout: as wide as a terminal is, or as wide as it needs to be in a file."""
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH_IN_FILES)).print(table)


def print_json(content: object) -> None:
    """One JSON object on stdout, every float with all its digits."""
    typer.echo(json.dumps(content, allow_nan=False))


def _cells(result: RuleResult) -> list[str]:
    return [
        result.rule,
        f"{result.k if result.k is not None else result.level:g}",
        f"{result.mean_set_size:.3f}",
        f"{result.hit_rate:.3f}",
        _interval(result.hit_rate_ci95),
        _share(result.macro_hit_rate),
        f"{result.empty_rate:.3f}",
        *(_share(rate) for rate in result.shots.values()),
    ]


def _plain(point: OperatingPoint) -> dict[str, object]:
    by_coverage = point.coverage is not None
    return {
        "rule": point.rule,
        "level" if by_coverage else "k": point.coverage if by_coverage else point.k,
        "lambda_val": point.lambda_val,
        "mean_set_size": point.expected_size.value,
        "mean_set_size_ci95": point.expected_size.ci95,
        "hit_rate": point.hit_rate.value,
        "hit_rate_ci95": point.hit_rate.ci95,
        "empty_rate": point.empty_rate,
        "ties": point.ties,
        "rows": point.rows,
    }


def _interval(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.3f}-{bounds[1]:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
