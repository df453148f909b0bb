"""What ``calibrate`` and ``evaluate`` print: tables for people, JSON for programs.

Each figure is named once in the JSON object of its threshold, and once in :data:`CELLS` if tables
show it.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import isinf
from typing import Any

import typer
from rich.console import Console
from rich.table import Table as RichTable

from calibration.comparison import Change, Comparison
from calibration.live.audit import AuditReport
from calibration.offline.calibrate import cautions
from calibration.offline.evaluate import asked, asked_points, promised_points
from calibration.record import CalibrationRecord
from calibration.record.point import OperatingPoint
from calibration.rules import RULES, usual_guarantee
from calibration.scores import named
from calibration.threshold import threshold_text

WIDTH_IN_FILES = 120
Plain = Mapping[str, Any]


def summary(record: CalibrationRecord) -> dict[str, Any]:
    """What ``calibrate --json`` prints."""
    judge, k = record.rejection, record.default_k
    names = ("head", "score_kind", "temperature")
    return {
        "calibration_id": record.calibration_id,
        "head": record.head,
        "score_kind": record.score_kind,
        "temperature": record.temperature,
        "split": record.measured.split,
        "rows": record.measured.rows,
        "images": list(record.images),
        "compared": [
            {**dict(zip(names, which, strict=True)), "k": k, "hit_rate": rate}
            for which, rate in record.compared(k).items()
        ],
        "honest_hit_rate": record.selection.honest_hit_rate,
        "rejection": None
        if judge is None
        else {"method": judge.method, "threshold": judge.threshold, "share": judge.share},
        "rules": [_plain(point) for point in asked_points(record)],
        "guaranteed": [_plain(point) for point in promised_points(record)],
        "lists": [
            {
                "list": each.name,
                "classes": len(each.classes),
                "rows": each.rows,
                "rules": [_plain(point) for point in asked_points(record, list_name=each.name)],
            }
            for each in record.lists
        ],
        "warnings": cautions(record),
    }


def calibration_tables(record: CalibrationRecord) -> list[RichTable]:
    """The thresholds as tables for people: of single photos, and of several if calibrated."""
    judge, images = record.rejection, [images for images in record.images if images > 1]
    single = figures_table(
        f"{record.measured.rows:,} photos of {record.measured.split}, head {record.head}, "
        f"{named(record.score_kind, record.temperature)}, "
        f"rejection by {judge.method if judge else 'nothing'}",
        ("rule", "asked", "lambda", "size", "hits", "95 %"),
        map(_plain, [*asked_points(record), *promised_points(record)]),
    )
    several = figures_table(
        f"several photos of one plant, K = {record.default_k:g}",
        ("rule", "photos", "lambda", "size", "hits", "95 %", "groups", "made from"),
        (_of_several(record.point("average_k", images=number)) for number in images),
    )
    return [single, several] if images else [single]


def lists_tables(content: Plain) -> list[RichTable]:
    """What ``--json`` of either command prints of lists as a table for people, if there are any."""
    entries = [
        {**rule, "list": each["list"]}
        for each in content["lists"]
        for rule in each["rules"]
        if rule["rule"] == "average_k"
    ]
    headings = ("list", "asked", "size", "hits", "95 %", "of photos")
    title = "lists: average_k on the photos of their classes"
    return [figures_table(title, headings, entries)] if entries else []


def evaluation_table(evaluation: Plain) -> RichTable:
    """What ``evaluate --json`` prints as a table for people."""
    first, *_ = entries = [*evaluation["rules"], *evaluation["guaranteed"]]
    return figures_table(
        f"{evaluation['bundle']} on {first['rows']:,} photos of {evaluation['split']}",
        ("rule", "asked", "size", "hits", "95 %", "macro", "empty", *first["shots"]),
        entries,
    )


def comparison_table(found: Sequence[Comparison], against: str) -> RichTable:
    """Two bundles side by side."""
    table = new_table(
        f"against {against}, the same photos",
        ("rule", "old size", "new size", "change", "old hits", "new hits", "change of hits, 95 %"),
    )
    for each in found:
        low, high = each.hit_rate.ci95
        hits = f"{each.hit_rate.difference:+.3f} ({low:+.3f} to {high:+.3f})"
        size = f"{each.size.difference:+.3f}"
        table.add_row(each.rule, *_pair(each.size), size, *_pair(each.hit_rate), hits)
    return table


def audit_table(report: AuditReport) -> RichTable:
    """Hit rates of labelled requests."""
    table = new_table(
        "labelled requests, if drawn at random and all of them labelled",
        ("rule", "requests", "without label", "hits", "95 %", "95 %, looked at any time"),
    )
    for name, found in report.audits.items():
        counts = (str(found.rows), str(found.skipped), _share(found.hit_rate))
        table.add_row(name, *counts, _interval(found.fixed), _interval(found.anytime))
    return table


def figures_table(title: str, headings: Sequence[str], entries: Iterable[Plain]) -> RichTable:
    """A line for each JSON object; a heading is in :data:`CELLS`, or else in its ``shots``."""
    table = new_table(title, headings)
    for entry in entries:
        table.add_row(
            *(
                CELLS[heading](entry) if heading in CELLS else _share(entry["shots"][heading])
                for heading in headings
            )
        )
    return table


def new_table(title: str, headings: Sequence[str]) -> RichTable:
    """A table whose first column holds words and whose others hold numbers."""
    table = RichTable(
        title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False
    )
    for heading in headings:
        left = heading in ("rule", "list")
        table.add_column(heading, justify="left" if left else "right", no_wrap=True)
    return table


def print_table(table: RichTable) -> None:
    """Print a table on stdout, as wide as the terminal; a file gets 120 columns."""
    console = Console()
    (console if console.is_terminal else Console(width=WIDTH_IN_FILES)).print(table)


def print_json(content: object) -> None:
    """Print one JSON object on stdout: floats with all their digits, infinite ones as null."""
    typer.echo(json.dumps(_finite(content), allow_nan=False))


def warn(sentence: str) -> None:
    """Print a warning on stderr."""
    Console(stderr=True).print(f"[yellow]warning:[/] {sentence}")


def _finite(content: object) -> object:
    """JSON has no infinity, but the interval of a change on a single photo is infinite."""
    if isinstance(content, Mapping):
        return {name: _finite(entry) for name, entry in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(entry) for entry in content]
    return None if isinstance(content, float) and isinf(content) else content


def _plain(point: OperatingPoint) -> dict[str, Any]:
    """The JSON object of a threshold."""
    name, value = asked(point)
    return {
        "rule": point.rule,
        name: value,
        "guarantee": point.guarantee,
        "guaranteed": point.guaranteed,
        "delta": point.delta,
        "max_size": point.max_size,
        "small_classes": point.small_classes if RULES[point.rule].by_class else None,
        "lambda_val": point.lambda_val,
        **point.row.figures("calibrate"),
        "rows": point.rows,
    }


def _of_several(point: OperatingPoint) -> dict[str, Any]:
    return {**_plain(point), "images": point.images, "made_from": point.made_from}


def _titled(entry: Plain) -> str:
    """The rule, and its guarantee unless that is its usual one."""
    rule, guarantee = entry["rule"], entry["guarantee"]
    return f"{rule}" if guarantee == usual_guarantee(rule) else f"{rule}, {guarantee}"


def _lambda(entry: Plain) -> str:
    by_class = entry["small_classes"] is not None
    return "by class" if by_class else threshold_text(entry["lambda_val"])


def _pair(change: Change) -> tuple[str, str]:
    return f"{change.old:.3f}", f"{change.new:.3f}"


def _interval(bounds: tuple[float, float] | None) -> str:
    return "-" if bounds is None else f"{bounds[0]:.3f}-{bounds[1]:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


CELLS: Mapping[str, Callable[[Plain], str]] = {
    "rule": _titled,
    "list": lambda entry: str(entry["list"]),
    "asked": lambda entry: f"{entry['k'] if 'k' in entry else entry['level']:g}",
    "photos": lambda entry: str(entry["images"]),
    "lambda": _lambda,
    "size": lambda entry: _share(entry["mean_set_size"]),
    "hits": lambda entry: _share(entry["hit_rate"]),
    "95 %": lambda entry: _interval(entry["hit_rate_ci95"]),
    "macro": lambda entry: _share(entry["macro_hit_rate"]),
    "empty": lambda entry: _share(entry["empty_rate"]),
    "groups": lambda entry: f"{entry['rows']:,}",
    "of photos": lambda entry: f"{entry['rows']:,}",
    "made from": lambda entry: str(entry["made_from"]),
}
"""What a table shows of the JSON object of a threshold under each heading."""
