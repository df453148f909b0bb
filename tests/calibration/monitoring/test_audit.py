"""Audits from files of feedback and through the command; their intervals, checked by simulation
and by exact sums."""

import json
from functools import cache, partial
from math import comb
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import florilege.calibration.calibrate.photo_outputs
from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.monitoring.audit import (
    _anytime_interval,
    _audit,
    _clopper_pearson,
    audit_file,
)
from florilege.errors import DataError
from tests.calibration.command_line import run
from tests.calibration.small_bundle import make_bundle, make_data

RUNS = 2000


def at_most(hits: int, rows: int, p: float) -> float:
    return sum(
        comb(rows, count) * p**count * (1 - p) ** (rows - count) for count in range(hits + 1)
    )


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_exact_interval_solves_the_binomial_tails(rows: int, level: float) -> None:
    for hits in range(rows + 1):
        low, high = _clopper_pearson(hits, rows, level=level)
        assert low <= hits / rows <= high
        if hits:
            assert 1 - at_most(hits - 1, rows, low) == pytest.approx((1 - level) / 2)
        else:
            assert low == 0.0
        if hits < rows:
            assert at_most(hits, rows, high) == pytest.approx((1 - level) / 2)
        else:
            assert high == 1.0


@pytest.mark.parametrize("p", [0.5, 0.93])
def test_all_intervals_on_the_way_hold_the_truth_as_often_as_promised(p: float) -> None:
    random, rows, level, left_out, naive = np.random.default_rng(1), 300, 0.9, 0, 0
    interval = cache(partial(_anytime_interval, level=level))
    for _ in range(RUNS):
        hits = (random.random(rows) < p).cumsum()
        ends = [interval(result, count) for count, result in enumerate(hits.tolist(), start=1)]
        left_out += any(not low <= p <= high for low, high in ends)
        count = np.arange(1, rows + 1)
        share = hits / count
        half = 1.645 * np.sqrt(np.maximum(share * (1 - share), 1e-9) / count)
        naive += bool((abs(share - p) > half)[20:].any())
    assert left_out / RUNS <= 1 - level + 3 * np.sqrt(level * (1 - level) / RUNS)
    assert left_out > 0
    assert naive / RUNS > 0.3  # looking again and again at intervals for one look


@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_anytime_interval_is_where_the_capital_stays_below_its_limit(level: float) -> None:
    grid = np.linspace(0, 1, 2_000_001)[1:-1]
    for hits, rows in ((3, 10), (0, 5), (5, 5), (180, 200)):
        spread = np.exp(hits * np.log(grid) + (rows - hits) * np.log1p(-grid))
        inside = grid[spread > spread.mean() * (1 - level)]  # a uniform spread against each p
        low, high = _anytime_interval(hits, rows, level=level)
        assert (low, high) == pytest.approx((inside.min(), inside.max()), abs=2e-6)


def test_large_samples_are_no_trouble() -> None:
    low, high = _clopper_pearson(93_000, 100_000)
    assert (low, high) == pytest.approx((0.93 - 0.00159, 0.93 + 0.00158), abs=5e-5)
    assert _anytime_interval(93_000, 100_000)[0] == pytest.approx(0.927, abs=1e-3)


def test_an_audit_counts_hits_and_requests_without_a_label() -> None:
    rows: list[dict[str, Any]] = [
        {"class_id": "1", "set": ["1", "2"]},
        {"class_id": "3", "set": ("1", "2")},
        {"class_id": None, "set": ["1"]},
        {"class_id": "2", "set": ["2"], "more": "is ignored"},
    ]
    result = _audit(rows, level=0.9)
    assert result is not None
    assert (result.rows, result.hits, result.skipped, result.level) == (3, 2, 1, 0.9)
    assert result.hit_rate == pytest.approx(2 / 3)
    assert result.fixed == _clopper_pearson(2, 3, level=0.9)
    assert result.anytime == _anytime_interval(2, 3, level=0.9)


@pytest.mark.parametrize("rows", [1, 2, 5])
def test_a_level_beside_one_leaves_hardly_anything_out(rows: int) -> None:
    level = float(np.nextafter(1.0, 0.0))
    for interval in (_clopper_pearson, _anytime_interval):
        for hits in range(rows + 1):
            low, high = interval(hits, rows, level=level)
            assert 0 <= low <= hits / rows <= high <= 1


def row(**changes: Any) -> dict[str, Any]:
    return {"class_id": "c1", "set": ["c1", "c2"], "rule": "average_k", "k": 3.0, **changes}


