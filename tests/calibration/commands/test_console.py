"""Tables of the commands: what they show first, and that they fit 80 columns."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from florilege import terminal
from florilege.calibration.commands import console
from florilege.calibration.comparison import Comparison, _Change
from florilege.calibration.monitoring.audit import AuditReport, _Audit
from florilege.calibration.rules import RULES
from florilege.calibration.view import PLAIN, View
from florilege.terminal import Titled, print_table

KS, LEVELS = (1, 2.5, 10, 19.9), (0.9, 0.995)


def entry(rule: str, value: float, guarantee: str | None = None) -> dict[str, Any]:
    """A threshold among 1,081 classes as JSON has it, with figures as long as they get."""
    asks = "k" if RULES[rule].asks == "k" else "level"
    return {
        "rule": rule, asks: value, "guarantee": guarantee, "lambda_val": 1.23456e-05,
        "macro_weight": 0.5 if RULES[rule].by_class else None,
        "mean_set_size": 1026.319 if asks == "level" else value + 0.0004, "hit_rate": 0.9,
        "hit_rate_ci95": (0.8, 1.0), "macro_hit_rate": 1.0, "empty_rate": 0.25,
        "shots": {"few": 0.5, "medium": None, "many": 1.0}, "rows": 31_112,
    }  # fmt: skip


RULE_ENTRIES = [
    entry(rule, value)
    for rule, spec in RULES.items()
    for value in (KS if spec.asks == "k" else LEVELS)
]
GUARANTEED = [
    entry(rule, value, guarantee)
    for rule, values in (("average_k", KS), ("coverage", LEVELS))
    for guarantee in ("mean", "probability")
    for value in values
]
EVALUATION: dict[str, Any] = {
    "bundle": "a name " * 20, "split": "test", "rules": RULE_ENTRIES, "guaranteed": GUARANTEED,
    "observations": None, "lists": [],
}  # fmt: skip


def printed(tables: Sequence[Titled], capsys: pytest.CaptureFixture[str]) -> list[str]:
    """The lines of some tables, without their titles; none of them is cut or too wide."""
    lines = []
    for title, table in tables:
        print_table(table, title)
        lines += capsys.readouterr().out.splitlines()[1:]
    assert max(map(len, lines)) <= 80
    assert not any(mark in line for line in lines for mark in "…\x1b━│┃")
    return lines


def rules_of(lines: Sequence[str]) -> set[str]:
    return {line.split()[0] for line in lines} - {"rule"}


@pytest.mark.parametrize("all_rules", [False, True])
def test_an_evaluation_shows_average_k_and_on_request_all(
    all_rules: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = console._evaluation_tables(EVALUATION, all_rules=all_rules)
    lines = printed(tables, capsys)
    assert [title for title, _ in tables[1:]] == ["guarantee=mean", "guarantee=probability"][
        : 2 * all_rules
    ]
    assert rules_of(lines) == (set(RULES) if all_rules else {"average_k"})
    assert lines[0].split()[:3] == ["rule", "asked", "size"]
    assert lines[1].split()[:4] == ["average_k", "1", "1.000", "0.900"]
    assert len(lines) - len(tables) == (
        len(RULE_ENTRIES) + len(GUARANTEED) if all_rules else len(KS)
    )


def test_a_column_of_empty_sets_is_there_if_some_are(capsys: pytest.CaptureFixture[str]) -> None:
    none = [{**each, "empty_rate": 0.0} for each in RULE_ENTRIES]
    for rules, visible in ((RULE_ENTRIES, True), (none, False)):
        evaluation = {**EVALUATION, "rules": rules, "guaranteed": []}
        heading = printed(console._evaluation_tables(evaluation, all_rules=True), capsys)[0]
        assert ("empty" in heading) is visible


@pytest.mark.parametrize("all_rules", [False, True])
def test_a_calibration_shows_average_k_and_on_request_all(
    all_rules: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    several = {**entry("average_k", 3), "rows": 1_234_567}
    content = {**EVALUATION, "rejection": None, "head": "multi_label", "score_kind": "softmax",
               "temperature": 1.0, "rows": 31_112}  # fmt: skip
    made = {View(photos=5): "observations", View(place="region_and_month"): None,
            View(photos=5, list="alps", place="region"): "same_class"}  # fmt: skip
    tables_of = {view: SimpleNamespace(view=view, made_from=made[view]) for view in made}
    record: Any = SimpleNamespace(
        views=[PLAIN, *made], default_k=3.0, setting=lambda rule: rule,
        point=lambda view, _: SimpleNamespace(table=tables_of[view], to_plain=lambda: several),
    )  # fmt: skip
    tables = console.calibration_tables(record, content, all_rules=all_rules)
    single, (title, plants) = printed(tables[:-1], capsys), tables[-1]
    assert rules_of(single) == (set(RULES) if all_rules else {"average_k"})
    assert single[1].split() == ["average_k", "1", "1.23456e-05", "1.000", "0.900", "0.800-1.000"]
    assert title == "average_k with more known than one photo, K = 3"
    rows = [" ".join(line.split()) for line in printed([(title, plants)], capsys)]
    figures = "1.23456e-05 3.000 0.900 0.800-1.000 1,234,567"
    if all_rules:
        assert rows[1:4] == [f"5 - - {figures} plant", f"1 - region, month {figures} photo",
                             f"5 alps region {figures} species"]  # fmt: skip
    else:
        assert rows[1:3] == [f"5 - {figures} plant", f"1 region, month {figures} photo"]


@pytest.mark.parametrize("all_rules", [False, True])
def test_a_comparison_shows_average_k_and_on_request_all(
    all_rules: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    size = _Change(old=1046.2, new=9.99962, difference=-1036.2, ci95=(-1040.0, -1030.0))
    hits = _Change(old=0.901, new=0.8, difference=-0.101, ci95=(-0.2, 0.001))
    rows = [
        Comparison(rule=rule, rows=9, hit_rate=hits, size=size, gained=1, lost=1, p_value=1.0)
        for rule in ("average_k k=2.5", "balanced_average_k k=10", "balanced_coverage coverage=0.9")
    ]
    table = console._comparison_table(rows, Path("a path/" * 20), all_rules=all_rules)
    lines = printed([table], capsys)
    assert " ".join(lines[1].split()) == (
        "average_k 2.5 1,046 -> 10.000 0.901 -> 0.800 -0.101 -0.200 to +0.001"
    )
    assert [line.split()[0] for line in lines[2:]] == (
        ["balanced_average_k", "balanced_coverage"] if all_rules else []
    )


def test_an_audit_breaks_long_names_between_words(capsys: pytest.CaptureFixture[str]) -> None:
    many, bounds = 1_000_000, (0.1, 1.0)
    audit = _Audit(
        rows=many, skipped=many, hits=1, hit_rate=0.5, level=0.95, fixed=bounds, anytime=bounds
    )
    name = "balanced_coverage coverage=0.95 guarantee=probability, 3 photos, rejected"
    audits = {"average_k k=3": audit, name: audit}
    report = AuditReport(audits=audits, other_calibrations=0, damaged=0)
    lines = printed([console._audit_table(report)], capsys)
    assert lines[1].startswith("average_k 3 ")
    assert [line[:27].rstrip() for line in lines[2:]] == [
        "balanced_coverage 0.95,", "probability, 3 photos,", "rejected",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.000"), (3, "3.000"), (99.9994, "99.999"), (99.9995, "100.0"), (999.94, "999.9"),
     (999.96, "1,000"), (99_999, "99,999")],
)  # fmt: skip
def test_a_size_has_at_most_six_characters(size: float, text: str) -> None:
    assert console._size(size) == text


def test_an_infinite_number_is_null_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.print_json({"ci95": (float("-inf"), 1.5), "rules": [{"k": 2.0}]})
    assert capsys.readouterr().out == '{"ci95": [null, 1.5], "rules": [{"k": 2.0}]}\n'
