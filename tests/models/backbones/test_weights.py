from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import Tensor

from florilege.errors import BundleError, first
from florilege.models.backbones import (
    Weights,
    build,
    load_into,
    open_weights,
    read_weights,
    warm_start,
)
from florilege.models.classes import ClassInfo, ClassTable


def test_weights_of_a_safetensors_file_are_taken_head_and_all(tmp_path: Path) -> None:
    source = build("tiny", 4, "two_head")
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    loaded = build("tiny", 4, "two_head", str(tmp_path / "w.safetensors"))
    for key, value in source.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key


@pytest.mark.parametrize(("classes", "head"), [(9, "two_head"), (4, "linear"), (4, "cosine")])
def test_a_last_layer_of_another_size_or_kind_starts_fresh(
    tmp_path: Path, classes: int, head: str
) -> None:
    source = build("tiny", 4, "two_head")
    torch.save(source.state_dict(), tmp_path / "w.pt")
    torch.manual_seed(0)
    loaded = build("tiny", classes, head, str(tmp_path / "w.pt")).state_dict()
    torch.manual_seed(0)
    fresh = build("tiny", classes, head).state_dict()
    for key, value in loaded.items():
        expected = source.state_dict() if key.startswith("backbone.") else fresh
        assert torch.equal(value, expected[key]), key


@pytest.mark.parametrize("holder", ["state_dict", "model_state_dict", "model"])
def test_weights_of_the_plain_torchvision_network_are_taken_head_and_all(
    tmp_path: Path, holder: str
) -> None:
    plain = torchvision.models.shufflenet_v2_x0_5(weights=None, num_classes=4)
    torch.save({holder: plain.state_dict(), "epoch": 3}, tmp_path / "w.pt")
    loaded = build("shufflenet_v2_x0_5", 4, "linear", str(tmp_path / "w.pt")).eval()
    pictures = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    assert torch.equal(loaded(pictures), plain.eval()(pictures))


def test_googlenet_sees_pictures_as_its_own_weights_want_them(tmp_path: Path) -> None:
    plain = torchvision.models.googlenet(
        weights=None, num_classes=4, init_weights=True, transform_input=True
    )  # as torchvision builds it for its weights
    torch.save(plain.state_dict(), tmp_path / "w.pt")
    loaded = build("googlenet", 4, "linear", str(tmp_path / "w.pt"))
    pictures = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    loaded.train()(pictures)  # means that its normalisation can work with
    plain.load_state_dict(
        {key.partition(".")[2]: value for key, value in loaded.state_dict().items()}, strict=False
    )
    assert torch.equal(loaded.eval()(pictures), plain.eval()(pictures))


def test_weights_of_another_architecture_are_refused_with_their_names(tmp_path: Path) -> None:
    torch.save(build("tiny", 4, "linear").state_dict(), tmp_path / "w.pt")
    with pytest.raises(BundleError, match="architecture"):
        build("resnet18", 4, "linear", str(tmp_path / "w.pt"))


def test_a_weight_of_another_shape_is_named(tmp_path: Path) -> None:
    state = build("tiny", 4, "linear").state_dict()
    key = next(iter(state))
    state[key] = state[key][:1]
    torch.save(state, tmp_path / "w.pt")
    with pytest.raises(BundleError, match=rf"1 weights differ: {key} is \(1, .*instead of"):
        build("tiny", 4, "linear", str(tmp_path / "w.pt"))


