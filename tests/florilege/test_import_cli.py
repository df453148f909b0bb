import hashlib
import json
import pickle
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from florilege.calibration.calibrate import calibrate_bundle
from florilege.calibration.calibrate.evaluate import evaluate_bundle
from florilege.calibration.view import PLAIN
from florilege.command_line import import_export
from florilege.command_line.import_export import app
from florilege.errors import BundleError, DataError, UsageError
from florilege.models.bundle import Bundle, open_bundle
from florilege.models.images import Preprocess
from florilege.models.imported.signature import Description
from florilege.models.imported.torch_checkpoint import _input_format
from florilege.models.session import Session
from tests.commands import call, error_of
from tests.florilege.test_files import holder
from tests.models.imported.graphs import (
    SCALED,
    foreign,
    oracle,
    random_pictures,
    save,
    timm_folder,
)
from tests.models.pictures import encode, noise
from tests.training.small import write_photos

CLASSES = "class_id,scientific_name,genus\nb,Rosa canina,Rosa\na,Acer rubrum,Acer\nc,,\n"


_call, _error = partial(call, app, "import"), partial(error_of, app, "import")


def _words(folder: Path, said: Mapping[str, Any], model: object, *more: object) -> list[object]:
    classes, preprocess = folder / "classes.csv", folder / "preprocess.json"
    classes.write_text(CLASSES)
    preprocess.write_text(json.dumps(said))
    papers = ("--classes", classes, "--preprocess", preprocess)
    return [model, *papers, *more, "--out", folder / "bundle"]


@pytest.fixture
def words(tmp_path: Path) -> list[object]:
    """The words of a call that works."""
    return _words(tmp_path, SCALED, save(foreign(ending="Softmax"), tmp_path / "net.onnx"))


def test_a_graph_becomes_a_bundle_that_answers_like_it_and_says_where_it_came_from(
    words: list[object], tmp_path: Path
) -> None:
    result = _call(*words)
    assert result.exit_code == 0, result.output
    assert "the softmax of the logits `raw`" in " ".join(result.stdout.split())
    assert f"florilege calibrate {tmp_path / 'bundle'} --data DATA" in result.stderr
    bundle = open_bundle(tmp_path / "bundle")
    assert bundle.classes.ids == ("b", "a", "c")  # the order of the rows
    assert [info.scientific_name for info in bundle.classes] == ["Rosa canina", "Acer rubrum", "c"]
    assert (bundle.manifest.name, bundle.heads) == ("net", {"linear": "logits"})
    session, pictures = Session(bundle, device="cpu"), random_pictures(4)
    outcome = session.outputs(pictures, features=True)
    shares = np.exp(outcome.logits["linear"])
    shares /= shares.sum(axis=1, keepdims=True)
    expected = oracle(onnx.load(tmp_path / "net.onnx"), pictures)
    np.testing.assert_allclose(shares, expected, atol=1e-6)
    assert session.dimensions == 4
    digest = hashlib.sha256((tmp_path / "net.onnx").read_bytes()).hexdigest()
    papers = json.loads(bundle.read("provenance.json"))
    assert papers["imported_from"] == {"net.onnx": digest}
    assert papers["agreement"]["max_difference"] <= papers["agreement"]["tolerance"]
    assert papers["agreement"]["made_up_pictures"] is True
    assert papers["libraries"]["onnx"]
    assert "checkpoint_chosen_on" not in papers  # unknown, not none
    card = bundle.read("MODEL_CARD.md").decode()
    assert f"- file: `net.onnx`, sha256 `{digest}`" in card
    assert "on 8 made-up pictures, with the same best class for 8.\n" in card
    model = onnx.load(tmp_path / "bundle" / "model.onnx")
    assert model.producer_name == "florilege"
    assert str(tmp_path).encode() not in bundle.read("model.onnx")


