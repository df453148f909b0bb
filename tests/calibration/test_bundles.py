"""Calibrating and evaluating a bundle, on files, through the commands."""

import json
import re
import shlex
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilege.calibration import calibrate as calibration
from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.calibrate.cautions import cautions
from florilege.calibration.calibrate.evaluate import evaluate_bundle
from florilege.calibration.calibrate.training_photos import PhotoOverlap
from florilege.calibration.conformal import conformal_rank
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.calibration.rules import RULES
from florilege.calibration.scores import scores
from florilege.calibration.view import PLAIN
from florilege.data.sources import open_dataset
from florilege.errors import BundleError, DataError, UsageError
from florilege.models.bundle import Bundle, open_bundle, replace_files
from florilege.models.images import load
from florilege.models.session import Session
from tests.calibration.command_line import run, usage_error
from tests.calibration.estimates import hits_of
from tests.calibration.small_bundle import CLASSES, make_bundle, make_data, network
from tests.florilege.test_files import holder

ROWS = 12


@pytest.fixture
def bundle(tmp_path: Path) -> Bundle:
    return make_bundle(tmp_path / "b")


def test_what_is_calibrated_is_what_is_recorded_and_served(bundle: Bundle, data: str) -> None:
    record = calibrate_bundle(bundle.path, data)
    again = open_bundle(bundle.path)
    assert read_record(again) == record
    assert again.sha256 != bundle.sha256
    assert record.measured.model_sha256 == bundle.manifest.files["model.onnx"]
    split = open_dataset(data, splits=["val"], classes=bundle.classes).split("val")
    session = Session(bundle, device="cpu")
    for rule, guarantee in (*((rule, None) for rule in record.rules), *record.promises):
        point = record.point(PLAIN, record.setting(rule, None, guarantee))
        sizes, hits = [], []
        for row in range(len(split)):
            image = load(split.read(row), bundle.preprocess)[np.newaxis]
            members = point.sets(
                scores(
                    session.logits(image)[point.table.scoring.head], point.table.scoring.score_kind
                )
            )[0]
            sizes.append(members.sum())
            hits.append(members[split.labels[row]])
        assert np.mean(sizes) == pytest.approx(point.row.size, abs=1e-12)
        assert np.mean(hits) == pytest.approx(hits_of(point).value, abs=1e-12)


NO_OBJECTS = (b"", b"[", b"[]", b"3", b"null", b"\xff", b"[" * 100_000)


@pytest.mark.parametrize(
    ("name", "content"),
    [*product(("metrics.json", "provenance.json"), NO_OBJECTS), ("MODEL_CARD.md", b"\xff")],
)
def test_damaged_papers_are_refused_before_any_photo_is_scored(
    bundle: Bundle, data: str, monkeypatch: pytest.MonkeyPatch, name: str, content: bytes
) -> None:
    monkeypatch.setattr(calibration, "outputs_of", None)
    replace_files(bundle.path, {name: content})
    with pytest.raises(BundleError, match=rf"{name} is damaged: .* again"):
        calibrate_bundle(bundle.path, data)


def test_a_second_calibration_replaces_the_first(bundle: Bundle, data: str) -> None:
    first = calibrate_bundle(bundle.path, data, ks=[2.55])
    second = calibrate_bundle(bundle.path, data, ks=[2.45])
    assert first.calibration_id != second.calibration_id
    assert 2.55 not in second.values("average_k")
    assert 2.45 in second.values("average_k")
    assert 2.5 in second.values("average_k")
    card = open_bundle(bundle.path).read("MODEL_CARD.md").decode()
    assert card.count("## Calibration") == 1
    assert "| 2.45 |" in card
    assert "## Licence\n\nNone.\n" in card
    metrics = json.loads(open_bundle(bundle.path).read("metrics.json"))
    assert metrics["epochs"] == 3
    assert metrics["calibration"]["average_k"][0]["k"] == 2.45


def test_without_training_counts_the_split_is_counted(tmp_path: Path, data: str) -> None:
    record = calibrate_bundle(make_bundle(tmp_path / "b", counted=False).path, data)
    assert record.class_counts == (ROWS,) * CLASSES
    assert record.class_counts_from == "val"
    evaluation = evaluate_bundle(tmp_path / "b", data)
    assert evaluation.rules[0].shots == {}