def write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(entry) + "\n" for entry in rows))
    return path


def test_an_audit_by_the_rule_that_answered(tmp_path: Path) -> None:
    threes = [row()] * 8 + [row(class_id="c9")] * 2 + [row(class_id=None)]
    coverage = row(k=None, coverage=0.9, rule="coverage")
    others = [coverage, {**coverage, "guarantee": "mean"}, coverage, *[row(images=2)] * 4]
    others += [row(guarantee="mean"), {**coverage, "guarantee": "probability", "images": 2}]
    others += [row(set=[], verdict="rejected"), row(verdict="accepted", images=2)]
    plain = [{"class_id": "a", "set": ["a"]}, {"class_id": "b", "set": ["a"]}]
    path = write(tmp_path / "rows.jsonl", threes + others + plain)
    path.write_bytes(path.read_bytes() + b'\n{"class_id": "c')  # a torn line
    report = audit_file(path)
    assert report.audits["sets"] == _audit(plain)
    assert report.audits["average_k k=3"] == _audit(threes)
    assert report.audits["average_k k=3"].hit_rate == 0.8
    assert report.audits["coverage coverage=0.9"].rows == 3
    assert report.audits["average_k k=3, 2 photos"].rows == 5
    assert report.audits["average_k k=3, rejected"].hits == 0
    assert report.audits["average_k k=3 guarantee=mean"].rows == 1
    assert report.audits["coverage coverage=0.9 guarantee=probability, 2 photos"].rows == 1
    assert (report.other_calibrations, report.damaged) == (0, 1)


def test_answers_of_another_calibration_are_left_out(tmp_path: Path) -> None:
    rows = [row(calibration_id="old", class_id="c9")] * 5 + [row(calibration_id="new")] * 2
    path = write(tmp_path / "r.jsonl", rows)
    report = audit_file(path, calibration_id="new")
    assert report.audits["average_k k=3"].hits == report.audits["average_k k=3"].rows == 2
    assert report.other_calibrations == 5
    with pytest.raises(DataError, match="calibration"):
        audit_file(path, calibration_id="third")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read"),
        (b"", "no request"),
        (b'{"class_id": null, "set": ["a"]}\n', "no request"),
        (b'{"class_id": "a"}\n', "set"),
        (b'{"set": ["a"]}\n', "row 0 must have class_id and set"),
        (b'{"class_id": "a", "set": "a"}\n', "row 0"),
        (b'{"class_id": "a", "set": []}\n{"class_id": "a"}\n', "row 1"),
        (b'{"set": ["a"]}\n{"class_id": "a", "set": ["a"]}\n', "class_id"),
        (b"[]\n", "no request"),
        (b"\xff\xfe\n", "no request"),
    ],
)
def test_what_is_no_feedback_is_a_data_error(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    path = tmp_path / "r.jsonl"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        audit_file(path)


def test_the_command_prints_both_intervals(tmp_path: Path) -> None:
    data = str(make_data(tmp_path / "d", rows=5))
    record = calibrate_bundle(make_bundle(tmp_path / "b").path, data)
    rows = [row(calibration_id=record.calibration_id)] * 9 + [row(calibration_id="x")]
    rows.append(row(calibration_id=record.calibration_id, class_id="c5"))
    path = write(tmp_path / "rows.jsonl", rows)
    arguments = ("evaluate", tmp_path / "b", "--feedback-store", path)
    result = run(*arguments, "--json")
    actual = json.loads(result.stdout)["audit"]
    expected = _audit([row()] * 9 + [row(class_id="c5")])
    assert expected is not None
    assert actual["audits"][0]["hit_rate"] == expected.hit_rate == 0.9
    assert tuple(actual["audits"][0]["anytime"]) == expected.anytime
    assert "1 rows of feedback left out" in result.stderr
    table = run(*arguments, "--data", data).stdout
    assert "labelled requests" in table
    assert "photos of test" in table


def test_feedback_that_says_nothing_is_refused_before_any_photo_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = str(make_data(tmp_path / "d", rows=12))
    bundle = make_bundle(tmp_path / "b").path
    calibrate_bundle(bundle, data)
    monkeypatch.setattr(florilege.calibration.calibrate.photo_outputs, "outputs_of", None)
    path = write(tmp_path / "rows.jsonl", [row(class_id=None)])
    error = run("evaluate", bundle, "--data", data, "--feedback-store", path).exception
    assert isinstance(error, DataError)
    assert "labelled" in str(error)
