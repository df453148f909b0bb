import json
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from florilege.calibration.record.record_file import read_record
from florilege.command_line.import_export import _write_folder, app
from florilege.errors import BundleError, UsageError
from florilege.models.bundle import MODEL, open_bundle, replace_files
from florilege.plugins.devices import device_bundle
from tests.commands import call, error_of
from tests.plugins.devices.conftest import bundle, photos, runtime
from tests.server import garden

__all__ = ["bundle", "photos", "runtime"]  # fixtures


export, refusal = partial(call, app, "export"), partial(error_of, app, "export")


def test_weights_are_halved_and_calibrated_anew_if_the_sets_agree(
    bundle: Path, photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_bundle, "_SMALL", 10)
    out = tmp_path / "out"
    words = (bundle, "--target", "mobile", "--data", photos, "--out", out)
    result = export(*words, "--json")
    assert result.exit_code == 0, result.output
    assert "16-bit weights give the same set for" in result.stderr
    network = (out / MODEL).read_bytes()
    content = {"folder": str(out), "target": "mobile", "network_bytes": len(network)}
    assert json.loads(result.stdout) == content
    pack = json.loads((out / "pack.json").read_text())
    old, calibration = read_record(open_bundle(bundle)), pack["calibration"]
    assert pack["model"]["calibration_id"] != old.calibration_id
    assert (calibration["head"], calibration["score_kind"]) == (old.head, old.score_kind)
    ks = [p["k"] for p in calibration["tables"][0]["points"]]
    assert ks == old.values("average_k")
    assert [each["name"] for each in calibration["lists"]] == ["heath"]
    assert calibration["place_strength"] > 0
    assert onnx.TensorProto.INT16 in types(network)
    assert open_bundle(bundle).read(MODEL) != network

    monkeypatch.setattr(device_bundle, "LEAST_EQUAL", 1.1)
    strict = export(*words)
    assert "the weights keep 32 bits" in strict.stderr
    assert (out / MODEL).read_bytes() == open_bundle(bundle).read(MODEL)


def types(network: bytes) -> set[int]:
    return {each.data_type for each in onnx.load_from_string(network).graph.initializer}


@pytest.mark.parametrize("name", ["../stolen", "/tmp/stolen"])
def test_a_list_of_a_strangers_bundle_names_no_file(
    bundle: Path, photos: Path, tmp_path: Path, name: str
) -> None:
    """Its name would be that of a file, and its ids the lines."""
    copy = Path(shutil.copytree(bundle, tmp_path / "copy"))
    calibration = (
        open_bundle(copy).read("calibration.json").replace(b'"heath"', f'"{name}"'.encode())
    )
    replace_files(copy, {"calibration.json": calibration})
    words = (copy, "--target", "mobile", "--data", photos, "--out", tmp_path / "out")
    assert "cannot be the name of a list" in str(refusal(*words))


def test_halving_rounds_large_tensors_by_rows_and_leaves_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    random, graph = np.random.default_rng(0), onnx.load_from_string(garden.network())
    large = random.normal(size=(5, 4)) * np.array([[1.0], [1e-4], [0.0], [1e5], [3.0]])
    odd = np.full((5, 4), np.inf)
    tensors = {"large": large, "small": large[:, :3], "flat": np.ones(40), "odd": odd}
    for name, values in tensors.items():
        tensor = onnx.numpy_helper.from_array(values.astype(np.float32), name)
        graph.graph.initializer.append(tensor)
    monkeypatch.setattr(device_bundle, "_SMALL", 20)
    halved = onnx.load_from_string(device_bundle._halve_weights(graph.SerializeToString()))
    names = {each.name for each in halved.graph.initializer if each.data_type == 5}
    assert names == {"large/int16", "weights/int16"}
    halved.graph.output.append(onnx.ValueInfoProto(name="large"))
    session = onnxruntime.InferenceSession(halved.SerializeToString())
    (wide,) = session.run(
        ["large"], {"image": np.zeros((1, garden.SIDE, garden.SIDE, 3), np.uint8)}
    )
    steps = np.abs(large).max(axis=1, keepdims=True) / (2**15 - 1)
    assert (np.abs(wide - large) <= 0.51 * steps).all()


def test_the_web_page_is_exported_with_its_sizes(
    bundle: Path, runtime: Path, tmp_path: Path
) -> None:
    result = export(bundle, "--target", "web", "--runtime", runtime, "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "a device fetches network 0.0 MB, other 4." in result.stdout
    assert (tmp_path / "out" / "index.html").is_file()


@pytest.mark.parametrize(
    ("words", "out", "message"),
    [
        (["--target", "web"], "out", "npm pack"),
        ([], "out", "--target web or mobile"),
        (["--target", "mobile"], "out", "no earlier export"),
        (["--target", "mobile"], "out/thesis.txt", "no earlier export"),
    ],
)
def test_what_cannot_be_exported_says_what_to_do(
    bundle: Path, tmp_path: Path, words: list[str], out: str, message: str
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("years of work")
    error = refusal(bundle, *words, "--out", tmp_path / out)
    assert isinstance(error, UsageError)
    assert message in str(error)
    assert [path.read_text() for path in (tmp_path / "out").iterdir()] == ["years of work"]


def test_a_bundle_without_thresholds_or_for_bf16_alone_is_refused(
    bundle: Path, tmp_path: Path
) -> None:
    plain = garden.plant(tmp_path / "plain")
    out = ("--target", "mobile", "--out", tmp_path / "out")
    assert isinstance(refusal(plain, *out), BundleError)
    opened = open_bundle(bundle)
    record = opened.read_object("calibration.json")
    record["measured"]["precision"] = "bf16"
    reference = {name: opened.read(name) for name in ("reference.npy",) if opened.has(name)}
    replace_files(plain, {"calibration.json": json.dumps(record).encode(), **reference})
    assert "--precision float32" in str(refusal(plain, *out))


def test_an_export_replaces_an_earlier_one(tmp_path: Path) -> None:
    out = tmp_path / "new" / "out"
    _write_folder(out, {"pack.json": b"1", "deep/old": b""})
    _write_folder(out, {"pack.json": b"2"})
    assert [path.name for path in out.rglob("*")] == ["pack.json"]
    assert (out / "pack.json").read_bytes() == b"2"
    assert [path.name for path in out.parent.iterdir()] == ["out"]
