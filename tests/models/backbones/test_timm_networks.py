import json
import os
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from safetensors.torch import save_file
from torch import nn

from florilege.errors import BundleError
from florilege.models.backbones import Weights, architecture, build, open_weights, warm_start
from florilege.models.images import Preprocess
from tests.pretrained import efficientnet_lite0

SMALL = "test_efficientnet"  # timm's own for tests: 0.4 M parameters


def _pictures(side: int) -> torch.Tensor:
    return torch.randn(2, 3, side, side, generator=torch.Generator().manual_seed(0))


def _plain(name: str, folder: Path, **options: Any) -> nn.Module:
    """A timm network with random weights, and their file in ``folder``."""
    torch.manual_seed(1)
    network: nn.Module = timm.create_model(name, **options).eval()
    for key, value in network.state_dict().items():
        if key.endswith("running_mean"):
            value.normal_()
    save_file(network.state_dict(), folder / "w.safetensors")
    return network


@pytest.mark.parametrize(
    ("name", "features"),
    [
        ("tf_efficientnet_lite0", 1280),
        ("mobilenetv3_small_050.lamb_in1k", 1024),  # its `num_features` are 288, before a layer
        ("convnext_atto", 320),
        ("vit_tiny_patch16_224", 192),
        ("levit_128s", 384),
        ("resnetv2_50x1_bit", 2048),
    ],
)
def test_networks_of_timm_get_our_head(name: str, features: int) -> None:
    with torch.device("meta"):  # shapes without computation
        network = build(f"timm:{name}", 5, "two_head").eval()
        multi_label, sccp = network(torch.zeros(2, 3, 224, 224))
    assert multi_label.shape == sccp.shape == (2, 5)
    weight = network.head.get_submodule("multi_label").weight
    assert isinstance(weight, torch.Tensor)
    assert weight.shape == (5, features)
    assert not any(1000 in value.shape for value in network.state_dict().values())


def test_how_pictures_are_wanted_stands_in_timms_configuration() -> None:
    half = (0.5, 0.5, 0.5)
    expected = Preprocess(
        image_size=224, crop_fraction=0.875, resample="bicubic", mean=half, std=half
    )
    assert architecture("timm:tf_efficientnet_lite0").preprocess() == expected
    assert architecture("timm:tf_efficientnet_lite0").preprocess("some/file.pt") == expected
    assert architecture("timm:vit_small_patch14_dinov2").preprocess().image_size == 518
    assert architecture("timm:vgg11").preprocess().resample == "bilinear"


# Weights ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [SMALL, "test_vit", "test_convnext", "test_resnet"])
def test_weights_in_timms_names_are_taken_head_and_all(name: str, tmp_path: Path) -> None:
    plain = _plain(name, tmp_path, num_classes=4)
    loaded = build(f"timm:{name}", 4, "linear", str(tmp_path / "w.safetensors")).eval()
    assert torch.equal(loaded(_pictures(160)), plain(_pictures(160)))


def test_a_layer_called_module_keeps_its_name() -> None:
    with torch.device("meta"):
        state = timm.create_model("iformer_t").state_dict()
        network = build("timm:iformer_t", 3, "linear")
    assert any(".module." in key for key in state)
    note = warm_start(network, Weights(origin="it", state=state, classes=None))
    assert note.startswith("it: the backbone is loaded")


def test_real_weights_fit_with_a_head_of_their_own() -> None:
    file = efficientnet_lite0()
    plain = timm.create_model("tf_efficientnet_lite0", checkpoint_path=file).eval()
    loaded = build("timm:tf_efficientnet_lite0", 1000, "linear", str(file)).eval()
    assert torch.equal(loaded(_pictures(224)), plain(_pictures(224)))


def test_the_weights_of_a_distilled_transformer_are_taken_without_its_two_last_layers(
    tmp_path: Path,
) -> None:
    name = "deit_tiny_distilled_patch16_224"
    plain = _plain(name, tmp_path)
    torch.manual_seed(0)
    loaded = build(f"timm:{name}", 1000, "linear", str(tmp_path / "w.safetensors")).state_dict()
    torch.manual_seed(0)
    fresh = build(f"timm:{name}", 1000, "linear").state_dict()
    state = plain.state_dict()
    assert torch.equal(loaded["head.weight"], fresh["head.weight"])
    assert torch.equal(loaded["backbone.dist_token"], state["dist_token"])


