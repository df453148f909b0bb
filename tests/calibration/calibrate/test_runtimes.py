"""A bundle with a calibration for each runtime, and what each verb takes of it."""

import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilege.calibration.calibrate import calibrate_bundle, gate
from florilege.calibration.calibrate.evaluate import evaluate_bundle
from florilege.calibration.monitoring.recalibration import recalibrate_bundle
from florilege.calibration.monitoring.score_log import Scorer
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import card, read_record, verification
from florilege.calibration.view import PLAIN
from florilege.errors import BundleError, GateFailed, UsageError
from florilege.models.bundle import open_bundle
from florilege.models.runtime import Runtime, RuntimeName
from florilege.models.session import Session
from florilege.server.answers.pipeline import open_pipeline
from florilege.server.answers.query import IdentifyQuery
from tests.calibration.command_line import run, write_log
from tests.calibration.small_bundle import make_bundle, make_data

OPENVINO: dict[str, Any] = {"runtime": "openvino", "precision": "float32"}
FILES = ("calibration-openvino.json", "reference-openvino.npy")


@pytest.fixture(name="data")
def squares(more_data: Path) -> Path:
    return more_data


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    return make_bundle(tmp_path / "b", features=True).path


@pytest.fixture(scope="module")
def calibrated(tmp_path_factory: pytest.TempPathFactory, more_data: Path) -> Path:
    path = make_bundle(tmp_path_factory.mktemp("runtimes") / "b", features=True).path
    calibrate_bundle(path, str(more_data), **OPENVINO)
    return path


@pytest.fixture
def both(tmp_path: Path, calibrated: Path) -> Path:
    """A copy of a bundle that is calibrated for OpenVINO, and so for ONNX Runtime too."""
    return Path(shutil.copytree(calibrated, tmp_path / "both"))


def test_a_bundle_holds_a_calibration_for_each_runtime(bundle: Path, data: Path) -> None:
    sentences = list[str]()
    alone = calibrate_bundle(bundle, str(data))
    record = calibrate_bundle(bundle, str(data), say=sentences.append, **OPENVINO)
    opened = open_bundle(bundle)
    assert record.measured.served_by == Runtime("openvino", "float32")
    assert read_record(opened).to_json() == record.to_json()
    other = read_record(opened, "onnxruntime")
    assert other.measured.served_by == Runtime()
    assert other.tables == alone.tables
    assert all(opened.has(name) for name in FILES)
    assert verification(bundle)["ok"]
    assert (card(opened)["calibration"]["runtime"], len(sentences)) == ("openvino", 1)
    assert "on the 120 photos of test, average_k k=3" in sentences[0]
    assert "equal or one within the other for 100.0 %" in sentences[0]


def test_thresholds_are_those_of_what_the_runtime_gives(bundle: Path, data: Path) -> None:
    record = calibrate_bundle(bundle, str(data), head="sccp", score_kind="softmax", **OPENVINO)
    evaluation = evaluate_bundle(bundle, str(data), "val")
    assert evaluation.calibration_id == record.calibration_id
    rows = {point.k: row for point, row, *_ in evaluation.rules if point.rule == "average_k"}
    for k in record.asked_k:
        assert rows[k].size == record.point(PLAIN, record.setting("average_k", k)).row.size


def test_sets_that_differ_change_nothing(
    bundle: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calibrate_bundle(bundle, str(data))
    before = (bundle / "bundle.json").read_bytes()
    monkeypatch.setattr(gate, "differences", lambda *_: ["not today"])
    with pytest.raises(GateFailed, match="changed"):
        calibrate_bundle(bundle, str(data), **OPENVINO)
    assert (bundle / "bundle.json").read_bytes() == before


def test_without_test_the_photos_that_calibrate_are_compared(bundle: Path, tmp_path: Path) -> None:
    sentences = list[str]()
    data = make_data(tmp_path / "d", rows=10, splits=("val",))
    calibrate_bundle(bundle, str(data), say=sentences.append, **OPENVINO)
    assert "on the 60 photos of val" in sentences[0]


def test_calibrating_for_onnx_runtime_removes_the_other_one(both: Path, data: Path) -> None:
    calibrate_bundle(both, str(data))
    opened = open_bundle(both)
    assert not any(opened.has(name) for name in FILES)
    assert read_record(opened).measured.served_by == Runtime()
    with pytest.raises(BundleError, match="calibrated"):
        read_record(opened, "openvino")


def test_answers_come_from_the_runtime_of_the_calibration(both: Path, data: Path) -> None:
    record = read_record(open_bundle(both), "openvino")
    photo = next((data / "test" / "c0").iterdir()).read_bytes()
    other = read_record(open_bundle(both), "onnxruntime")
    expected: list[tuple[RuntimeName | None, str, CalibrationRecord]] = [
        (None, "OpenVINO float32", record),
        ("onnxruntime", "CPUExecutionProvider", other),
    ]
    for runtime, provider, served in expected:
        pipeline = open_pipeline(both, device="cpu", runtime=runtime)
        outcome = pipeline([photo], IdentifyQuery(), "id")
        assert pipeline.session.provider == provider
        assert outcome.answer.model.calibration_id == served.calibration_id
        assert outcome.answer.rejection.method == "combined"  # with features, and their reference


def test_where_it_cannot_run_the_message_names_the_way_out(
    both: Path, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(UsageError, match="add --runtime onnxruntime"):
        open_pipeline(both)
    open_pipeline(both, runtime="onnxruntime").close()
    result = run("evaluate", both, "--data", data, "--runtime", "onnxruntime", "--json")
    assert result.exit_code == 0, result.output


def test_a_score_log_is_of_one_runtime_and_so_is_what_it_calibrates(
    bundle: Path, data: Path, tmp_path: Path
) -> None:
    record = calibrate_bundle(bundle, str(data), rejection_method="none", **OPENVINO)
    opened = open_bundle(bundle)
    scorer = Scorer.of(opened, record)
    assert scorer != Scorer.of(opened, read_record(opened, "onnxruntime"))
    session = Session(opened, runtime=record.measured.served_by)
    pictures = np.random.default_rng(0).integers(0, 256, (600, 4, 4, 3), dtype=np.uint8)
    logits = session.logits(pictures)[record.head]
    log = write_log(tmp_path / "log", scorer, logits[:, np.newaxis])
    recalibrate_bundle(bundle, log, approve=True)
    changed = open_bundle(bundle)
    assert read_record(changed).measured.served_by == Runtime("openvino", "float32")
    assert read_record(changed).measured.split == "traffic"
    assert read_record(changed, "onnxruntime").measured.split == "val"
