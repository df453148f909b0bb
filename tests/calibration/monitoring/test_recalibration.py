"""Calibrating a bundle from the score log of its server, on files, through the command."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.drift import Monitor, expected_of
from florilege.calibration.monitoring.recalibration import FEWEST_REQUESTS, recalibrate_bundle
from florilege.calibration.monitoring.score_log import Scorer
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.operating_point import NotCalibrated
from florilege.calibration.record.record_file import read_record
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import scores
from florilege.calibration.sets import Guarantee
from florilege.calibration.view import PLAIN, View
from florilege.errors import DataError
from florilege.models.bundle import PREPROCESS, Bundle, open_bundle, replace_files
from florilege.models.session import Session
from tests.calibration import command_line
from tests.calibration.command_line import run, usage_error
from tests.calibration.small_bundle import CLASSES, make_bundle, make_data, square

Logits = NDArray[np.float32]
EVEN = np.full(CLASSES, 1 / CLASSES)
SHIFTED = np.array([0.55, 0.25, 0.08, 0.05, 0.04, 0.03])


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_data(tmp_path_factory.mktemp("live") / "d", rows=60, splits=("val",)))


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory, data: str) -> Path:
    path = make_bundle(tmp_path_factory.mktemp("calibrated") / "b").path
    calibrate_bundle(path, data, ks=[2, 3], head="sccp", score_kind="softmax")
    return path


@pytest.fixture
def bundle(tmp_path: Path, calibrated: Path) -> Bundle:
    return open_bundle(shutil.copytree(calibrated, tmp_path / "b"))


def live(
    bundle: Bundle, rows: int, prior: NDArray[np.float64] = EVEN, *, seed: int = 0
) -> tuple[Logits, NDArray[np.int64]]:
    """What the network says about live photos of these frequencies, and what they show."""
    random = np.random.default_rng(seed)
    labels = random.choice(CLASSES, rows, p=prior)
    pictures = np.stack([square(label, random) for label in labels])
    return Session(bundle, device="cpu").logits(pictures)["sccp"], labels.astype(np.int64)


def write_log(bundle: Bundle, folder: Path, logits: Logits, *, photos: int = 1) -> Path:
    record = read_record(open_bundle(bundle.path))
    scorer = replace(Scorer.of(bundle, record), head="sccp")
    return command_line.write_log(folder, scorer, logits.reshape(-1, photos, CLASSES))


def test_the_approved_record_holds_the_thresholds_shown(bundle: Bundle, tmp_path: Path) -> None:
    logits, _ = live(bundle, 900)
    before = read_record(bundle)
    outcome = recalibrate_bundle(
        bundle.path, write_log(bundle, tmp_path / "log", logits), approve=True
    )
    record = read_record(open_bundle(bundle.path))
    assert record == outcome.record
    assert record.calibration_id != before.calibration_id
    judge = before.rejection
    assert judge is not None
    familiar = np.array([not judge.verdict(row[np.newaxis])[1] for row in logits])
    values = scores(logits[familiar], "softmax")
    assert outcome.left_out == (~familiar).sum()
    for new in outcome.thresholds:
        point = record.point(PLAIN, record.setting("average_k", new.k))
        rule = calibrate("average_k", values, average_k=new.k)
        assert point.lambda_val == new.new_lambda == rule.lambda_val
        assert point.row.size == new.new_size
        assert (point.rows, point.measured.split) == (familiar.sum(), "traffic")
    for k in (1.0, 1.7, 4.0):
        rule = calibrate("average_k", values, average_k=k)
        assert record.point(PLAIN, record.setting("average_k", k)).lambda_val == rule.lambda_val
        balanced = calibrate(
            "balanced_average_k", values, average_k=k, class_counts=record.class_counts
        )
        assert (
            record.point(PLAIN, record.setting("balanced_average_k", k)).lambda_val
            == balanced.lambda_val
        )


def test_guaranteed_sizes_need_no_labels_and_are_chosen_anew(tmp_path: Path, data: str) -> None:
    path = make_bundle(tmp_path / "b").path
    calibrate_bundle(path, data, ks=[2, 3], head="sccp", score_kind="softmax", delta=0.3,
                     max_size=5, rejection_method=None)  # fmt: skip
    bundle = open_bundle(path)
    log = write_log(bundle, tmp_path / "log", logits := live(bundle, 900, SHIFTED)[0])
    recalibrate_bundle(path, log, approve=True)
    record = read_record(open_bundle(path))
    assert record.promises == (("average_k", "mean"), ("average_k", "probability"))
    for guarantee in get_args(Guarantee):
        point = record.point(PLAIN, record.setting("average_k", 2, guarantee))
        expected = calibrate(
            "average_k", scores(logits, "softmax"), average_k=2, guarantee=guarantee, delta=0.3,
            max_size=5,
        )  # fmt: skip
        assert point.lambda_val == expected.lambda_val
        assert point.row.size == expected.achieved
        assert (point.row.hit_rate, point.guaranteed) == (None, False)
        assert "since several requests may show the same plant" in point.statement


def test_it_claims_nothing_that_needs_labels(bundle: Bundle, tmp_path: Path) -> None:
    log = write_log(bundle, tmp_path / "log", live(bundle, 600)[0])
    recalibrate_bundle(bundle.path, log, approve=True)
    changed = open_bundle(bundle.path)
    record = read_record(changed)
    for rule in record.rules:
        assert record.point(PLAIN, record.setting(rule)).row.hit_rate is None
        assert "is not known" in record.point(PLAIN, record.setting(rule)).statement
        assert "recent traffic" in record.point(PLAIN, record.setting(rule)).statement
        assert not record.point(PLAIN, record.setting(rule)).guaranteed
    assert set(record.rules) == {"average_k", "balanced_average_k", "top_k"}
    with pytest.raises(NotCalibrated, match="coverage"):
        record.point(PLAIN, record.setting("coverage"))
    assert (record.shots, record.measured.classes_seen) == ((), None)
    assert record.compared(3.0) == {}
    assert "not measured" in changed.read("MODEL_CARD.md").decode()
    assert (
        json.loads(changed.read("metrics.json"))["calibration"]["average_k"][0]["hit_rate"] is None
    )
    assert CalibrationRecord.from_json(record.to_json()) == record


def test_lists_stay_and_lose_their_thresholds(bundle: Bundle, data: str, tmp_path: Path) -> None:
    (tmp_path / "lists").mkdir()
    (tmp_path / "lists" / "warm.txt").write_text("c1\nc2\nc4\n")
    calibrate_bundle(
        bundle.path, data, head="sccp", score_kind="softmax", list_files=[str(tmp_path / "lists")]
    )
    log = write_log(bundle, tmp_path / "log", live(bundle, 600)[0])
    recalibrate_bundle(bundle.path, log, approve=True)
    record = read_record(open_bundle(bundle.path))
    [warm] = record.lists
    assert (warm.name, warm.classes, warm.rows, warm.classes_seen) == ("warm", (1, 2, 4), 0, 0)
    assert record.values("average_k", None, View(list="warm")) == []


def test_the_monitor_watches_for_changes_from_the_traffic(bundle: Bundle, tmp_path: Path) -> None:
    logits, _ = live(bundle, 800, SHIFTED)
    recalibrate_bundle(bundle.path, write_log(bundle, tmp_path / "log", logits), approve=True)
    record = read_record(open_bundle(bundle.path))
    point = record.point(PLAIN, record.setting("average_k"))
    fresh, _ = live(bundle, 800, SHIFTED, seed=9)
    served = np.stack([point.scores(row[np.newaxis]) for row in fresh])
    sizes = point.sets(served).sum(axis=1)
    text = np.logaddexp.reduce(fresh.astype(np.float64), axis=1)
    assert Monitor(expected_of(record)).update(sizes, served.max(axis=1), text) == []
    assert sizes.mean() == pytest.approx(3, abs=0.2)


def test_requests_of_several_photos_get_own_thresholds(bundle: Bundle, tmp_path: Path) -> None:
    singles, _ = live(bundle, 700)
    log = write_log(bundle, tmp_path / "log", singles)
    pairs, _ = live(bundle, 1200, seed=3)
    write_log(bundle, log, pairs, photos=2)
    write_log(bundle, log, live(bundle, 300, seed=4)[0], photos=3)  # 100 requests: too few
    outcome = recalibrate_bundle(bundle.path, log, approve=True)
    record = outcome.record
    assert record is not None
    assert record.photos == (1, 2)
    point = record.point(View(photos=2), record.setting("average_k", 2))
    assert (point.table.made_from, point.row.hit_rate) == ("observations", None)
    assert "requests with 2 photos" in point.statement
    judge = record.rejection
    assert judge is not None
    requests = [pair for pair in pairs.reshape(-1, 2, CLASSES) if not judge.verdict(pair)[1]]
    served = np.stack([point.scores(request) for request in requests])
    assert (point.rows, point.lambda_val) == (
        len(requests),
        calibrate("average_k", served, average_k=2).lambda_val,
    )


@pytest.mark.parametrize("pairs", [FEWEST_REQUESTS - 1, FEWEST_REQUESTS])
def test_few_requests_of_several_photos_get_no_thresholds(
    bundle: Bundle, data: str, tmp_path: Path, pairs: int
) -> None:
    calibrate_bundle(bundle.path, data, head="sccp", score_kind="softmax", rejection_method=None)
    log = write_log(bundle, tmp_path / "log", live(bundle, FEWEST_REQUESTS)[0])
    write_log(bundle, log, live(bundle, 2 * pairs, seed=3)[0], photos=2)
    record = recalibrate_bundle(bundle.path, log, approve=True).record
    assert record is not None
    assert record.photos == ((1, 2) if pairs == FEWEST_REQUESTS else (1,))


def test_too_little_traffic_or_that_of_another_head_is_a_data_error(
    bundle: Bundle, data: str, tmp_path: Path
) -> None:
    few = write_log(bundle, tmp_path / "few", live(bundle, 50)[0])
    with pytest.raises(DataError, match="too few"):
        recalibrate_bundle(bundle.path, few)
    assert open_bundle(bundle.path).sha256 == bundle.sha256
    calibrate_bundle(bundle.path, data, head="multi_label", score_kind="softmax")
    with pytest.raises(DataError, match="no request of this network and head, only 50 of others"):
        recalibrate_bundle(bundle.path, few)


def test_photos_scored_at_another_size_are_not_mixed_in(bundle: Bundle, tmp_path: Path) -> None:
    folder = write_log(bundle, tmp_path / "log", live(bundle, 600)[0])
    preprocess = {**bundle.read_object(PREPROCESS), "crop_fraction": 0.5}
    replace_files(bundle.path, {PREPROCESS: json.dumps(preprocess).encode()})
    write_log(open_bundle(bundle.path), folder, live(bundle, 700, seed=2)[0])
    outcome = recalibrate_bundle(bundle.path, folder)
    assert outcome.rows + outcome.left_out == 700
    assert "left out, of another network or head: 600 request(s)" in outcome.lines()


def test_what_a_log_could_not_give_is_said(bundle: Bundle, tmp_path: Path) -> None:
    logits, _ = live(bundle, 600)
    folder = write_log(bundle, tmp_path / "log", logits)
    write_log(bundle, folder, logits[:20])
    [path, *_] = folder.iterdir()
    path.write_bytes(path.read_bytes() + b"{")
    text = recalibrate_bundle(bundle.path, folder).to_plain()
    assert (text["rows"] + text["left_out"], text["torn"]) == (600, 1)
    assert list(text["notes"]) == [
        "left out, damaged or torn by a crash: 1 line(s)",
        "left out, photos sent again, which count once: 20 request(s)",
    ]


def test_without_a_judge_no_photo_is_left_out(bundle: Bundle, data: str, tmp_path: Path) -> None:
    calibrate_bundle(bundle.path, data, head="sccp", score_kind="softmax", rejection_method=None)
    outcome = recalibrate_bundle(
        bundle.path, write_log(bundle, tmp_path / "log", live(bundle, 600)[0])
    )
    assert outcome.left_out == 0
    assert any("no photo was left out" in line for line in outcome.lines())


def test_the_command_shows_changes_and_asks_for_approval(bundle: Bundle, tmp_path: Path) -> None:
    log = write_log(bundle, tmp_path / "log", live(bundle, 900, SHIFTED)[0])
    arguments = ("calibrate", bundle.path, "--score-log", log)
    output = run(*arguments)
    assert output.exit_code == 0
    assert "K = 2: lambda" in output.stdout
    assert "nothing was changed: add --approve" in output.stdout
    assert "not restored: hit rates" in output.stdout
    assert open_bundle(bundle.path).sha256 == bundle.sha256
    content = json.loads(run(*arguments, "--approve", "--json").stdout)
    assert content["approved"] is True
    assert content["rows"] + content["left_out"] == 900
    record = read_record(open_bundle(bundle.path))
    assert content["new_calibration_id"] == record.calibration_id
    assert content["not_restored"]
    assert "hit rates" in run(*arguments).stdout


@pytest.mark.parametrize(
    "flags",
    [
        ["--score-log", "log", "--data", "flora"],
        ["--score-log", "log", "--report", "here"],
        ["--data", "flora", "--approve"],
        [],
    ],
)
def test_flags_that_do_not_go_together_are_usage_errors(bundle: Bundle, flags: list[str]) -> None:
    usage_error("calibrate", bundle.path, *flags)
    assert open_bundle(bundle.path).sha256 == bundle.sha256


def test_what_calibration_from_traffic_ignores_is_refused(bundle: Bundle, tmp_path: Path) -> None:
    log = write_log(bundle, tmp_path / "log", live(bundle, 600)[0])
    arguments = ("calibrate", bundle.path, "--score-log", log, "--approve", "--device", "cpu")
    message = usage_error(*arguments, "--min-size", 0, "--k", 4)
    assert "leave out --k, --min-size" in message
    assert open_bundle(bundle.path).sha256 == bundle.sha256
    assert run(*arguments, "--json").exit_code == 0
