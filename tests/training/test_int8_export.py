"""A bundle in eight bits, through the command."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper
from typer.testing import CliRunner, Result

import florilege.training.int8_export
from florilege.calibration.calibrate.calibrate import calibrate_bundle
from florilege.calibration.record.record_file import read_record
from florilege.errors import BundleError, DataError, FlorilegeError, GateFailed, UsageError
from florilege.models.bundle import open_bundle, replace_files
from florilege.models.session import Session
from florilege.training.cli import app
from tests.calibration.small_bundle import CLASSES, COLOURS, SIDE, make_bundle, make_data

KS = [1, 2.5, 3]


def network(glare: float) -> bytes:
    """The graph of ``small_bundle`` with convolutions: classes by their distance from the colour.

    Between the two flows, beside the colours, one channel that is ``glare`` times as bright and has
    no weight afterwards. With eight bits and a large ``glare`` nothing remains of the colours.
    """
    eye = np.eye(3, dtype=np.float32)
    first = np.concatenate([eye, np.full((1, 3), glare / 3, np.float32)])[:, :, None, None]
    second = np.concatenate([eye, np.zeros((3, 1), np.float32)], axis=1)[:, :, None, None]
    weights: dict[str, Any] = {
        "first": first,
        "second": second,
        "places": np.array([2, 3], np.int64),
        "directions": (2e-3 * COLOURS.T).astype(np.float32),
        "offsets": (-1e-3 * (COLOURS**2).sum(1)).astype(np.float32),
    }
    node = helper.make_node
    nodes = [
        node("Cast", ["image"], ["real"], to=TensorProto.FLOAT),
        node("Transpose", ["real"], ["moved"], perm=[0, 3, 1, 2]),
        node("Conv", ["moved", "first"], ["a"]),
        node("Relu", ["a"], ["b"]),
        node("Conv", ["b", "second"], ["c"]),
        node("ReduceMean", ["c", "places"], ["features"], keepdims=0),
        node("Gemm", ["features", "directions", "offsets"], ["logits"]),
    ]
    outputs = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", width])
        for name, width in (("logits", CLASSES), ("features", 3))
    ]
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", SIDE, SIDE, 3])
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "squares", [image], outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data ``d``, and calibrated bundles that can be quantised, ``good``, and cannot, ``glaring``.

    ``few`` are the same data without ``test``.
    """
    root = tmp_path_factory.mktemp("int8")
    data = make_data(root / "d", rows=40, splits=("train", "val", "test"))
    (root / "few").mkdir()
    for split in ("train", "val"):
        (root / "few" / split).symlink_to(data / split)
    for name, glare in (("good", 1.0), ("glaring", 300.0)):
        path = make_bundle(root / name, heads={"linear": "logits"}).path
        replace_files(path, {"model.onnx": network(glare)})
        calibrate_bundle(
            path,
            str(data),
            ks=KS,
            coverages=[0.8],
            min_size=0,
            score_kind="softmax",
            suspect_share=0.05,
            delta=0.3,
            max_size=5,
        )
    return root


def export(folder: Path, bundle: str, out: Path, *flags: object, data: str = "d") -> Result:
    words = ["export", folder / bundle, "--out", out, "--quantize", "int8"]
    words += ["--data", folder / data] if data else []
    return CliRunner().invoke(app, [str(word) for word in (*words, "--photos", 30, *flags)])


def refusal(*arguments: Any, **options: Any) -> FlorilegeError:
    error = export(*arguments, **options).exception
    assert isinstance(error, FlorilegeError)
    return error


def test_a_bundle_whose_sets_agree_is_written_and_calibrated(folder: Path, tmp_path: Path) -> None:
    done = export(folder, "good", tmp_path / "out")
    assert done.exit_code == 0, done.output
    assert "average_k k=3: " in done.stdout
    assert "of the sets equal" in done.stdout
    assert done.stderr.endswith(f"next: florilege serve {tmp_path / 'out'}\n")

    old, new = open_bundle(folder / "good"), open_bundle(tmp_path / "out")
    before, after = read_record(old), read_record(new)
    assert after.measured.model_sha256 != before.measured.model_sha256
    assert (after.asked_k, after.asked_coverage) == (before.asked_k, before.asked_coverage)
    assert after.point("average_k").min_size == 0
    promised = after.point("average_k", guarantee="probability")
    assert (promised.delta, promised.max_size) == (0.3, 5)
    assert after.measured.chose_head == before.measured.chose_head
    assert after.measured.split == "val"
    assert after.rejection is not None
    assert (after.rejection.method, after.rejection.share) == ("combined", 0.05)
    assert (new.name, new.version) == (old.name, "1-int8")
    assert new.classes == old.classes
    assert new.preprocess == old.preprocess

    images = np.random.default_rng(0).integers(0, 256, (2, SIDE, SIDE, 3), dtype=np.uint8)
    given = Session(new, device="cpu").outputs(images, features=True)
    assert given.logits["linear"].dtype == np.float32
    assert given.features is not None
    assert given.features.shape == (2, 3)

    told = new.read_object("provenance.json")["int8"]
    assert (told["made_of"], told["photos"], told["split"]) == (old.sha256, 30, "test")
    assert told["sets"]["nested"] >= 0.99 * told["sets"]["rows"]
    card = new.read("MODEL_CARD.md").decode()
    assert "## Licence" in card
    assert "## Eight bits" in card
    assert "## Calibration" in card


