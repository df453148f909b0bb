"""What ``calibrate`` and ``evaluate`` print: tables for people, JSON for programs."""

import json
from collections.abc import Mapping, Sequence
from math import isinf

import typer
from rich.console import Console
from rich.table import Table as RichTable

from calibration.comparison import Change, Comparison
from calibration.live.feedback import AuditReport
from calibration.offline.calibrate import cautions
from calibration.offline.evaluate import Evaluation, RuleResult, asked_points, promised_points
from calibration.record import CalibrationRecord
from calibration.record.point import OperatingPoint
from calibration.rules import RULES, usual_guarantee
from calibration.scores import named
from calibration.threshold import threshold_text

WIDTH_IN_FILES = 120
CHANGES = ("old size", "new size", "change", "old hits", "new hits", "change of hits, 95 %")


def summary(record: CalibrationRecord) -> dict[str, object]:
    """What ``calibrate --json`` prints."""
    judge = record.rejection
    return {
        "calibration_id": record.calibration_id,
        "head": record.head,
        "score_kind": record.score_kind,
        "temperature": record.temperature,
        "split": record.measured.split,
        "rows": record.measured.rows,
        "images": list(record.images),
        "compared": [
            {
                "head": head,
                "score_kind": kind,
                "temperature": temperature,
                "k": record.default_k,
                "hit_rate": rate,
            }
            for (head, kind, temperature), rate in record.compared(record.default_k).items()
        ],
        "honest_hit_rate": record.selection.honest_hit_rate,
        "rejection": None
        if judge is None
        else {"method": judge.method, "threshold": judge.threshold, "share": judge.share},
        "rules": [_plain(point) for point in asked_points(record)],
        "guaranteed": [_plain(point) for point in promised_points(record)],
        "warnings": cautions(record),
    }


def calibration_table(record: CalibrationRecord) -> RichTable:
    """The thresholds as a table for people."""
    judge = record.rejection
    table = new_table(
        f"{record.measured.rows:,} photos of {record.measured.split}, head {record.head}, "
        f"{named(record.score_kind, record.temperature)}, "
        f"rejection by {judge.method if judge else 'nothing'}",
        ("rule", "asked", "lambda", "size", "hits", "95 %"),
    )
    for point in [*asked_points(record), *promised_points(record)]:
        hits = point.hit_rate
        table.add_row(
            _titled(point),
            f"{point.k if point.k is not None else point.coverage:g}",
            threshold_text(point.lambda_val) if point.class_thresholds is None else "by class",
            f"{point.expected_size.value:.3f}",
            _share(None if hits is None else hits.value),
            "-" if hits is None else _interval(hits.ci95),
        )
    return table


def photos_table(record: CalibrationRecord) -> RichTable | None:
    """Sets from several photos at the default K; None where there are no thresholds for any."""
    several = [images for images in record.images if images > 1]
    if not several:
        return None
    table = new_table(
        f"several photos of one plant, K = {record.default_k:g}",
        ("rule", "photos", "lambda", "size", "hits", "95 %", "groups", "made from"),
    )
    for images in several:
        point = record.point("average_k", images=images)
        hits = point.hit_rate
        table.add_row(
            point.rule,
            str(images),
            threshold_text(point.lambda_val),
            f"{point.expected_size.value:.3f}",
            _share(None if hits is None else hits.value),
            "-" if hits is None else _interval(hits.ci95),
            f"{point.rows:,}",
            str(point.made_from),
        )
    return table


def evaluation_table(evaluation: Evaluation) -> RichTable:
    """The results as a table for people."""
    rows = evaluation.rules[0].rows
    table = new_table(
        f"{evaluation.bundle} on {rows:,} photos of {evaluation.split}",
        ("rule", "asked", "size", "hits", "95 %", "macro", "empty", *evaluation.rules[0].shots),
    )
    for result in (*evaluation.rules, *evaluation.guaranteed):
        table.add_row(*_cells(result))
    return table


def comparison_table(found: Sequence[Comparison], against: str) -> RichTable:
    """Two bundles side by side."""
    table = new_table(f"against {against}, the same photos", ("rule", *CHANGES))
    for comparison in found:
        table.add_row(comparison.rule, *_changes(comparison))
    return table


def audit_table(report: AuditReport) -> RichTable:
    """Hit rates of labelled requests."""
    table = new_table(
        "labelled requests, if drawn at random and all of them labelled",
        ("rule", "requests", "without label", "hits", "95 %", "95 %, looked at any time"),
    )
    for name, found in report.audits.items():
        table.add_row(
            name,
            str(found.rows),
            str(found.skipped),
            f"{found.hit_rate:.3f}",
            _interval(found.fixed),
            _interval(found.anytime),
        )
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
    """One JSON object on stdout, every float with all its digits, an infinite one as null."""
    typer.echo(json.dumps(_finite(content), allow_nan=False))


def _finite(content: object) -> object:
    """JSON has no infinity, which the interval of a change has on a single photo."""
    if isinstance(content, Mapping):
        return {name: _finite(entry) for name, entry in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(entry) for entry in content]
    return None if isinstance(content, float) and isinf(content) else content


def warn(sentence: str) -> None:
    """A warning on stderr."""
    Console(stderr=True).print(f"[yellow]warning:[/] {sentence}")


def _cells(result: RuleResult) -> list[str]:
    return [
        _titled(result),
        f"{result.k if result.k is not None else result.level:g}",
        f"{result.mean_set_size:.3f}",
        f"{result.hit_rate:.3f}",
        _interval(result.hit_rate_ci95),
        _share(result.macro_hit_rate),
        f"{result.empty_rate:.3f}",
        *(_share(rate) for rate in result.shots.values()),
    ]


def _titled(found: OperatingPoint | RuleResult) -> str:
    """The rule, and what it promises only where it is asked to."""
    if found.guarantee == usual_guarantee(found.rule):
        return found.rule
    return f"{found.rule}, {found.guarantee}"


def _changes(found: Comparison) -> list[str]:
    return [*_pair(found.size), f"{found.size.difference:+.3f}", *_pair(found.hit_rate), (
        f"{found.hit_rate.difference:+.3f} ({found.hit_rate.ci95[0]:+.3f} to "
        f"{found.hit_rate.ci95[1]:+.3f})"
    )]  # fmt: skip


def _pair(change: Change) -> tuple[str, str]:
    return f"{change.old:.3f}", f"{change.new:.3f}"


def _plain(point: OperatingPoint) -> dict[str, object]:
    by_coverage = point.coverage is not None
    return {
        "rule": point.rule,
        "level" if by_coverage else "k": point.coverage if by_coverage else point.k,
        "guarantee": point.guarantee,
        "guaranteed": point.guaranteed,
        "delta": point.delta,
        "max_size": point.max_size,
        "small_classes": point.small_classes if RULES[point.rule].by_class else None,
        "lambda_val": point.lambda_val,
        **point.row.figures,
        "rows": point.rows,
    }


def _interval(bounds: tuple[float, float]) -> str:
    return f"{bounds[0]:.3f}-{bounds[1]:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