@pytest.mark.parametrize("name", ["test_vit", "swin_tiny_patch4_window7_224"])
def test_what_belongs_to_the_picture_size_is_stretched_as_timm_does(
    name: str, tmp_path: Path
) -> None:
    own = 160 if name == "test_vit" else 224
    plain = _plain(name, tmp_path, num_classes=3)
    state = plain.state_dict()
    loaded = build(f"timm:{name}", 3, "linear", str(tmp_path / "w.safetensors"), image_size=2 * own)
    expected = timm.create_model(
        name,
        num_classes=3,
        img_size=2 * own,
        pretrained=True,
        pretrained_cfg_overlay={"state_dict": state, "num_classes": 3},
    )
    result = loaded.state_dict()
    for key, value in expected.state_dict().items():
        last = key.startswith("head.")
        ours = f"head.{key.rpartition('.')[2]}" if last else f"backbone.{key}"
        assert torch.equal(result[ours], value), key


def test_weights_of_another_network_of_timm_are_refused_with_their_names(tmp_path: Path) -> None:
    _plain("test_vit", tmp_path)
    file = str(tmp_path / "w.safetensors")
    with pytest.raises(BundleError, match="architecture"):
        build(f"timm:{SMALL}", 4, "linear", file)
    with pytest.raises(BundleError, match="architecture"):
        build("timm:swin_tiny_patch4_window7_224", 4, "linear", file)


# Folders and repositories -------------------------------------------------------------------


def _folder(path: Path, **settings: Any) -> Path:
    path.mkdir()
    _plain(SMALL, path, num_classes=3)
    (path / "w.safetensors").rename(path / "model.safetensors")
    settings = {"mean": [0.1, 0.2, 0.3], "input_size": [3, 96, 96], "license": "mit", **settings}
    config = {"architecture": SMALL, "num_classes": 3, "pretrained_cfg": settings}
    (path / "config.json").write_text(json.dumps(config))
    return path


def test_a_folder_of_timms_is_a_network_with_weights_and_settings(tmp_path: Path) -> None:
    name = f"timm:local-dir:{_folder(tmp_path / 'model')}"
    preprocess = architecture(name).preprocess()
    assert (preprocess.image_size, preprocess.mean) == (96, (0.1, 0.2, 0.3))
    weights = open_weights("pretrained", name)
    assert weights.provenance is not None
    assert weights.provenance.file == "model.safetensors"
    assert weights.provenance.licence == "mit"
    loaded = build(name, 3, "linear", "pretrained").eval()
    plain = timm.create_model(name.removeprefix("timm:"), pretrained=True).eval()
    assert torch.equal(loaded(_pictures(96)), plain(_pictures(96)))
    (tmp_path / "model/model.safetensors").unlink()
    with pytest.raises(BundleError, match="pytorch_model"):
        build(name, 3, "linear", "pretrained")


def test_another_network_saved_to_the_same_folder_is_read_anew(tmp_path: Path) -> None:
    name = f"timm:local-dir:{_folder(tmp_path / 'model')}"
    assert architecture(name).preprocess().image_size == 96
    file = tmp_path / "model/config.json"
    before = file.stat().st_mtime_ns
    file.write_text(file.read_text().replace("96", "64"))
    os.utime(file, ns=(before + 1, before + 1))
    assert architecture(name).preprocess().image_size == 64


@pytest.mark.parametrize("content", [None, "no json", "{}", '{"architecture": "no_such"}'])
def test_a_folder_without_a_network_says_what_is_needed(
    tmp_path: Path, content: str | None
) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    with pytest.raises(ValueError, match="network"):
        build(f"timm:local-dir:{tmp_path}", 3, "linear")


def test_a_repository_out_of_reach_says_what_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_args: object, **_kwargs: object) -> None:
        raise FileNotFoundError("cannot find the files. Please check")

    monkeypatch.setattr("timm.create_model", offline)
    message = r"Download config\.json and .* of https://huggingface\.co/some/model .*local-dir:FOLD"
    with pytest.raises(BundleError, match=message):
        build("timm:hf-hub:some/model", 3, "linear")


def test_networks_of_timm_tell_whether_they_have_normalisation_layers() -> None:
    names = ("vgg11_bn", "vit_tiny_patch16_224", "vgg11", "dm_nfnet_f0")
    assert [architecture(f"timm:{name}").normalises for name in names] == [True, True, False, False]
