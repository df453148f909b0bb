"""Heads trained on the features of a frozen backbone."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from florilege.data.sources import open_dataset
from florilege.errors import BundleError, DataError, UsageError
from florilege.models.backbones import Network, PictureNetwork, build, read_weights
from florilege.models.images import Preprocess, load
from florilege.models.output_store import OutputStore
from florilege.models.runtime import Runtime
from florilege.models.session import FEATURES
from florilege.tables import read_table
from florilege.training import frozen as features
from florilege.training.config import TrainConfig
from florilege.training.configuration import resolve
from florilege.training.frozen import HeadOnFeatures, _FrozenBackbone, threads_for
from florilege.training.loop import Run
from florilege.training.machines import Compute
from tests.training.small import check_resuming, lines_of, small_config, train_quietly, write_photos

SIZE = Preprocess(image_size=16)


ONNX_RUNTIME = Runtime()
IN_OPENVINO = Runtime("openvino", "float32")


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos"), train=14, val=5)


@pytest.fixture(scope="module")
def start(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of zero epochs, whose weights are frozen."""
    run = tmp_path_factory.mktemp("start") / "run"
    train_quietly(small_config(photos, epochs=0, seed=5), run)
    return run


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of the features of ``start``, for all tests."""
    return str(tmp_path_factory.mktemp("kept"))


@pytest.fixture
def by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features without the second that it takes to export a graph for them."""
    monkeypatch.setattr(_FrozenBackbone, "_by_graph", _FrozenBackbone._by_torch)


def _frozen(
    network: Network, folder: Path, said: list[str] | None = None, runtime: Runtime = ONNX_RUNTIME
) -> _FrozenBackbone:
    compute = Compute(torch.device("cpu"), "fp32")
    say = print if said is None else said.append
    return _FrozenBackbone(network, SIZE, folder, compute, 0, say, runtime)


def _head_config(photos: Path, start: Path, **changes: Any) -> TrainConfig:
    return small_config(photos, weights=str(start), freeze="backbone", **changes)


