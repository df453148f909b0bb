"""The measurements and the output of ``florilege evaluate``."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from florilege.calibration.calibrate.evaluate import Evaluation, evaluate_outputs
from florilege.calibration.calibrate.gate import Gate, compare_outputs
from florilege.calibration.calibrate.photo_outputs import BundleOutputs
from florilege.calibration.commands.console import (
    Titled,
    audit_table,
    comparison_table,
    evaluation_tables,
    lists_tables,
)
from florilege.calibration.monitoring.audit import AuditReport
from florilege.calibration.report.diagnostics import Diagnostics, diagnose
from florilege.terminal import warn

PageMaker = Callable[[BundleOutputs, Evaluation, Diagnostics | None], str]
"""Makes the page of ``--report``; the last argument describes the baseline."""


@dataclass
class EvaluationOutput:
    """The output of ``evaluate``: JSON for programs, tables for people, and the report page."""

    content: dict[str, Any] = field(default_factory=dict)
    tables: list[Titled] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)  # why the gate fails
    page: str | None = None

    def add_audit(self, audit: AuditReport) -> None:
        """Add the hit rates of labelled requests; warn about rows that are left out."""
        self.content["audit"] = audit.to_plain()
        self.tables.append(audit_table(audit))
        omitted = {"answered by another calibration": audit.other_calibrations,
                   "damaged": audit.damaged}  # fmt: skip
        for reason, count in omitted.items():
            if count:
                warn(f"{count} rows of feedback left out: {reason}")


def measure(
    photos: Callable[[Path], AbstractContextManager[BundleOutputs]],
    bundle: Path,
    baseline: Path | None,
    limits: Gate | None,
    make_page: PageMaker | None,
    *,
    all_rules: bool,
) -> EvaluationOutput:
    """Measure a bundle on photos, and compare it with a baseline on the same photos."""
    with photos(bundle) as new:
        evaluation = evaluate_outputs(new)
        for warning in evaluation.warnings:
            warn(warning)
        content = evaluation.to_plain()
        tables = [*evaluation_tables(content, all_rules=all_rules), *lists_tables(content)]
        output, older = EvaluationOutput(content, tables), None
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
            tables.append(comparison_table(comparisons, str(baseline), all_rules=all_rules))
        if make_page is not None:
            output.page = make_page(new, evaluation, older)
    return output
