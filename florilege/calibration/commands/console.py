"""The output of ``calibrate`` and ``evaluate``: tables for people, JSON for programs.

The JSON object of a threshold names each figure once; :data:`_CELLS` names those that tables show.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

from rich.table import Table

from florilege.calibration.calibrate import (
    BundleOutputs,
    Evaluation,
    Gate,
    bundle_outputs,
    check_comparable,
    compare_outputs,
)
from florilege.calibration.calibrate.cautions import cautions
from florilege.calibration.comparison import Comparison
from florilege.calibration.monitoring.audit import AuditReport
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.report.diagnostics import Diagnostics, diagnose
from florilege.calibration.rules import RULES
from florilege.calibration.scores import score_name
from florilege.calibration.settings import EvaluateCommand
from florilege.calibration.threshold import threshold_text
from florilege.calibration.view import PLAIN, View
from florilege.errors import UsageError, install_hint, os_error_as, way_out
from florilege.files import check_writable
from florilege.models.output_store import cache_folder
from florilege.terminal import Titled, new_table, warn

Plain = Mapping[str, Any]
PageMaker = Callable[[BundleOutputs, Evaluation, Diagnostics | None], str]
"""Makes the page of ``--report``; the last argument describes the baseline."""
FIRST = "average_k"  # the rule that tables show first, and alone without --all

_LEGEND = """asked: mean size or coverage; size: classes in a set, on average;
hits: share of sets with the right class, with its 95 % interval"""
_BY_CLASS = """; macro: mean over classes;
few, medium, many: hits for classes with under 20, up to 100, more training photos"""


def summary(record: CalibrationRecord) -> dict[str, Any]:
    """What ``calibrate --json`` prints."""
    rejection, k, measured = record.rejection, record.default_k, record.measured
    names = ("head", "score_kind", "temperature")
    of_photos = ("split", "rows", "observations", "train_photos", "near_copies", "selection_photos")
    return {
        "calibration_id": record.calibration_id,
        **{name: getattr(record, name) for name in names},
        **{name: getattr(measured, name) for name in (*of_photos, "selection_split")},
        "label_noise": None if measured.label_noise is None else asdict(measured.label_noise),
        "images": list(record.photos),
        "views": [asdict(view) for view in record.views],
        "compared": [
            {**dict(zip(names, candidate, strict=True)), "k": k, "hit_rate": rate}
            for candidate, rate in record.compared(k).items()
        ],
        "honest_hit_rate": record.selection.honest_hit_rate,
        "honest_ci95": record.selection.honest_ci95,
        "rejection": None
        if rejection is None
        else {name: getattr(rejection, name) for name in ("method", "threshold", "share")},
        **_rules_of(record, PLAIN),
        "lists": [
            region.to_plain(_rules_of(record, View(list=region.name))["rules"])
            for region in record.lists
        ],
        "warnings": cautions(record),
    }


def _rules_of(record: CalibrationRecord, view: View) -> dict[str, list[dict[str, Any]]]:
    """The JSON objects of thresholds, with their figures on the photos that chose them."""
    rules: dict[str, list[dict[str, Any]]] = {"rules": [], "guaranteed": []}
    for point in record.requested_points(view):
        rules["guaranteed" if point.on_request else "rules"].append(point.to_plain())
    return rules


def calibration_tables(
    record: CalibrationRecord, content: Plain, *, all_rules: bool
) -> list[Titled]:
    """Tables of the thresholds: those of ``calibrate --json``, and some for several photos."""
    rejection = content["rejection"]
    marked = "will be marked" if rejection else "will not be marked"
    title = f"{_photos(content)} of {content['split']}; photos unlike these {marked}"
    if all_rules:
        scores = score_name(content["score_kind"], content["temperature"])
        title += f"; scores: {scores} of head {content['head']}"
    headings = ("rule", "asked", "threshold", "size", "hits", "95 %")
    tables = _by_guarantee(title, headings, content, all_rules=all_rules)
    points = [
        record.point(view, record.setting("average_k"))
        for view in record.views
        if not view.single and (all_rules or view.list is None)  # lists have a table of their own
    ]
    entries = [
        {**point.to_plain(), **asdict(point.table.view), "made_from": point.table.made_from}
        for point in points
    ]
    views = _views_tables(entries, ["threshold"], all_rules=all_rules)
    return [*tables, *views, *_lists_tables(content)]


@dataclass
class EvaluationOutput:
    """The output of ``evaluate``: JSON for programs, tables for people, and the report page."""

    content: dict[str, Any] = field(default_factory=dict)
    tables: list[Titled] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # why the gate fails
    page: str | None = None

    @classmethod
    def of(
        cls,
        bundle: Path,
        data: str,
        command: EvaluateCommand,
        limits: Gate | None,
        make_page: PageMaker | None,
    ) -> "EvaluationOutput":
        """Measure a bundle on the photos of ``data``, and a baseline on the same photos."""
        split, device, baseline = command.split, command.device, command.baseline
        if baseline is not None:
            gated = limits is not None
            check_comparable(bundle, baseline, data, split, device=device, gated=gated)
        photos = partial(
            bundle_outputs,
            data=data,
            split=split,
            device=device,
            runtime=command.runtime,
            cache=cache_folder(command.output_cache),
            skip_damaged=command.skip_damaged,
            # Two bundles leave out the same photos, and each warning is worth one line.
            say=cache(warn),
        )
        with photos(bundle) as new:
            evaluation = Evaluation.of(new, data, command.label_noise, warn)
            content = evaluation.to_plain()
            for warning in content["warnings"]:
                warn(warning)
            k = new.record.default_k
            tables = _evaluation_tables(content, all_rules=command.all_rules, k=k)
            output, older = cls(content, tables), None
            if baseline is not None:
                with photos(baseline) as old:
                    comparisons = compare_outputs(new, old)
                    if make_page is not None:
                        older = diagnose(old.record, old.outputs)
                content["against"] = [asdict(comparison) for comparison in comparisons]
                content["gate"] = None
                if limits is not None:
                    output.failures = limits.reasons(comparisons[0])
                    content["gate"] = {"passed": not output.failures, "why": output.failures}
                everything = command.all_rules
                tables.append(_comparison_table(comparisons, baseline, all_rules=everything))
            if make_page is not None:
                if (noise := evaluation.label_noise) is not None:
                    # Its charts take labels as right, so its tables do too; it says so.
                    evaluation = replace(Evaluation.of(new), label_noise=noise)
                output.page = make_page(new, evaluation, older)
        return output

    def add_audit(self, audit: AuditReport) -> None:
        """Add the hit rates of labelled requests; warn about rows that are left out."""
        self.content["audit"] = audit.to_plain()
        self.tables.append(_audit_table(audit))
        omitted = {"answered by another calibration": audit.other_calibrations,
                   "damaged": audit.damaged}  # fmt: skip
        for reason, count in omitted.items():
            if count:
                warn(f"{count} rows of feedback left out: {reason}")


def _evaluation_tables(content: Plain, *, all_rules: bool, k: float = 3.0) -> list[Titled]:
    entries: list[Plain] = [*content["rules"], *content["guaranteed"]]
    first = entries[0]
    empty = ["empty"] if any(entry["empty_rate"] for entry in entries) else []
    photos = _photos({"rows": first["rows"], "observations": content["observations"]})
    headings = ("rule", "asked", "size", "hits", "95 %", "macro", *empty, *first["shots"])
    name, _, version = content["bundle"].rpartition(" ")
    title = f"bundle {name}, version {version}, on {photos} of {content['split']}"
    tables = _by_guarantee(title, headings, content, all_rules=all_rules)
    views = [
        {**rule, **{name: view[name] for name in ("photos", "list", "place", "made_from", "rows")}}
        for view in content.get("views", ())
        for rule in view["rules"]
        if rule["rule"] == FIRST and rule["k"] == k
        if all_rules or view["list"] is None
    ]
    return [*tables, *_views_tables(views, [], all_rules=all_rules), *_lists_tables(content)]


def _photos(content: Plain) -> str:
    """Such as ``1,000 photos of 250 plants``; omits plants if each has one photo or is unknown."""
    rows, observations = content["rows"], content["observations"]
    return f"{rows:,} photos" + (
        "" if observations in (None, rows) else f" of {observations:,} plants"
    )


def _views_tables(
    entries: Sequence[Plain], threshold: Sequence[str], *, all_rules: bool
) -> list[Titled]:
    """A table of views at one K, if there are any."""
    if not entries:
        return []
    beside = ["photos", "list", "place"] if all_rules else ["photos", "place"]
    columns = [*beside, *threshold, "size", "hits", "95 %", "groups", "of one"]
    about = f"{FIRST} with more known than one photo, K = {entries[0]['k']:g}"
    return [(about, _figures_table(columns, entries))]


def _lists_tables(content: Plain) -> list[Titled]:
    """A table of the lists in the JSON output of either command, if there are any."""
    entries = [
        {**rule, "list": region["list"]}
        for region in content["lists"]
        for rule in region["rules"]
        if rule["rule"] == FIRST
    ]
    headings = ("list", "asked", "size", "hits", "95 %", "of photos")
    title = f"lists: {FIRST} on the photos of their classes"
    return [(title, _figures_table(headings, entries))] if entries else []


def _comparison_table(
    comparisons: Sequence[Comparison], against: Path, *, all_rules: bool
) -> Titled:
    table = new_table(("rule", "size", "hits", "change", "95 %"), words=("rule",))
    for comparison in comparisons:
        if all_rules or comparison.rule.startswith(f"{FIRST} "):
            low, high = comparison.hit_rate.ci95
            change = f"{comparison.hit_rate.difference:+.3f}"
            sizes = f"{_size(comparison.size.old)} -> {_size(comparison.size.new)}"
            hits = f"{_share(comparison.hit_rate.old)} -> {_share(comparison.hit_rate.new)}"
            table.add_row(
                _brief(comparison.rule), sizes, hits, change, f"{low:+.3f} to {high:+.3f}"
            )
    return f"against {against}, the same photos: old -> new, and the change of hits", table


def _audit_table(report: AuditReport) -> Titled:
    headings = ("rule", "requests", "unlabelled", "hits", "95 %", "95 %, any time")
    table = new_table(headings, words=("rule", "list"))
    table.columns[0].no_wrap, table.columns[0].max_width = False, 27
    for name, audit in report.audits.items():
        counts = (str(audit.rows), str(audit.skipped), _share(audit.hit_rate))
        table.add_row(_brief(name), *counts, _interval(audit.fixed), _interval(audit.anytime))
    return "labelled requests, if drawn at random and all of them labelled", table


def _figures_table(headings: Sequence[str], entries: Iterable[Plain]) -> Table:
    """A row for each JSON object; each heading is a key of :data:`_CELLS` or of its ``shots``."""
    table = new_table(headings, words=("rule", "list", "place", "of one"))
    for entry in entries:
        shots = {name: _share(rate) for name, rate in entry.get("shots", {}).items()}
        table.add_row(*(shots.get(heading) or _CELLS[heading](entry) for heading in headings))
    return table


def _by_guarantee(
    title: str, headings: Sequence[str], content: Plain, *, all_rules: bool
) -> list[Titled]:
    """A table of the first rule or of all rules; with all, also one for each further guarantee."""
    entries = {title: [entry for entry in content["rules"] if all_rules or entry["rule"] == FIRST]}
    for entry in content["guaranteed"] if all_rules else ():
        entries.setdefault(f"guarantee={entry['guarantee']}", []).append(entry)
    return [(name, _figures_table(headings, figures)) for name, figures in entries.items()]


def legend_of(content: Plain) -> str:
    """What the headings of the tables mean."""
    by_class = any(entry.get("shots") for entry in content.get("rules", ()))
    return f"{_LEGEND}{_BY_CLASS if by_class else ''}"


def _brief(name: str) -> str:
    """``average_k k=3`` as ``average_k 3``."""
    return re.sub(r" (k|coverage)=", " ", name).replace(" guarantee=", ", ")


def _size(value: float) -> str:
    """A mean set size in at most six characters, for up to 99,999 classes."""
    digits = 3 if value < 99.9995 else 1 if value < 999.95 else 0
    return f"{value:,.{digits}f}"


def _interval(bounds: tuple[float, float] | None) -> str:
    return "-" if bounds is None else f"{bounds[0]:.3f}-{bounds[1]:.3f}"


def _share(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


_MADE_FROM = {"observations": "plant", "same_class": "species", None: "photo"}

_CELLS: Mapping[str, Callable[[Plain], str]] = {
    "rule": lambda entry: str(entry["rule"]),
    "list": lambda entry: str(entry["list"] or "-"),
    "place": lambda entry: (entry["place"] or "-").replace("_and_", ", "),
    "asked": lambda entry: f"{entry['k'] if 'k' in entry else entry['level']:g}",
    "photos": lambda entry: str(entry["photos"]),
    "threshold": lambda entry: (
        "by class" if RULES[entry["rule"]].by_class else threshold_text(entry["lambda_val"])
    ),
    "size": lambda entry: _size(entry["mean_set_size"]),
    "hits": lambda entry: _share(entry["hit_rate"]),
    "95 %": lambda entry: _interval(entry["hit_rate_ci95"]),
    "macro": lambda entry: _share(entry["macro_hit_rate"]),
    "empty": lambda entry: _share(entry["empty_rate"]),
    "groups": lambda entry: f"{entry['rows']:,}",
    "of photos": lambda entry: f"{entry['rows']:,}",
    "of one": lambda entry: _MADE_FROM.get(entry["made_from"], "request"),
}
"""The text under each heading of a table, from the JSON object of a threshold."""


def page_maker(report: Path) -> PageMaker:
    """The function that makes the report; UsageError if it cannot be made or written."""
    if report.is_dir():
        raise UsageError(f"--report {report} is a folder: name an HTML file to write")
    try:
        from florilege.calibration.report.evaluation_report import evaluation_report
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--report needs {error.name}; leave it out, or {install_hint('report')}"
        ) from error
    with os_error_as(UsageError, f"--report {report} cannot be written", way_out):
        check_writable(report)
    return evaluation_report
