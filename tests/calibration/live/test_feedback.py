"""Audits from files of feedback, and through the command."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import calibration.offline.outputs
from calibration.cli import app
from calibration.live.audit import audit
from calibration.live.feedback import audit_file
from calibration.offline.calibrate import calibrate_bundle
from models.errors import DataError
from tests.calibration.small_bundle import make_bundle, make_data


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
    path = write(tmp_path / "rows.jsonl", threes + others)
    report = audit_file(path)
    assert report.audits["average_k k=3"] == audit(threes)
    assert report.audits["average_k k=3"].hit_rate == 0.8
    assert report.audits["coverage coverage=0.9"].rows == 3
    assert report.audits["average_k k=3, 2 photos"].rows == 5
    assert report.audits["average_k k=3, rejected"].hits == 0
    assert report.audits["average_k k=3 guarantee=mean"].rows == 1
    assert report.audits["coverage coverage=0.9 guarantee=probability, 2 photos"].rows == 1
    assert (report.other_calibrations, report.damaged) == (0, 0)


def test_rows_that_say_nothing_of_a_rule_are_audited_together(tmp_path: Path) -> None:
    rows = [{"class_id": "a", "set": ["a"]}, {"class_id": "b", "set": ["a"]}]
    assert audit_file(write(tmp_path / "r.jsonl", rows)).audits == {"sets": audit(rows)}


def test_a_folder_is_read_whole_and_torn_lines_are_counted(tmp_path: Path) -> None:
    write(tmp_path / "feedback-000001.jsonl", [row()])
    path = write(tmp_path / "feedback-000002.jsonl", [row(), row()])
    path.write_bytes(path.read_bytes() + b'{"class_id": "c')
    (tmp_path / "notes.txt").write_text("not feedback")
    report = audit_file(tmp_path)
    assert report.audits["average_k k=3"].rows == 3
    assert report.damaged == 1


def test_the_last_word_on_a_request_counts(tmp_path: Path) -> None:
    rows = [row(request_id="a", class_id="c9"), row(request_id="b"), row(request_id="a")]
    rows += [row(), row(), row(request_id=["no", "name"])]  # rows without a name are all counted
    found = audit_file(write(tmp_path / "r.jsonl", rows)).audits["average_k k=3"]
    assert (found.rows, found.hits) == (5, 5)


def test_answers_of_another_calibration_are_left_out(tmp_path: Path) -> None:
    rows = [row(calibration_id="old", class_id="c9")] * 5 + [row(calibration_id="new")] * 2
    path = write(tmp_path / "r.jsonl", rows)
    report = audit_file(path, calibration_id="new")
    assert report.audits["average_k k=3"].hits == report.audits["average_k k=3"].rows == 2
    assert report.other_calibrations == 5
    with pytest.raises(DataError, match="no request of this calibration"):
        audit_file(path, calibration_id="third")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no request"),
        (b'{"class_id": null, "set": ["a"]}\n', "no request"),
        (b'{"class_id": "a"}\n', "set"),
        (b'{"set": ["a"]}\n{"class_id": "a", "set": ["a"]}\n', "class_id"),
        (b"[]\n", "no request"),
        (b"\xff\xfe\n", "no request"),
    ],
)
def test_what_is_no_feedback_is_a_data_error(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        audit_file(path)


def test_a_missing_file_is_a_data_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        audit_file(tmp_path / "none.jsonl")


def test_the_command_prints_both_intervals(tmp_path: Path) -> None:
    data = str(make_data(tmp_path / "d", rows=5))
    record = calibrate_bundle(make_bundle(tmp_path / "b").path, data)
    rows = [row(calibration_id=record.calibration_id)] * 9 + [row(calibration_id="x")]
    rows.append(row(calibration_id=record.calibration_id, class_id="c5"))
    path = write(tmp_path / "rows.jsonl", rows)
    arguments = ["evaluate", str(tmp_path / "b"), "--audit", str(path)]
    result = CliRunner().invoke(app, [*arguments, "--json"])
    found = json.loads(result.stdout)["audit"]
    expected = audit([row()] * 9 + [row(class_id="c5")])
    assert found["audits"][0]["hit_rate"] == expected.hit_rate == 0.9
    assert tuple(found["audits"][0]["anytime"]) == expected.anytime
    assert "1 rows of feedback left out" in result.stderr
    table = CliRunner().invoke(app, [*arguments, "--data", data]).stdout
    assert "labelled requests" in table
    assert "photos of test" in table


def test_feedback_that_says_nothing_is_refused_before_any_photo_is_scored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = str(make_data(tmp_path / "d", rows=12))
    bundle = make_bundle(tmp_path / "b").path
    calibrate_bundle(bundle, data)
    monkeypatch.setattr(calibration.offline.outputs, "outputs_of", None)
    path = write(tmp_path / "rows.jsonl", [row(class_id=None)])
    arguments = ["evaluate", str(bundle), "--data", data, "--audit", str(path)]
    error = CliRunner().invoke(app, arguments).exception
    assert isinstance(error, DataError)
    assert "labelled" in str(error)