def test_the_answer_is_also_one_json_object(
    words: list[object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    photo = tmp_path / "photo.png"
    photo.write_bytes(encode(noise(20, 20), "png"))
    content = json.loads(_call(*words, "--photos", photo, "--json").stdout)
    assert content["agreement"]["same_best_class"] == content["agreement"]["pictures"] == 1
    assert content["facts"]["input"] == "`x`, float32, nchw, rgb, 6 x 6 pixels"
    assert content["best"].keys() == {str(photo)}
    assert content["best"][str(photo)] in {"Rosa canina", "Acer rubrum", "c"}
    for figure in (3, 10):  # of 8 pictures
        monkeypatch.setattr(import_export, "MOST_PICTURES", figure)
        printed = _call(*words).stdout
        assert ("black" in printed) == (figure == 10)
        assert "slopes" in printed


def test_what_does_not_fit_is_refused_and_nothing_is_written(
    words: list[object], tmp_path: Path
) -> None:
    assert "leave out --weights" in str(_error(*words, "--weights", tmp_path / "w.pt"))
    (tmp_path / "preprocess.json").write_text("{}")
    assert "does not determine scale, mean, std" in str(_error(*words))
    (tmp_path / "preprocess.json").write_text(json.dumps(SCALED))
    (tmp_path / "classes.csv").write_text("class_id\na\nb\n")
    assert "perhaps a background class" in str(_error(*words))
    (tmp_path / "classes.csv").write_text("name\na\n")
    error = _error(*words)
    assert isinstance(error, DataError)
    assert "has no column 'class_id'; it has: name" in str(error)
    assert isinstance(_error(*words[:2], tmp_path / "none.csv", *words[3:]), DataError)
    assert isinstance(_error(tmp_path / "none.onnx", *words[1:]), DataError | BundleError)
    assert not (tmp_path / "bundle").exists()


def test_an_older_bundle_loses_its_calibration_and_one_that_another_process_changes_nothing(
    words: list[object], tmp_path: Path
) -> None:
    assert _call(*words).exit_code == 0
    bundle = tmp_path / "bundle"
    with holder(bundle) as other:
        assert f"process ({other.pid}) is writing to" in str(_error(*words))
    (bundle / "calibration.json").write_text("{}")
    again = _call(*words)
    assert "its calibration was removed: calibrate again" in again.stderr
    assert "calibrate again" not in _call(*words[:-1], tmp_path / "new").stderr


def test_an_imported_bundle_is_calibrated_and_evaluated_like_our_own(tmp_path: Path) -> None:
    """A classifier of colours: its logits are the means of the channels."""
    data = write_photos(tmp_path / "photos", train=2, val=8)
    model = save(onnx.parser.parse_model(COLOURS), tmp_path / "colours.onnx")
    said = {"scale": 0.05, "mean": [0, 0, 0], "std": [1, 1, 1], "channels": "bgr", "size": 16}
    words = _words(tmp_path, said, model, "--photos", data / "val")
    (tmp_path / "classes.csv").write_text("class_id\nblue\ngreen\nred\n")
    result = _call(*words)
    assert result.exit_code == 0, result.output
    bundle = tmp_path / "bundle"
    record = calibrate_bundle(bundle, str(data), ks=[1, 1.5])
    assert record.measured.chose_checkpoint is None
    assert record.rejection is not None
    assert record.rejection.method == "generalised_entropy"  # such a network has no features
    rows = {
        (point.rule, result.value): result
        for point, result, *_ in evaluate_bundle(bundle, str(data), "val").rules
    }
    assert rows["average_k", 1.5].size == pytest.approx(1.5, abs=0.05)
    assert (rows["average_k", 1.5].hit_rate or 0) > 0.8


COLOURS = """<ir_version: 8, opset_import: ["": 17]>
colours (float[n, 3, h, w] x) => (float[n, 3, 1, 1] y) { y = GlobalAveragePool(x) }"""


def test_an_onnx_file_is_imported_where_torch_cannot_be(words: list[object]) -> None:
    program = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "torchvision", "timm", "onnxscript", "safetensors"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)
sys.meta_path.insert(0, Refuse())
from florilege import cli
cli.main()
"""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        result = [sys.executable, "-c", program, "import", *map(str, arguments)]
        return subprocess.run(result, capture_output=True, text=True, check=False)

    outcome = run(*words)
    assert outcome.returncode == 0, outcome.stderr
    assert "original and bundle differ by at most" in outcome.stdout
    refused = run("resnet18", *words[1:])
    assert refused.returncode == 2
    assert "resnet18 is not an ONNX file; a checkpoint of a network needs torch" in refused.stderr


# Checkpoints -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    network: Any = timm.create_model("test_efficientnet", num_classes=3).eval()
    path = tmp_path_factory.mktemp("weights") / "w.safetensors"
    save_file(network.state_dict(), path)
    return path


def _checkpoint(
    folder: Path, weights: Path, said: Mapping[str, Any], name: str = "timm:test_efficientnet"
) -> list[object]:
    return _words(folder, said, name, "--weights", weights)


def _check_logits(
    bundle: Bundle, network: Any, *, scale: float, mean: Sequence[float], std: Sequence[float]
) -> None:
    """The bundle gives the logits of the network for pictures normalised like this."""
    pictures = random_pictures(3, bundle.preprocess.image_size)
    values = (torch.from_numpy(pictures) * scale - torch.tensor(mean)) / torch.tensor(std)
    with torch.no_grad():
        expected = network(values.permute(0, 3, 1, 2)).numpy()
    outcome = Session(bundle, device="cpu").logits(pictures)["linear"]
    np.testing.assert_allclose(outcome, expected, atol=1e-4, rtol=1e-4)


def test_a_checkpoint_of_timm_answers_as_in_timm(state: Path, tmp_path: Path) -> None:
    body = {"size": 32, "scale": 0.02, "mean": [1, 2, 3], "std": [2, 1, 0.5], "crop": 0.9}
    assert _call(*_checkpoint(tmp_path, state, body)).exit_code == 0
    bundle = open_bundle(tmp_path / "bundle")
    assert (bundle.preprocess.image_size, bundle.preprocess.crop_fraction) == (32, 0.9)
    assert bundle.manifest.name == "test_efficientnet"
    plain: Any = timm.create_model("test_efficientnet", num_classes=3).eval()
    plain.load_state_dict(load_file(state))
    _check_logits(bundle, plain, scale=0.02, mean=(1, 2, 3), std=(2, 1, 0.5))
    papers = json.loads(bundle.read("provenance.json"))
    assert papers["imported_from"] == {
        "w.safetensors": hashlib.sha256(state.read_bytes()).hexdigest()
    }


def test_a_scale_alone_leaves_the_normalisation_of_the_network() -> None:
    own = Preprocess(image_size=32, crop_fraction=0.9, resample="bicubic")
    for description in (Description(), Description(scale=1.0), Description(scale=0.5)):
        result = _input_format(own, description).preprocess
        assert (*result.mean, *result.std) == pytest.approx((*own.mean, *own.std))
        assert (result.image_size, result.crop_fraction, result.resample) == (32, 0.9, "bicubic")
    changed = _input_format(own, Description(scale=1.0, mean=(51.0, 0.0, 0.0))).preprocess
    assert changed.mean == pytest.approx((0.2, 0.0, 0.0))
    assert changed.std == pytest.approx(own.std)


def test_a_checkpoint_that_does_not_fit_is_refused(state: Path, tmp_path: Path) -> None:
    small = {"size": 32}
    words = _checkpoint(tmp_path, state, small)
    (tmp_path / "classes.csv").write_text("class_id\na\nb\n")
    assert "does not have 2 rows" in str(_error(*words))
    words = _checkpoint(tmp_path, state, {"layout": "nchw", "kind": "logits"})
    assert "leave them out: layout, kind" in str(_error(*words))
    unknown = _error(*_checkpoint(tmp_path, state, small, name="timm:no_such_network"))
    assert isinstance(unknown, UsageError)
    other = _error(*_checkpoint(tmp_path, state, small, name="tiny"))
    assert "another architecture" in str(other)
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("gaps", [False, True])
def test_a_folder_of_timm_names_its_classes(tmp_path: Path, gaps: bool) -> None:
    """As many as Pl@ntNet-300K has species; a file may leave some unnamed."""
    labels = {str(row): f"{1350000 + row}" for row in range(1081)}
    labels |= {"0": "Bellis perennis", "1080": "Rosa canina L."}
    descriptions = {"Bellis perennis": "daisy", "1350001": "Acer rubrum"}
    if gaps:
        del labels["7"]
    names = labels if gaps else list(labels.values())
    model = timm_folder(tmp_path / "net", 1081, label_names=names, label_descriptions=descriptions)
    result = _call(model, "--out", tmp_path / "bundle")
    assert result.exit_code == 0, result.output
    bundle = open_bundle(tmp_path / "bundle")
    ids = list(labels.values())
    assert bundle.classes.ids == tuple([*ids[:7], "7", *ids[7:]] if gaps else ids)
    assert bundle.classes[0].common_names == {"en": ("daisy",)}
    assert [bundle.classes[row].scientific_name for row in (0, 1, 1080)] == [
        "Bellis perennis",
        "Acer rubrum",
        "Rosa canina L.",
    ]
    assert (bundle.manifest.name, bundle.preprocess.image_size) == ("net", 160)
    network: Any = timm.create_model(model.removeprefix("timm:"), pretrained=True).eval()
    own = bundle.preprocess
    _check_logits(bundle, network, scale=1 / 255, mean=own.mean, std=own.std)


def test_a_model_without_names_needs_a_table_of_classes(
    words: list[object], tmp_path: Path
) -> None:
    unnamed = timm_folder(tmp_path / "net", 3)
    for model in (words[0], unnamed, "resnet18", "timm:test_efficientnet"):
        error = _error(model, "--out", tmp_path / "bundle")
        assert isinstance(error, UsageError)
        assert "add --classes" in str(error)
    error = _error(f"timm:local-dir:{tmp_path}", "--out", tmp_path / "bundle")
    assert isinstance(error, UsageError)
    assert "config.json" in str(error)
    twice = timm_folder(tmp_path / "twice", 3, label_names=["a", "b", "a"])
    assert "unique" in str(_error(twice, "--out", tmp_path / "bundle"))
    assert not (tmp_path / "bundle").exists()
    result = _call(unnamed, *words[1:3], "--out", tmp_path / "bundle")
    assert result.exit_code == 0, result.output
    assert open_bundle(tmp_path / "bundle").classes.ids == ("b", "a", "c")


class _Trap:
    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (Path("trapped"),))


def test_nothing_in_a_checkpoint_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    weights = tmp_path / "w.pt"
    torch.save({"state_dict": _Trap()}, weights)
    assert isinstance(_error(*_checkpoint(tmp_path, weights, {"size": 32})), BundleError)
    weights.with_suffix(".onnx").write_bytes(pickle.dumps(_Trap()))
    words = _words(tmp_path, {"size": 32}, weights.with_suffix(".onnx"))
    assert isinstance(_error(*words), BundleError)
    assert not (tmp_path / "trapped").exists()


def test_a_bundle_is_guaranteed_by_the_word_of_whoever_imported_it(
    words: list[object], tmp_path: Path
) -> None:
    data = write_photos(tmp_path / "photos", train=4, val=4)
    for own, name in (("blue", "a"), ("green", "b"), ("red", "c")):
        for split in ("train", "val"):
            (data / split / own).rename(data / split / name)
    shutil.copytree(data / "val", data / "test")

    def guaranteed(chosen_on: str | None, split: str) -> bool:
        answer = [] if chosen_on is None else ["--chosen-on", chosen_on]
        result = _call(*words, *answer)
        assert ("--chosen-on SPLIT, or --chosen-on none" in result.stderr) == (chosen_on is None)
        record = calibrate_bundle(
            tmp_path / "bundle", str(data), split, ks=[1], score_kind="softmax"
        )
        point = record.point(PLAIN, record.setting("coverage", 0.9))
        assert point.guaranteed == ("This is guaranteed" in point.statement)
        return point.guaranteed

    assert guaranteed("none", "val")
    assert guaranteed("NONE", "test")
    assert not guaranteed("none", "train")
    assert not guaranteed("validation", "val:0-0.5")
    assert guaranteed("val", "test")
    assert not guaranteed(None, "test")
    assert "takes train, val, test or none, got 'vel'" in str(_error(*words, "--chosen-on", "vel"))
