from pathlib import Path
from urllib.error import URLError

import pytest
import torch
import torchvision
from safetensors.torch import save_file
from torch import nn

from models.backbones import available, build
from models.errors import BundleError
from models.heads import HEADS
from models.weights import load_into, read_weights


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(("name", "size"), [("tiny", 48), ("tiny", 33), ("resnet18_small", 16)])
def test_our_networks_give_one_row_of_logits_a_picture(name: str, size: int, head: str) -> None:
    with torch.device("meta"):
        network = build(name, 7, head).eval()
        outputs = network(torch.zeros(2, 3, size, size))
    for logits in outputs if isinstance(outputs, tuple) else (outputs,):
        assert logits.shape == (2, 7)
    assert isinstance(outputs, tuple) == (head == "two_head")


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("resnet18", 32),
        ("densenet121", 32),
        ("mobilenet_v3_small", 32),
        ("efficientnet_b0", 32),
        ("shufflenet_v2_x0_5", 32),
        ("swin_t", 32),
    ],
)
def test_torchvision_networks_get_our_head(name: str, size: int) -> None:
    with torch.device("meta"):  # shapes without the work
        network = build(name, 5, "two_head").eval()
        multi_label, sccp = network(torch.zeros(1, 3, size, size))
    assert multi_label.shape == sccp.shape == (1, 5)
    assert not any(
        isinstance(layer, nn.Linear) and layer.out_features == 1000 for layer in network.modules()
    )


def test_a_vision_transformer_is_built_for_the_picture_size() -> None:
    with torch.device("meta"):
        network = build("vit_b_16", 5, "linear", image_size=64)
    state = network.state_dict()
    assert state["backbone.encoder.pos_embedding"].shape == (1, 1 + (64 // 16) ** 2, 768)


def test_every_network_of_torchvision_on_offer_ends_in_a_linear_layer() -> None:
    names = available()
    assert {"tiny", "resnet18", "vit_b_16", "convnext_tiny"} <= set(names)
    assert not {"googlenet", "inception_v3", "squeezenet1_0"} & set(names)


def test_the_papers_densenet_has_depth_40_and_growth_40() -> None:
    with torch.device("meta"):
        network = build("densenet40_40", 100, "linear")
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) + 1 == 40  # and the last linear layer
    assert network.head.in_features == 16 + 36 * 40


def test_the_small_resnet_keeps_small_pictures_large() -> None:
    shapes: list[torch.Size] = []
    with torch.device("meta"):
        network = build("resnet18_small", 4, "linear").eval()
        layer = network.backbone.get_submodule("layer1")
        layer.register_forward_hook(lambda _m, _i, output: shapes.append(output.shape))
        network(torch.zeros(1, 3, 32, 32))
    assert shapes == [(1, 64, 32, 32)]


def test_the_same_random_state_gives_the_same_network() -> None:
    torch.manual_seed(3)
    first = build("tiny", 4, "linear").state_dict()
    torch.manual_seed(3)
    second = build("tiny", 4, "linear").state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


def test_an_unknown_backbone_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"densenet40_40.*got 'resnet19'"):
        build("resnet19", 4, "linear")


# Weights ------------------------------------------------------------------------------------


def test_weights_of_a_safetensors_file_are_taken_head_and_all(tmp_path: Path) -> None:
    source = build("tiny", 4, "two_head")
    save_file(source.state_dict(), tmp_path / "w.safetensors")
    loaded = build("tiny", 4, "two_head", str(tmp_path / "w.safetensors"))
    for key, value in source.state_dict().items():
        assert torch.equal(loaded.state_dict()[key], value), key


@pytest.mark.parametrize(("classes", "head"), [(9, "two_head"), (4, "linear"), (4, "cosine")])
def test_a_last_layer_for_other_classes_is_skipped(tmp_path: Path, classes: int, head: str) -> None:
    source = build("tiny", 4, "two_head")
    torch.save(source.state_dict(), tmp_path / "w.pt")
    torch.manual_seed(0)
    loaded = build("tiny", classes, head, str(tmp_path / "w.pt")).state_dict()
    torch.manual_seed(0)
    fresh = build("tiny", classes, head).state_dict()
    for key, value in loaded.items():
        expected = source.state_dict() if key.startswith("backbone.") else fresh
        assert torch.equal(value, expected[key]), key


def test_weights_of_the_plain_torchvision_network_are_taken(tmp_path: Path) -> None:
    plain = torchvision.models.resnet18(weights=None)
    torch.save({"state_dict": plain.state_dict(), "epoch": 3}, tmp_path / "w.pt")
    loaded = build("resnet18", 4, "linear", str(tmp_path / "w.pt"))
    assert torch.equal(loaded.state_dict()["backbone.conv1.weight"], plain.conv1.weight)


def test_weights_of_another_architecture_are_refused_with_their_names(tmp_path: Path) -> None:
    torch.save(build("tiny", 4, "linear").state_dict(), tmp_path / "w.pt")
    with pytest.raises(BundleError, match=r"w\.pt belongs to another architecture.*is missing"):
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
        load_into(build("tiny", 5, "linear"), state, origin="it", head_must_fit=True)


def test_a_missing_file_of_weights_is_named(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match=r"cannot read weights from .*no\.pt: No such file"):
        build("tiny", 4, "linear", str(tmp_path / "no.pt"))


@pytest.mark.parametrize("name", ["w.pt", "w.safetensors"])
@pytest.mark.parametrize("content", [b"", b"no weights at all", b"PK\x03\x04 broken"])
def test_a_damaged_file_of_weights_is_refused(tmp_path: Path, name: str, content: bytes) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(BundleError, match="no file of weights, is damaged"):
        read_weights(tmp_path / name)


def test_a_pickle_that_runs_code_is_refused_and_not_run(tmp_path: Path) -> None:
    class Malicious:
        def __reduce__(self) -> tuple[object, ...]:
            return Path.touch, (tmp_path / "ran",)

    torch.save({"network": Malicious()}, tmp_path / "w.pt")
    with pytest.raises(BundleError, match="no file of weights"):
        read_weights(tmp_path / "w.pt")
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("content", [[1, 2], {"epoch": 3}])
def test_a_file_without_tensors_is_refused(tmp_path: Path, content: object) -> None:
    torch.save(content, tmp_path / "w.pt")
    with pytest.raises(BundleError, match="holds no"):
        read_weights(tmp_path / "w.pt")


def test_imagenet_weights_without_a_network_say_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def offline(*_args: object, **_kwargs: object) -> None:
        raise URLError("Name or service not known")

    monkeypatch.setenv("TORCH_HOME", str(tmp_path))
    monkeypatch.setattr("torch.hub.download_url_to_file", offline)
    with pytest.raises(BundleError, match=r"could not be downloaded.*Download https://.*name the"):
        build("mobilenet_v3_small", 4, "linear", "imagenet")


def test_imagenet_weights_fit_under_our_names(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    plain = torchvision.models.mobilenet_v3_small(weights=None)
    monkeypatch.setattr(
        torchvision.models.MobileNet_V3_Small_Weights,
        "get_state_dict",
        lambda *_args, **_kwargs: plain.state_dict(),
    )
    loaded = build("mobilenet_v3_small", 4, "linear", "imagenet").state_dict()
    for key, value in plain.state_dict().items():
        if not key.startswith("classifier.3."):
            assert torch.equal(loaded[f"backbone.{key}"], value), key


def test_our_networks_have_no_imagenet_weights() -> None:
    with pytest.raises(BundleError, match="no ImageNet weights for tiny"):
        build("tiny", 4, "linear", "imagenet")