def test_a_class_without_photos_is_a_caution_not_a_failure(tmp_path: Path, bundle: Bundle) -> None:
    data = make_data(tmp_path / "d", rows=5, splits=("val",))
    for photo in (data / "val" / "c2").iterdir():
        photo.unlink()
    for photo in list((data / "val" / "c3").iterdir())[1:]:
        photo.unlink()
    messages = cautions(calibrate_bundle(bundle.path, str(data), coverages=[0.99]))
    assert any("1 of 6 classes have no photo" in caution for caution in messages)
    assert any("only 21 photos" in caution for caution in messages)
    assert any("coverage 0.99 needs more than 21 photos" in caution for caution in messages)


def test_enough_photos_are_fine(bundle: Bundle, data: str, monkeypatch: pytest.MonkeyPatch) -> None:
    record = calibrate_bundle(bundle.path, data)
    for few in (CLASSES * ROWS, CLASSES * ROWS + 1):
        monkeypatch.setattr("florilege.calibration.calibrate.cautions.FEW_ROWS", few)
        coarse = any("intervals are coarse" in caution for caution in cautions(record))
        assert coarse == (record.measured.rows < few)


def test_what_no_photo_can_promise_yet_is_a_caution(bundle: Bundle, data: str) -> None:
    settings = {"ks": [1, 1.05, 3], "coverages": [0.95], "macro_weight": 1.0}
    record = calibrate_bundle(bundle.path, data, **settings)  # type: ignore[arg-type]  # mixed
    messages = cautions(record)
    (mean,) = [caution for caution in messages if "guarantee=mean" in caution]
    assert "at K = 1.05: those sets hold at most the best class" in mean
    compared = record.default_point.table.candidates
    fewest = next(n for n in range(1, 999) if conformal_rank(0.95, n, candidates=compared))
    assert fewest > 19  # as many as the photos need that compared nothing
    assert any(
        f"class_coverage: of 6 classes, 6 have fewer than the {fewest} photos that 0.95 needs, and "
        "are in every set; choose a --macro-weight below 1" in caution
        for caution in messages
    )
    short = cautions(record, brief=True)  # a step of `fit`, which asked for none of these
    assert [caution for caution in short if caution not in messages] == [
        "other rules need more photos (coverage, guarantee, class_coverage): `florilege calibrate` "
        "by itself says how many"
    ]
    assert len(short) == len(messages) - 2
    messages = cautions(calibrate_bundle(bundle.path, data, ks=[1, 3], coverages=[0.9]))
    assert not any("guarantee=" in caution or "class_coverage" in caution for caution in messages)


def test_evaluation_measures_every_rule_at_every_value_asked_for(bundle: Bundle, data: str) -> None:
    calibrate_bundle(bundle.path, data, ks=[3, 1.5], coverages=[0.8])
    evaluation = evaluate_bundle(bundle.path, data, "test")
    points = [result.point for result in evaluation.rules]
    actual = {(point.rule, point.k, point.coverage) for point in points}
    expected: dict[str, list[tuple[float | None, float | None]]] = {
        "average_k": [(1.5, None), (3.0, None)], "k": [(3.0, None)], "coverage": [(None, 0.8)],
    }  # fmt: skip
    assert actual == {
        (name, *each) for name, spec in RULES.items() for each in expected[spec.takes]
    }
    assert [point.k for point in points if point.rule == "average_k"] == [1.5, 3.0]  # ascending
    promised = {(result.point.rule, result.point.guarantee, result.row.value)
                for result in evaluation.guaranteed}  # fmt: skip
    assert promised == {
        ("average_k", "mean", 1.5), ("average_k", "mean", 3.0),
        ("average_k", "probability", 1.5), ("average_k", "probability", 3.0),
        ("coverage", "probability", 0.8),
    }  # fmt: skip
    assert evaluation.rows == ROWS * CLASSES
    shots = evaluation.rules[0].shots
    assert shots.keys() == {"few", "medium", "many"}
    by_size = [(shots["few"] or 0), 3 * (shots["medium"] or 0), 2 * (shots["many"] or 0)]
    assert sum(by_size) / CLASSES == pytest.approx(evaluation.rules[0].macro_hit_rate)
    assert len(set(shots.values())) > 1