def test_a_head_that_must_fit_is_not_skipped() -> None:
    state = build("tiny", 4, "linear").state_dict()
    with pytest.raises(BundleError, match=r"head\.weight is \(4, \d+\) instead of \(5, \d+\)"):
        load_into(build("tiny", 5, "linear"), state, origin="it")


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"no weights at all", b"PK\x03\x04 broken", None])
def test_a_damaged_or_missing_file_of_weights_is_refused(
    tmp_path: Path, name: str, content: bytes | None
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(BundleError, match="weights"):
        open_weights(str(tmp_path / name), "tiny")


def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"network": Malicious()}, tmp_path / "w.pt")
    with pytest.raises(BundleError, match="weights"):
        read_weights(tmp_path / "w.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}])
def test_a_file_without_tensors_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(BundleError, match="holds no"):
        read_weights(tmp_path / "w.pt")


def test_pretrained_weights_fit_under_our_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = torchvision.models.mobilenet_v3_small(weights=None)
    url = torchvision.models.MobileNet_V3_Small_Weights.DEFAULT.url
    monkeypatch.setattr("torch.hub.get_dir", lambda: str(tmp_path))
    (tmp_path / "checkpoints").mkdir()
    torch.save(plain.state_dict(), tmp_path / "checkpoints" / url.rpartition("/")[2])
    loaded = build("mobilenet_v3_small", 4, "linear", "pretrained").state_dict()
    for key, value in plain.state_dict().items():
        if not key.startswith("classifier.3."):
            assert torch.equal(loaded[f"backbone.{key}"], value), key


def test_our_networks_have_no_pretrained_weights() -> None:
    with pytest.raises(BundleError, match="pretrained"):
        build("tiny", 4, "linear", "pretrained")


# Files of other programs --------------------------------------------------------------------


def _loaded(name: str, state: dict[str, Tensor], folder: Path, **options: Any) -> dict[str, Tensor]:
    torch.save(state, folder / "w.pt")
    network: dict[str, Tensor] = build(
        name, 3, "linear", str(folder / "w.pt"), **options
    ).state_dict()
    return network


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod."])
def test_the_wrappers_of_several_processes_and_of_compiling_are_taken_off(
    tmp_path: Path, prefix: str
) -> None:
    state = build("tiny", 3, "linear").state_dict()
    network = _loaded("tiny", {prefix + key: value for key, value in state.items()}, tmp_path)
    assert all(torch.equal(network[key], value) for key, value in state.items())


def test_a_file_without_counters_of_batch_norm_is_taken(tmp_path: Path) -> None:
    state = build("tiny", 3, "linear").state_dict()
    old = {key: value + 1 for key, value in state.items() if "num_batches_tracked" not in key}
    network = _loaded("tiny", old, tmp_path)
    assert all(torch.equal(network[key], value) for key, value in old.items())
    assert network["backbone.layers.0.1.num_batches_tracked"] == 0


@pytest.mark.parametrize(
    ("name", "new", "old"),
    [
        ("densenet121", "denselayer1.norm1.", "denselayer1.norm.1."),
        ("densenet121", "denselayer16.conv2.", "denselayer16.conv.2."),
        ("vit_b_32", ".mlp.0.", ".mlp.linear_1."),
        ("vit_b_32", ".mlp.3.", ".mlp.linear_2."),
    ],
)
def test_the_names_of_torchvisions_older_files_are_known(name: str, new: str, old: str) -> None:
    with torch.device("meta"):
        plain = torchvision.models.get_model(name, weights=None).state_dict()
        network = build(name, 3, "linear")
    state = {key.replace(new, old): value for key, value in plain.items()}
    assert state.keys() != plain.keys()
    note = warm_start(network, Weights(origin="it", state=state, classes=None))
    assert note.startswith("it: the backbone is loaded")


@pytest.mark.parametrize(
    ("name", "extra", "options"),
    [
        ("googlenet", "aux1.", {"init_weights": False}),
        ("inception_v3", "AuxLogits.", {"init_weights": False}),
        ("squeezenet1_1", "classifier.1.", {}),  # a convolution, then a mean
    ],
)
def test_what_our_networks_do_without_is_left_out(
    name: str, extra: str, options: dict[str, bool]
) -> None:
    with torch.device("meta"):
        state = torchvision.models.get_model(name, weights=None, **options).state_dict()
        assert any(key.startswith(extra) for key in state)
        network = build(name, 1000, "linear")
        note = warm_start(network, Weights(origin="it", state=state, classes=None))
    assert ("starts from scratch" in note) == (name == "squeezenet1_1")


@pytest.mark.parametrize(("size", "places"), [(64, 4), (128, 16)])
def test_position_embeddings_are_stretched_to_the_picture_size(size: int, places: int) -> None:
    with torch.device("meta"):
        state = build("vit_b_32", 3, "linear", image_size=96).state_dict()
        network = build("vit_b_32", 3, "linear", image_size=size)
    key = "backbone.encoder.pos_embedding"
    across = torch.arange(3.0).repeat(3)  # rises from left to right over 3 x 3 patches
    state[key] = torch.cat([torch.full((1,), 7.0), across])[None, :, None].expand(1, 10, 768)
    transformer = network.get_submodule("backbone.encoder")
    transformer.pos_embedding = torch.nn.Parameter(torch.zeros(1, 1 + places, 768))  # not meta
    warm_start(network, Weights(origin="it", state=state, classes=None))
    row = network.state_dict()[key][0, :, 5]
    side = int(places**0.5)
    assert row[0] == 7.0  # of the class token
    for line in row[1:].view(side, side):
        assert line[[0, -1]].tolist() == pytest.approx([0.0, 2.0])
        assert (line.diff() > 0).all()


def test_position_embeddings_of_no_square_are_refused() -> None:
    with torch.device("meta"):
        network = build("vit_b_32", 3, "linear", image_size=64)
        state = network.state_dict()
        state["backbone.encoder.pos_embedding"] = torch.zeros(1, 8, 768)
    with pytest.raises(BundleError, match=r"pos_embedding is \(1, 8, 768\) instead of \(1, 5"):
        warm_start(network, Weights(origin="it", state=state, classes=None))


def test_mnasnet_needs_no_metadata_of_its_state_dict(tmp_path: Path) -> None:
    state = build("mnasnet0_5", 3, "linear").state_dict()
    save_file(state, tmp_path / "w.safetensors")
    network = build("mnasnet0_5", 3, "linear")
    load_into(network, read_weights(tmp_path / "w.safetensors"), origin="it")
    assert all(torch.equal(network.state_dict()[key], value) for key, value in state.items())


@pytest.mark.parametrize("name", ["best.safetensors", "weights.safetensors"])
def test_of_a_run_or_bundle_folder_the_weights_inside_are_taken(tmp_path: Path, name: str) -> None:
    message = "holds no best.safetensors and no weights.safetensors: name a weights file"
    with pytest.raises(BundleError, match=message):
        build("tiny", 3, "linear", str(tmp_path))
    save_file(build("tiny", 3, "linear").state_dict(), tmp_path / name)
    assert open_weights(str(tmp_path), "tiny").origin == str(tmp_path / name)
    save_file(build("tiny", 3, "linear").state_dict(), tmp_path / "best.safetensors")
    assert open_weights(str(tmp_path), "tiny").origin == str(tmp_path / "best.safetensors")


# Classes ------------------------------------------------------------------------------------


def _network(head: str, classes: int, seed: int) -> Any:
    torch.manual_seed(seed)
    return build("tiny", classes, head)


@pytest.mark.parametrize("head", ["linear", "cosine", "two_head"])
def test_rows_of_the_last_layer_go_by_class_id(head: str) -> None:
    source, network = _network(head, 3, seed=1), _network(head, 4, seed=2)
    fresh = {key: value.clone() for key, value in network.state_dict().items()}
    weights = Weights(origin="it", state=source.state_dict(), classes=["oak", "elm", "yew"])
    note = warm_start(network, weights, ["ash", "yew", "oak", "fir"])
    assert note == (
        "it: the backbone is loaded, and the last layer for 2 of 4 classes; the others start from "
        "scratch: 'ash', 'fir'; classes you do not have are left out: 'elm'"
    )
    for key, value in network.head.state_dict().items():
        if value.ndim:
            rows = source.head.state_dict()[key]
            expected = [fresh[f"head.{key}"][0], rows[2], rows[0], fresh[f"head.{key}"][3]]
            assert torch.equal(value, torch.stack(expected))


OWN, OLD, NEW = ["oak", "elm"], [f"old{n}" for n in range(11)], [f"new{n}" for n in range(12)]


@pytest.mark.parametrize(
    ("rows", "theirs", "ours", "note"),
    [
        (2, OWN, OWN, "and the last layer for 2 of 2 classes"),
        (2, None, OWN, "and the last layer row by row: no classes.json beside it names its 2 "
         "classes, so they are assumed to be yours in the same order"),
        (3, None, OWN, "the last layer starts from scratch: the file does not name its 3 classes"),
        (2, OLD[:2], OWN, "and the last layer for 0 of 2 classes; the others start from scratch: "
         "'oak', 'elm'; classes you do not have are left out: 'old0', 'old1'"),
        (11, OLD, NEW, "and the last layer for 0 of 12 classes; the others start from scratch: "
         f"{first(NEW, 10)}; classes you do not have are left out: {first(OLD, 10)}"),
    ],
)  # fmt: skip
def test_rows_are_taken_by_class_or_in_order_or_not_at_all_as_the_note_says(
    rows: int, theirs: list[str] | None, ours: list[str], note: str
) -> None:
    source, network = _network("linear", rows, seed=1), _network("linear", len(ours), seed=2)
    fresh = {key: value.clone() for key, value in network.head.state_dict().items()}
    weights = Weights(origin="it", state=source.state_dict(), classes=theirs)
    assert warm_start(network, weights, ours) == f"it: the backbone is loaded, {note}"
    complete = rows == 2 and theirs != OLD[:2]
    for key, value in (source.head.state_dict() if complete else fresh).items():
        assert torch.equal(network.head.state_dict()[key], value), key


def test_a_last_layer_of_another_kind_is_said_to_start_fresh() -> None:
    source, network = _network("linear", 2, seed=1), _network("two_head", 2, seed=2)
    note = warm_start(network, Weights(origin="it", state=source.state_dict(), classes=OWN), OWN)
    assert note.endswith("the last layer starts from scratch: the file has none of this kind")


def test_the_classes_beside_a_file_are_those_of_its_rows(tmp_path: Path) -> None:
    save_file(build("tiny", 2, "linear").state_dict(), tmp_path / "w.safetensors")
    assert open_weights(str(tmp_path / "w.safetensors"), "tiny").classes is None
    (tmp_path / "classes.json").write_text("no list of classes")
    assert open_weights(str(tmp_path / "w.safetensors"), "tiny").classes is None
    table = ClassTable(tuple(ClassInfo(id=name, scientific_name=name) for name in ("oak", "elm")))
    (tmp_path / "classes.json").write_text(table.to_json())
    assert open_weights(str(tmp_path / "w.safetensors"), "tiny").classes == ("oak", "elm")
