import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from typer.testing import CliRunner, Result

from florilege.calibration.record.record_file import read_record
from florilege.device_export import device_bundle
from florilege.errors import BundleError, FlorilegeError, UsageError
from florilege.export_cli import app
from florilege.models import float16_weights
from florilege.models.bundle import open_bundle
from florilege.models.bundle.bundle import MODEL, replace_files
from tests.device_export.conftest import bundle, photos, runtime
from tests.server import garden

__all__ = ["bundle", "photos", "runtime"]  # fixtures


def export(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


def refusal(*words: object) -> FlorilegeError:
    error = export(*words).exception
    assert isinstance(error, FlorilegeError)
    return error


def test_weights_are_halved_and_calibrated_anew_if_the_sets_agree(
    bundle: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(float16_weights, "SMALL", 10)
    words = (bundle, "--target", "mobile", "--data", photos, "--out", tmp_path / "out")
    result = export(*words, "--json")
    assert result.exit_code == 0, result.output
    assert "half-precision weights give the same set for" in result.stderr
    content = json.loads(result.stdout)
    network = (tmp_path / "out" / MODEL).read_bytes()
    assert content == {
        "folder": str(tmp_path / "out"),
        "target": "mobile",
        "network_bytes": len(network),
    }
    pack = json.loads((tmp_path / "out" / "pack.json").read_text())
    old, calibration = read_record(open_bundle(bundle)), pack["calibration"]
    assert pack["model"]["calibration_id"] != old.calibration_id
    assert (calibration["head"], calibration["score_kind"]) == (old.head, old.score_kind)
    ks = [p["k"] for p in calibration["tables"][0]["points"]]
    assert ks == old.ks("average_k")
    assert [each["name"] for each in calibration["lists"]] == ["heath"]
    assert calibration["place_strength"] > 0
    assert onnx.TensorProto.FLOAT16 in types(network)
    assert open_bundle(bundle).read(MODEL) != network

    monkeypatch.setattr(device_bundle, "LEAST_EQUAL", 1.1)
    strict = export(*words)
    assert "the weights keep single precision" in strict.stderr
    assert (tmp_path / "out" / MODEL).read_bytes() == open_bundle(bundle).read(MODEL)


def types(network: bytes) -> set[int]:
    return {each.data_type for each in onnx.load_from_string(network).graph.initializer}


def test_halving_keeps_small_tensors_and_those_it_would_overflow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = onnx.load_from_string(garden.network())
    for size, largest in ((20, 1.0), (20, 7e4), (9, 1.0)):
        values = np.linspace(0, largest, size, dtype=np.float32)
        name = f"{size} to {largest}"
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    monkeypatch.setattr(float16_weights, "SMALL", 20)
    halved = onnx.load_from_string(float16_weights.halve_weights(model.SerializeToString()))
    names = {each.name for each in halved.graph.initializer if each.data_type == 10}
    assert names == {"20 to 1.0_float16", "weights_float16"}
    onnx.checker.check_model(halved)


def test_the_web_page_is_exported_with_its_sizes(
    bundle: Path, runtime: Path, tmp_path: Path
) -> None:
    result = export(bundle, "--target", "web", "--runtime", runtime, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "a device fetches network 0.0 MB, other 4." in result.stdout
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.parametrize(
    ("words", "kind", "message"),
    [
        (["--target", "web"], UsageError, "npm pack"),
        ([], UsageError, "--target web or mobile"),
        (["--target", "mobile"], UsageError, "no earlier export"),
    ],
)
def test_what_cannot_be_exported_says_what_to_do(
    bundle: Path, tmp_path: Path, words: list[str], kind: Any, message: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").touch()
    error = refusal(bundle, *words, "--out", tmp_path / "out")
    assert isinstance(error, kind)
    assert message in str(error)


def test_a_bundle_without_thresholds_or_for_bf16_alone_is_refused(
    bundle: Path, tmp_path: Path
) -> None:
    plain = garden.plant(tmp_path / "plain")
    out = ("--target", "mobile", "--out", tmp_path / "out")
    assert isinstance(refusal(plain, *out), BundleError)
    record = open_bundle(bundle).read("calibration.json").replace(b'"float32"', b'"bf16"')
    replace_files(plain, {"calibration.json": record})
    assert "--precision float32" in str(refusal(plain, *out))