def test_a_network_that_collapses_is_refused_with_the_figures(folder: Path, tmp_path: Path) -> None:
    failed = export(folder, "glaring", tmp_path / "out")
    assert isinstance(failed.exception, GateFailed)
    assert "nothing was written: hit rate" in str(failed.exception)
    assert "equal or one within the other, 99 % must be" in str(failed.exception)
    assert "average_k 3" in failed.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_leaves_what_was_at_out(folder: Path, tmp_path: Path) -> None:
    assert export(folder, "good", tmp_path / "out").exit_code == 0
    before = open_bundle(tmp_path / "out").sha256
    failed = export(folder, "glaring", tmp_path / "out", "--json")
    assert isinstance(failed.exception, GateFailed)
    said = json.loads(failed.stdout)
    assert (said["bundle"], said["accepted"]) == (None, False)
    assert said["why_not"]
    assert said["sets"]["nested"] < said["sets"]["rows"]
    assert open_bundle(tmp_path / "out").sha256 == before


def test_the_gate_decides(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(florilege.training.int8_export, "differences", lambda *_: ["not today"])
    assert str(refusal(folder, "good", tmp_path / "out")) == "nothing was written: not today"
    assert not (tmp_path / "out").exists()


def test_without_test_photos_one_half_of_val_calibrates_and_the_other_judges(
    folder: Path, tmp_path: Path
) -> None:
    done = export(folder, "good", tmp_path / "out", "--json", data="few")
    assert done.exit_code == 0, done.output
    said = json.loads(done.stdout)
    assert (said["split"], said["sets"]["rows"]) == ("val:0.5-1", 20 * CLASSES)
    assert len(said["milliseconds"]) == len(said["file_bytes"]) == 2
    assert read_record(open_bundle(tmp_path / "out")).measured.split == "val:0-0.5"
    # the float bundle was calibrated on all of val: its thresholds are not those it is judged by
    assert read_record(open_bundle(folder / "good")).measured.split == "val"
    assert said["sets"]["equal"] >= 0.97 * said["sets"]["rows"]


def test_a_head_that_photos_chose_is_chosen_again(folder: Path, tmp_path: Path) -> None:
    path = make_bundle(tmp_path / "chosen", heads={"linear": "logits"}).path
    replace_files(path, {"model.onnx": network(1.0)})
    calibrate_bundle(path, str(folder / "d"), ks=KS)
    assert export(tmp_path, "chosen", tmp_path / "out", data=str(folder / "d")).exit_code == 0
    assert read_record(open_bundle(tmp_path / "out")).measured.chose_head


def test_what_is_missing_is_said_before_anything_takes_time(folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    make_bundle(tmp_path / "bare")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    make_data(tmp_path / "untaught", rows=2)
    at = str(folder / "d")
    for error, kind, words in (
        (refusal(tmp_path, "bare", out, data=at), BundleError, "is not calibrated: run `florilege"),
        (refusal(tmp_path, "run", out, data=at), UsageError, "export and calibrate it first"),
        (refusal(tmp_path, "absent", out, data=at), BundleError, "is not a bundle"),
        (refusal(folder, "good", out, data=""), UsageError, "--data is missing"),
        (refusal(folder, "good", folder / "good"), UsageError, "--out must be another folder"),
        (refusal(folder, "good", out, "--photos", 0), UsageError, "--photos must be at least 1"),
        (refusal(folder, "good", out, data=str(tmp_path / "untaught")), DataError,
         "has no split 'train'"),
    ):  # fmt: skip
        assert isinstance(error, kind), error
        assert words in str(error)
    assert not out.exists()


def test_a_bundle_in_eight_bits_is_not_quantised_again(folder: Path, tmp_path: Path) -> None:
    assert export(folder, "good", tmp_path / "once").exit_code == 0
    error = refusal(tmp_path, "once", tmp_path / "twice", data=str(folder / "d"))
    assert isinstance(error, BundleError)
    assert "calculates with eight bits already" in str(error)
    assert not (tmp_path / "twice").exists()


def test_a_training_photo_that_cannot_be_read_is_named(folder: Path, tmp_path: Path) -> None:
    data = make_data(tmp_path / "d", rows=2, splits=("train", "val", "test"))
    (data / "train" / "c3" / "000.png").write_bytes(b"\x89PNG")
    error = refusal(folder, "good", tmp_path / "out", data=str(data))
    assert isinstance(error, DataError)
    assert "c3/000.png" in str(error)


def test_other_words_are_refused(folder: Path, tmp_path: Path) -> None:
    unknown = export(folder, "good", tmp_path / "out", "--quantize", "int4")
    assert unknown.exit_code == 2
    assert "int8" in unknown.stderr
    plain = ["export", str(folder), "--out", str(tmp_path / "out"), "--data", "d"]
    assert isinstance(CliRunner().invoke(app, plain).exception, UsageError)