def test_evaluating_the_calibration_split_repeats_the_record(bundle: Bundle, data: str) -> None:
    record = calibrate_bundle(bundle.path, data)
    evaluation = evaluate_bundle(bundle.path, data, "val")
    for point, row, *_ in (*evaluation.rules, *evaluation.guaranteed):
        k, coverage, guarantee = point.k, point.coverage, point.guarantee
        same = record.point(
            PLAIN, record.setting(point.rule, k if coverage is None else coverage, guarantee)
        )
        assert same.statement == point.statement
        assert row.size == point.row.size
        assert row.hit_rate == hits_of(point).value
        assert (row.hit_low, row.hit_high) == hits_of(point).ci95
        assert row.lambda_val == point.lambda_val


@pytest.mark.parametrize(
    "settings",
    [
        {"ks": [7]},  # too many for these classes
        {"min_size": 3},
        {"rejection_method": "combined"},
        {"head": "linear"},
        {"split": "val:0.5"},
    ],
)
def test_settings_out_of_range_are_refused_before_any_photo_is_scored(
    bundle: Bundle, data: str, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(calibration, "outputs_of", None)
    with pytest.raises(UsageError):
        calibrate_bundle(bundle.path, data, **settings)
    assert open_bundle(bundle.path).sha256 == bundle.sha256


def test_a_part_of_a_split_calibrates_and_the_rest_evaluates(bundle: Bundle, data: str) -> None:
    record = calibrate_bundle(bundle.path, data, "test:0-0.25", head="sccp", score_kind="softmax")
    assert (record.measured.split, record.measured.rows) == ("test:0-0.25", ROWS * CLASSES // 4)
    assert (record.head, record.measured.chose_head) == ("sccp", False)
    evaluation = evaluate_bundle(bundle.path, data, "test:0.25-1")
    assert evaluation.rows == ROWS * CLASSES * 3 // 4
    assert evaluation.data_sha256 != record.measured.data_sha256


def test_unreadable_photos_leave_the_old_calibration(tmp_path: Path, bundle: Bundle) -> None:
    data = make_data(tmp_path / "d", rows=3, splits=("val",))
    calibrate_bundle(bundle.path, str(data))
    before = open_bundle(bundle.path).sha256
    (data / "val" / "c1" / "bad.png").write_bytes(b"no picture")
    with pytest.raises(DataError, match=r"bad\.png"):
        calibrate_bundle(bundle.path, str(data))
    assert open_bundle(bundle.path).sha256 == before


def test_a_bundle_without_calibration_cannot_be_evaluated(bundle: Bundle, data: str) -> None:
    with pytest.raises(BundleError, match="florilege calibrate"):
        evaluate_bundle(bundle.path, data)


def test_a_calibration_of_other_weights_is_refused_with_the_command_that_renews_it(
    bundle: Bundle, data: str
) -> None:
    calibrate_bundle(bundle.path, data)
    sharper = network({"multi_label_logits": 1e-3, "sccp_logits": 5e-3})
    replace_files(bundle.path, {"model.onnx": sharper})
    with pytest.raises(BundleError, match=f"another network.*florilege calibrate {bundle.path}"):
        read_record(open_bundle(bundle.path))
    record = calibrate_bundle(bundle.path, data)
    assert read_record(open_bundle(bundle.path)) == record


@pytest.mark.parametrize("inner", [False, True])
def test_a_calibration_that_judges_by_a_head_the_graph_lacks_is_refused(
    bundle: Bundle, data: str, inner: bool
) -> None:
    record = calibrate_bundle(bundle.path, data)
    rule = record.rejection
    assert rule is not None
    other = replace(rule, head="linear", by_logits=None)
    changed = replace(rule, by_logits=other) if inner else other
    content = replace(record, rejection=changed).to_json().encode()
    replace_files(bundle.path, {"calibration.json": content})
    with pytest.raises(BundleError, match="another network"):
        read_record(open_bundle(bundle.path))


def chose_checkpoint(bundle: Bundle, split: str) -> bool | None:
    return PhotoOverlap.of(bundle, split, []).chose_checkpoint


def test_provenance_tells_whether_the_split_chose_the_checkpoint(bundle: Bundle) -> None:
    assert chose_checkpoint(bundle, "val") is None
    bundle = replace_files(bundle.path, {"provenance.json": b'{"checkpoint_chosen_on": "val"}'})
    assert chose_checkpoint(bundle, "val") is True
    assert chose_checkpoint(bundle, "test") is False
    none = replace_files(bundle.path, {"provenance.json": b'{"checkpoint_chosen_on": null}'})
    assert chose_checkpoint(none, "val") is False
    silent = replace_files(bundle.path, {"provenance.json": b"{}"})
    assert chose_checkpoint(silent, "val") is None


@pytest.mark.parametrize("split", ["cal", "valid", "Validation:0-0.5", "train"])
def test_no_other_name_of_a_split_makes_a_guarantee_of_what_is_none(
    bundle: Bundle, data: str, split: str
) -> None:
    replace_files(bundle.path, {"provenance.json": b'{"checkpoint_chosen_on": "val"}'})
    named: dict[str, Any] = {"head": "sccp", "score_kind": "softmax"}
    assert (
        calibrate_bundle(bundle.path, data, "test", **named)
        .point(PLAIN, calibrate_bundle(bundle.path, data, "test", **named).setting("coverage"))
        .guaranteed
    )
    record = calibrate_bundle(bundle.path, data, split, **named)
    assert record.measured.chose_checkpoint is True
    assert "no guarantee" in record.point(PLAIN, record.setting("coverage")).statement


def test_the_commands_print_one_json_object_each(bundle: Bundle, data: str) -> None:
    flags = ("--k", "1,2.5", "--coverage", "0.8", "--min-size", "0", "--json")
    result = run("calibrate", bundle.path, "--data", data, *flags)
    assert result.exit_code == 0
    calibrated = json.loads(result.stdout)
    assert "only 72 photos" in result.stderr
    record = CalibrationRecord.from_json(open_bundle(bundle.path).read("calibration.json"))
    assert calibrated["calibration_id"] == record.calibration_id
    takes = [spec.takes for spec in RULES.values()]
    assert len(calibrated["rules"]) == len(takes) + takes.count("average_k")  # no top_k of 2.5
    assert [rule["guarantee"] for rule in calibrated["guaranteed"]] == [
        "mean", "mean", "probability", "probability", "probability",
    ]  # fmt: skip
    assert "next:" not in result.output
    result = run("evaluate", bundle.path, "--data", data, "--json")
    assert "next:" not in result.output
    evaluated = json.loads(result.stdout)
    assert [("k" in rule, "level" in rule) for rule in evaluated["rules"]] == [
        ("k" in rule, "level" in rule) for rule in calibrated["rules"]
    ]
    for rule in evaluated["rules"]:
        assert {"rule", "mean_set_size", "hit_rate", "rows"} <= rule.keys()
        assert ("k" in rule) != ("level" in rule)


def test_the_commands_print_tables_for_people(bundle: Bundle, data: str) -> None:
    calibrate = ("calibrate", bundle.path, "--data", data)
    assert "balanced_average_k" not in run(*calibrate).stdout
    result = run(*calibrate, "--all")
    assert "balanced_average_k" in result.stdout
    assert re.search(r"class_coverage +0\.9 +by class ", result.stdout)
    result = run("evaluate", bundle.path, "--data", data, "--all")
    assert "medium" in result.stdout
    assert "bundle squares, version 1, on 72 photos of test" in result.stdout
    rules, mean, probability, legend = result.stdout.split("\n\n")
    assert legend.startswith("asked: mean size or coverage; size: classes in a set")
    assert "class_coverage " in rules
    assert mean.startswith("guarantee=mean\n")
    assert "coverage" not in mean  # what it promises anyway
    assert "average_k " in probability
    assert "coverage " in probability


@pytest.mark.parametrize(
    ("split", "measured"),
    [
        ("val", ""),
        ("val:0-0.5", ""),
        ("test:0-0.3", " --split test:0.3-1"),
        ("test:0.5-1", " --split test:0-0.5"),
        ("test", None),
    ],
)
def test_the_commands_end_with_those_that_come_next(
    tmp_path: Path, data: str, split: str, measured: str | None
) -> None:
    path = make_bundle(tmp_path / "my bundle").path
    result = run("calibrate", path, "--data", data, "--split", split)
    evaluate = f"florilege evaluate '{path}' --data {data}"
    steps = [] if measured is None else [evaluate + measured]
    listed = [line[6:] for line in result.stderr.splitlines() if line[:6] in ("next: ", "  or: ")]
    assert listed == [*steps, f"florilege serve '{path}'"]
    assert f"rules are in {path}; to list them: florilege bundle inspect '{path}'" in result.stderr
    assert set(result.stdout) & set("\x1b━│┃┏") == set()
    for command in steps:
        again = run(*shlex.split(command)[1:])
        assert again.exit_code == 0
        first, *last = again.stderr.splitlines()
        assert first.startswith(f"{path}: measuring its sets on the test")
        assert first.endswith(f" photos of {data}")
        assert last == ["5 more rules are shown with --all", f"next: florilege serve '{path}'"]


def test_a_report_is_one_page_about_the_sets(bundle: Bundle, data: str, tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    result = run("calibrate", bundle.path, "--data", data, "--report", page)
    assert result.exit_code == 0
    assert f"the report is {page}" in result.stderr
    text = page.read_text()
    assert "Accuracy and size over K" in text
    assert "were chosen on these same photos" in text
    record = read_record(open_bundle(bundle.path))
    for sha256 in (open_bundle(bundle.path).sha256, record.calibration_id):
        assert sha256[:16] in text


def test_a_bundle_that_another_process_changes_is_refused_before_any_photo_is_scored(
    bundle: Bundle, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "outputs_of", None)
    with holder(bundle.path) as other:
        for flags in (["--data", data], ["--score-log", "log", "--approve"]):
            message = usage_error("calibrate", bundle.path, *flags)
            assert f"process ({other.pid}) is writing to {bundle.path}" in message
        assert open_bundle(bundle.path) == bundle


def test_a_bundle_that_cannot_be_written_is_refused_before_any_photo_is_scored(
    bundle: Bundle, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calibration, "outputs_of", None)
    (bundle.path / ".lock").mkdir()  # even an administrator cannot write this
    with pytest.raises(BundleError, match="changed nothing"):
        calibrate_bundle(bundle.path, data)


def test_the_method_and_share_of_suspects_are_the_callers(bundle: Bundle, data: str) -> None:
    calibrate = ("calibrate", bundle.path, "--data", data, "--json")
    flags = ("--suspect-share", "0.25")
    content = json.loads(run(*calibrate, *flags).stdout)
    record = read_record(open_bundle(bundle.path))
    assert record.rejection is not None
    assert (record.rejection.method, record.rejection.share) == ("generalised_entropy", 0.25)
    assert content["rejection"] == {
        "method": "generalised_entropy", "threshold": record.rejection.threshold, "share": 0.25,
    }  # fmt: skip
    content = json.loads(run(*calibrate, "--rejection-method", "none").stdout)
    assert content["rejection"] is None
    assert read_record(open_bundle(bundle.path)).rejection is None
    for wrong in (["--rejection-method", "guess"], ["--suspect-share", "1"], ["--k", "1,x"]):
        usage_error(*calibrate, *wrong)


def test_several_photos_are_calibrated_and_shown(tmp_path: Path, bundle: Bundle) -> None:
    data = str(make_data(tmp_path / "many", rows=40, splits=("val",)))
    result = run("calibrate", bundle.path, "--data", data)
    assert "with more known than one photo, K = 3" in result.stdout
    assert "species" in result.stdout
    assert read_record(open_bundle(bundle.path)).photos == (1, 2)


def test_a_threshold_just_above_zero_is_shown_in_words_and_exact(tmp_path: Path, data: str) -> None:
    bundle = make_bundle(tmp_path / "b", sharper=1e5)  # all but the best class score 0
    flags = ("--score-kind", "softmax", "--head", "sccp", "--k", "1,2", "--coverage", "0.9")
    result = run("calibrate", bundle.path, "--data", data, *flags)
    assert "> 0" in result.stdout
    assert "e-3" not in result.stdout
    opened = open_bundle(bundle.path)
    assert (
        0
        < (
            read_record(opened).point(PLAIN, read_record(opened).setting("average_k", 1)).lambda_val
            or 0
        )
        < 1e-300
    )
    assert "| > 0 |" in opened.read("MODEL_CARD.md").decode()
