import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

import florilege.training.run_export
from florilege.errors import BundleError, UsageError
from florilege.models.backbones import load_into, read_weights
from florilege.models.bundle import Bundle, open_bundle
from florilege.models.classes import Thumbnail
from florilege.models.images import Preprocess, load
from florilege.models.session import Session
from florilege.training.configuration import resolve
from florilege.training.network import build_network
from florilege.training.run_export import export_run
from tests.florilege.test_files import holder
from tests.models.pictures import thumbnail
from tests.training.small import checkpoint_of, small_config, train_quietly, write_photos


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("export")
    config = small_config(write_photos(folder / "photos"), epochs=2, crop_fraction=0.9)
    train_quietly(config, folder / "run")
    return folder / "run"


@pytest.fixture(scope="module")
def bundle(run: Path) -> Bundle:
    return export_run(run, run.parent / "bundle")


@pytest.fixture
def same_graph(bundle: Bundle, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every export takes the graph of ``bundle``: making one takes a second."""
    result = bundle.read("model.onnx"), json.loads(bundle.read("provenance.json"))["parity"]
    monkeypatch.setattr(florilege.training.run_export, "export_onnx", lambda *_: result)


def _normalised(picture: NDArray[np.uint8], preprocess: Preprocess) -> torch.Tensor:
    mean, std = torch.tensor(preprocess.mean), torch.tensor(preprocess.std)
    return ((torch.from_numpy(picture) / 255 - mean) / std).permute(2, 0, 1)[None]


def test_the_bundle_holds_the_documented_files(bundle: Bundle) -> None:
    names = "model.onnx classes.json preprocess.json metrics.json MODEL_CARD.md provenance.json"
    for name in (*names.split(), "config.yaml", "weights.safetensors"):
        assert bundle.has(name), name
    assert bundle.heads == {"multi_label": "multi_label_logits", "sccp": "sccp_logits"}
    assert bundle.classes.ids == ("blue", "green", "red")
    assert (bundle.preprocess.image_size, bundle.preprocess.crop_fraction) == (16, 0.9)
    assert (
        bundle.manifest.name == bundle.path.parent.name
    )  # a folder called "run" has no name of its own


def test_the_served_logits_are_those_of_the_best_weights(run: Path, bundle: Bundle) -> None:
    config = small_config("x", crop_fraction=0.9)
    network = build_network(config, "two_head", 3)
    load_into(network, read_weights(run / "best.safetensors"), origin="")
    photo = (run.parent / "photos" / "val" / "red" / "0.png").read_bytes()
    picture = load(photo, bundle.preprocess)
    result = Session(bundle, device="cpu").logits(picture[None])
    with torch.no_grad():
        expected = network.eval()(_normalised(picture, bundle.preprocess))
    for head, logits in zip(("multi_label", "sccp"), expected, strict=True):
        np.testing.assert_allclose(result[head], logits.numpy(), atol=1e-4, rtol=1e-4)


def test_the_provenance_says_where_the_model_comes_from(run: Path, bundle: Bundle) -> None:
    content = json.loads(bundle.read("provenance.json"))
    assert content["data"] == str(run.parent / "photos")
    assert (content["seed"], content["training_pictures"]) == (0, 36)
    assert content["loss"] == {"name": "two_head_average_k", "average_k": 2}
    assert content["checkpoint_chosen_on"] == "val"
    assert content["checkpoint_chosen_by"] == "average-1.5 accuracy"
    assert content["parity"]["max_difference"] <= content["parity"]["tolerance"]
    assert torch.__version__.startswith(content["libraries"]["torch"])


def test_the_metrics_and_the_card_are_those_of_the_exported_epoch(
    run: Path, bundle: Bundle
) -> None:
    metrics = json.loads(bundle.read("metrics.json"))
    best = checkpoint_of(run)["position"]
    assert metrics["epoch"] == best["best_epoch"]
    assert metrics["val_score"] == best["best_score"]
    card = bundle.read("MODEL_CARD.md").decode()
    assert "distinguishes 3 classes" in card
    assert f"{best['best_score'] * 100:.2f} %" in card


def test_a_run_of_no_epochs_exports_its_initial_weights(run: Path, tmp_path: Path) -> None:
    config = small_config(run.parent / "photos", epochs=0, loss={"name": "cross_entropy"})
    train_quietly(config, tmp_path / "run")
    result = export_run(tmp_path / "run", tmp_path / "bundle")
    assert result.heads == {"linear": "logits"}
    assert json.loads(result.read("provenance.json"))["checkpoint_chosen_on"] is None
    assert "initial weights" in result.read("MODEL_CARD.md").decode()


def test_a_network_of_timm_is_served_as_its_weights_want_pictures(
    run: Path, tmp_path: Path
) -> None:
    plain: Any = timm.create_model("test_efficientnet", num_classes=3).eval()
    save_file(plain.state_dict(), tmp_path / "w.safetensors")
    (tmp_path / "LICENSE").write_text("Some licence\n")
    config = resolve(
        {
            **{"data": str(run.parent / "photos"), "backbone": "timm:test_efficientnet"},
            **{"weights": str(tmp_path / "w.safetensors"), "image_size": 32, "epochs": 0},
        },
        overrides=["loss.name=cross_entropy", "mean=[0.1, 0.2, 0.3]", "device=cpu"],
    )
    train_quietly(config, tmp_path / "run")
    result = export_run(tmp_path / "run", tmp_path / "bundle")
    own = plain.pretrained_cfg
    assert result.preprocess == Preprocess(
        image_size=32,
        crop_fraction=own["crop_pct"],
        resample=own["interpolation"],
        mean=(0.1, 0.2, 0.3),
        std=own["std"],
    )
    photo = (run.parent / "photos" / "val" / "red" / "0.png").read_bytes()
    picture = load(photo, result.preprocess)
    with torch.no_grad():
        expected = plain(_normalised(picture, result.preprocess)).numpy()
    outcome = Session(result, device="cpu").logits(picture[None])["linear"]
    np.testing.assert_allclose(outcome, expected, atol=1e-4, rtol=1e-4)

    started_from = json.loads(result.read("provenance.json"))["starting_weights"]
    digest = hashlib.sha256((tmp_path / "w.safetensors").read_bytes()).hexdigest()
    assert started_from["file"] == "w.safetensors"
    assert (started_from["licence"], started_from["sha256"]) == ("Some licence", digest)
    card = " ".join(result.read("MODEL_CARD.md").decode().split())
    assert f"`w.safetensors`, licence: Some licence, sha256 `{digest}`" in card
    assert "mean 0.1, 0.2, 0.3, standard deviation" in card


def test_a_run_started_from_a_bundle_names_the_first_weights_licence(
    run: Path, bundle: Bundle, tmp_path: Path, same_graph: None
) -> None:
    paper = json.dumps({"starting_weights": {"file": "first.pt", "licence": "cc-by-nc-4.0"}})
    (tmp_path / "provenance.json").write_text(paper)
    shutil.copy(bundle.path_of("weights.safetensors"), tmp_path)
    config = small_config(run.parent / "photos", epochs=0, weights=str(tmp_path))
    train_quietly(config, tmp_path / "run")
    result = export_run(tmp_path / "run", tmp_path / "bundle")
    assert "licence: cc-by-nc-4.0" in result.read("MODEL_CARD.md").decode()


@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.yaml", lambda text: text.replace("tiny", "resnet18_small"), "architecture"),
        (
            "classes.json",
            lambda text: json.dumps(json.loads(text)[:2]),
            r"is \(3.* of \(2",
        ),
        ("best.safetensors", None, "safetensors"),
    ],
)
def test_weights_that_are_missing_or_do_not_fit_are_refused_and_nothing_is_left(
    run: Path, tmp_path: Path, file: str, change: Callable[[str], str] | None, message: str
) -> None:
    (tmp_path / "run").mkdir()
    for name in ("config.yaml", "classes.json", "best.safetensors", "metrics.csv"):
        shutil.copy(run / name, tmp_path / "run")
    path = tmp_path / "run" / file
    if change is None:
        path.unlink()
    else:
        path.write_text(change(path.read_text()))
    with pytest.raises(BundleError, match=message):
        export_run(tmp_path / "run", tmp_path / "bundle")
    assert not (tmp_path / "bundle").exists()


def test_exporting_over_a_bundle_replaces_it(run: Path, tmp_path: Path, same_graph: None) -> None:
    export_run(run, tmp_path / "bundle")
    first = (tmp_path / "bundle" / "bundle.json").read_bytes()
    config = small_config(run.parent / "photos", epochs=0, seed=1)
    train_quietly(config, tmp_path / "other")
    export_run(tmp_path / "other", tmp_path / "bundle")
    assert (tmp_path / "bundle" / "bundle.json").read_bytes() != first
    assert open_bundle(tmp_path / "bundle").manifest.name == "other"


def test_names_links_and_thumbnails_travel_from_the_data_to_the_bundle(
    tmp_path: Path, same_graph: None
) -> None:
    photos, run = write_photos(tmp_path / "photos", train=3, val=1), tmp_path / "run"
    (photos / "classes.csv").write_text(
        "class_id,scientific_name,common_name_fr,link,thumbnail,thumbnail_author\n"
        "green,Viridis,vert,https://example.org,train/green/0.png,A\n"
        "not trained on,,,,gone.png,\n"
    )
    config = small_config(photos, epochs=0)
    train_quietly(config, run)
    bundle = export_run(run, tmp_path / "bundle")
    green = bundle.classes[1]
    assert (green.scientific_name, green.link) == ("Viridis", "https://example.org")
    assert (green.common_names, green.thumbnail) == ({"fr": ("vert",)}, Thumbnail(author="A"))
    view = thumbnail((photos / "train/green/0.png").read_bytes())
    assert bundle.read_thumbnails() == {"green": view}
    (photos / "classes.csv").unlink()
    train_quietly(config, run, resume=True)
    assert not export_run(run, tmp_path / "bundle").has("thumbnails.zip")


def test_a_bundle_that_another_process_changes_is_refused_before_anything_is_exported(
    run: Path, bundle: Bundle, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(florilege.training.run_export, "export_onnx", None)
    with (
        holder(bundle.path) as other,
        pytest.raises(UsageError, match=rf"process \({other.pid}\) is writing to {bundle.path}"),
    ):
        export_run(run, bundle.path)
    assert open_bundle(bundle.path) == bundle