def test_features_are_those_of_the_network_whichever_way_and_however_many_at_once(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(features, "PHOTOS_AT_ONCE", 4)
    network, split = build("tiny", 3, "linear"), open_dataset(str(photos)).split("train")
    by_graph = _frozen(network, tmp_path / "graph").features(split)
    in_openvino = _frozen(network, tmp_path / "openvino", runtime=IN_OPENVINO).features(split)
    monkeypatch.setattr(_FrozenBackbone, "_by_graph", _FrozenBackbone._by_torch)
    by_torch = _frozen(network, tmp_path / "torch").features(split)
    pictures = np.stack([load(split.read(row), SIZE) for row in range(len(split))])
    with torch.inference_mode():
        whole = PictureNetwork(network.backbone, SIZE.mean, SIZE.std)(torch.from_numpy(pictures))
    for result in (by_graph, in_openvino, by_torch):
        read = np.stack([result[row] for row in range(len(result))])
        np.testing.assert_allclose(read, whole, atol=1e-4)


def test_a_photo_is_computed_once_whatever_its_name_split_or_run(
    photos: Path, tmp_path: Path, by_torch: None
) -> None:
    lines: list[str] = []
    network, dataset = build("tiny", 3, "linear"), open_dataset(str(photos))
    frozen = _frozen(network, tmp_path / "kept", lines)
    split = dataset.split("train")
    first = frozen.features(split)
    assert "42 photos of train" in lines[0]
    twin = tmp_path / "twin"
    (twin / "train" / "other").mkdir(parents=True)
    (twin / "train" / "more").mkdir()
    source = photos / "train" / "blue"
    for index in (3, 4):
        os.link(source / f"{index}.png", twin / "train" / "other" / f"{9 - index}.png")
        os.link(source / f"{index}.png", twin / "train" / "more" / f"{index}.png")
    for name in ("new", "same"):
        os.link(photos / "val/red/0.png", twin / "train" / "more" / f"{name}.png")
    again = frozen.features(open_dataset(str(twin), splits=["train"]).split("train"))
    assert len(lines) == 2
    assert "features of 1 photo of train" in lines[1]
    number = {Path(name).name: row for row, name in enumerate(split.names) if "blue" in name}
    three, four = (first.rows[number[f"{index}.png"]] for index in (3, 4))
    # more/3, more/4, more/new, more/same, other/5, other/6
    assert again.rows.tolist() == [three, four, 42, 42, four, three]


@pytest.mark.parametrize("way", ["_by_graph", "_by_torch"])
def test_pictures_that_cannot_be_read_are_named_and_the_others_kept(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    monkeypatch.setattr(_FrozenBackbone, "_by_graph", getattr(_FrozenBackbone, way))
    broken = tmp_path / "photos"
    for path in (photos / "train").rglob("*.png"):
        copy = broken / path.relative_to(photos)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_bytes(str(path).encode() if path.name == "3.png" else path.read_bytes())
    split = open_dataset(str(broken), splits=["train"]).split("train")
    frozen = _frozen(build("tiny", 3, "linear"), tmp_path / "kept")
    with pytest.raises(DataError, match=r"(?s)3 pictures of train.*blue/3\.png.*red/3\.png"):
        frozen.features(split)
    assert len(OutputStore(tmp_path / "kept", {FEATURES: 320})) == 39
    with pytest.raises(DataError, match=r"(?s)3 pictures of train.*blue/3\.png.*red/3\.png"):
        frozen._fingerprints(split, [bytes([row]) for row in range(42)])  # damaged meanwhile


def test_a_full_disk_says_what_to_do_and_keeps_what_was_there(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = open_dataset(str(photos))
    frozen = _frozen(build("tiny", 3, "linear"), tmp_path / "kept")
    frozen.features(dataset.split("val"))
    stored = len(OutputStore(tmp_path / "kept", {FEATURES: 320}))

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(OutputStore, "add", full)
    with pytest.raises(BundleError, match=rf"No space left.*{stored} photos.*--features"):
        frozen.features(dataset.split("train"))
    assert len(OutputStore(tmp_path / "kept", {FEATURES: 320})) == stored


@pytest.mark.parametrize("head", ["linear", "two_head", "cosine"])
def test_a_head_on_scaled_features_joins_to_the_network_it_came_from(
    photos: Path, tmp_path: Path, head: str, by_torch: None
) -> None:
    torch.manual_seed(1)
    network = build("tiny", 3, head).eval()
    result = _frozen(network, tmp_path).features(open_dataset(str(photos)).split("train"))
    alone = HeadOnFeatures(network, result).eval()
    values = torch.from_numpy(result.values[result.rows])
    with torch.no_grad():
        outputs, expected = alone(values), network.head(values)
    for ours, theirs in zip(outputs, expected, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-5)
    for key, value in alone.joined(network).items():
        torch.testing.assert_close(value, network.state_dict()[key], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("loss", ["cross_entropy", "two_head_average_k", "ldam"])
def test_a_head_learns_and_its_backbone_stays(
    photos: Path, start: Path, kept: str, tmp_path: Path, loss: str
) -> None:
    config = _head_config(photos, start, loss={"name": loss}, epochs=6, features=kept)
    result = train_quietly(config, tmp_path / "run")
    assert result.accuracy is not None
    assert result.accuracy > 0.7
    before, after = (read_weights(run / "best.safetensors") for run in (start, tmp_path / "run"))
    for key in before:
        if key.startswith("backbone."):
            assert torch.equal(before[key], after[key])


def test_a_second_run_reuses_the_features_silently(
    photos: Path, start: Path, tmp_path: Path
) -> None:
    config = _head_config(photos, start)
    lines = lines_of(config, tmp_path / "one")
    assert sum(" computed in" in line for line in lines) == 2  # train and val
    assert (tmp_path / "features").is_dir()  # beside the run
    assert not any("computed" in line for line in lines_of(config, tmp_path / "two"))
    one, two = (read_weights(tmp_path / run / "best.safetensors") for run in ("one", "two"))
    assert all(torch.equal(one[key], two[key]) for key in one)


@pytest.mark.parametrize("stop", [3, 9])  # in the first epoch, and in the second
def test_a_stopped_head_resumes_to_the_same_bits(
    photos: Path, start: Path, kept: str, tmp_path: Path, stop: int
) -> None:
    config = _head_config(photos, start, epochs=3, features=kept)

    def interrupt(run: Run) -> None:
        run.stop.set()

    check_resuming(config, tmp_path, at=stop, act=interrupt, error=KeyboardInterrupt)
    networks = list(Path(kept).glob("tiny-*"))
    assert len(networks) == 1  # the resumed one is the same


def test_a_small_head_is_trained_with_one_thread_and_a_large_one_or_a_network_with_all(
    photos: Path, tmp_path: Path, by_torch: None
) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    network = build("tiny", 3, "linear")
    alone = HeadOnFeatures(
        network, _frozen(network, tmp_path).features(open_dataset(str(photos)).split("train"))
    )
    try:
        fits = features.SMALL_STEP // (3 * 321)  # pictures a batch, for 3 classes of 320 features
        for trained, batch_size, threads in (
            (alone, fits, 1),
            (alone, fits + 1, 2),
            (network, 2, 2),
        ):
            with threads_for(trained, batch_size):
                assert torch.get_num_threads() == threads
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_freezing_takes_the_recipe_made_for_it_unless_another_is_named(photos: Path) -> None:
    flags = {"data": str(photos), "backbone": "tiny", "weights": "file", "freeze": "backbone"}
    assert resolve(flags).recipe == "frozen"
    assert resolve({**flags, "recipe": "small-photos"}).recipe == "small-photos"
    assert resolve({"data": str(photos), "recipe": "frozen"}).freeze == "backbone"


def test_a_folder_that_cannot_be_created_is_refused_before_any_picture_is_computed(
    photos: Path, start: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("no folder")
    config = _head_config(photos, start, features=str(tmp_path / "file" / "kept"))
    with pytest.raises(UsageError, match="features"):
        train_quietly(config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_features_by_torch_are_float32_proper(photos: Path, tmp_path: Path, by_torch: None) -> None:
    record, convolutions = set[str](), torch.backends.cudnn.conv  # type: ignore[attr-defined]
    network = build("tiny", 3, "linear")
    network.backbone.register_forward_hook(lambda *_: record.add(convolutions.fp32_precision))
    before = convolutions.fp32_precision
    _frozen(network, tmp_path / "kept").features(open_dataset(str(photos)).split("val"))
    assert record == {"ieee"}
    assert convolutions.fp32_precision == before


def test_onnx_runtime_computes_what_openvino_cannot(
    photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("an operation\n is unknown")

    network, split = build("tiny", 3, "linear"), open_dataset(str(photos)).split("val")
    expected = _frozen(network, tmp_path / "graph").features(split)
    monkeypatch.setattr(features, "open_in_openvino", refuse)
    lines: list[str] = []
    result = _frozen(network, tmp_path / "openvino", lines, IN_OPENVINO).features(split)
    assert lines[0].endswith("OpenVINO cannot: an operation is unknown")
    for row in range(len(split)):
        np.testing.assert_array_equal(result[row], expected[row])


def _with_wrong_labels(folder: Path) -> Path:
    """Photos of three colours, of which seven are in the folder of another one."""
    write_photos(folder, train=24, val=5)
    for index, name in enumerate(("blue", "blue", "blue", "green", "green", "red", "red")):
        wrong = {"blue": "red", "green": "blue", "red": "green"}[name]
        source = folder / "train" / name / f"{index}.png"
        source.rename(folder / "train" / wrong / f"z{index}.png")
    return folder


@pytest.mark.parametrize("optimiser", ["lbfgs", "sgd"])
def test_a_run_that_skips_doubtful_photos_is_one_without_them(
    start: Path, tmp_path: Path, optimiser: str
) -> None:
    photos = _with_wrong_labels(tmp_path / "photos")
    settings = {"optimiser": {"name": optimiser}, "loss": {"name": "cross_entropy"}}
    config = _head_config(photos, start, skip_doubtful=True, **settings)
    lines = lines_of(config, tmp_path / "run")
    table = read_table(tmp_path / "run" / "doubtful.csv")
    doubtful = [str(name) for name in table["photo"]]
    assert len({*doubtful} & {str(path.relative_to(photos)) for path in photos.rglob("z*")}) >= 2
    assert [Path(name).parts[1] for name in doubtful] == [*table["label"]]
    assert any(f": {len(doubtful)} of 72 photos are left out" in line for line in lines)
    for name in doubtful:
        (photos / name).unlink()
    train_quietly(_head_config(photos, start, **settings), tmp_path / "without")
    files = [tmp_path / run / "best.safetensors" for run in ("run", "without")]
    torch.testing.assert_close(*(load_file(file) for file in files), rtol=0, atol=0)


def test_a_photo_that_people_have_decided_on_is_not_skipped(start: Path, tmp_path: Path) -> None:
    photos = _with_wrong_labels(tmp_path / "photos")
    settings = {"optimiser": {"name": "lbfgs"}, "loss": {"name": "cross_entropy"}}
    train_quietly(_head_config(photos, start, skip_doubtful=True, **settings), tmp_path / "run")
    first, *_, last = read_table(tmp_path / "run" / "doubtful.csv")["photo"]
    review = tmp_path / "review.csv"
    review.write_text(
        f"photo,label,answer,corrected,by,split\n{last},{Path(last).parts[1]},confirmed,,ann,train\n"
    )
    source = Path(f"{photos}:labels={review}")
    config = _head_config(source, start, skip_doubtful=True, **settings)
    train_quietly(config, tmp_path / "reviewed")
    doubtful = read_table(tmp_path / "reviewed" / "doubtful.csv")["photo"]
    assert first in doubtful
    assert last not in doubtful


def test_doubtful_photos_are_skipped_on_features_only() -> None:
    with pytest.raises(UsageError, match="skip_doubtful judges labels by kept features"):
        resolve({"data": "flora", "skip_doubtful": True})
