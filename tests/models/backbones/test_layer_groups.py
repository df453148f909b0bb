"""Where a backbone is cut into blocks, and what training only the last of them leaves alone."""

import pytest
import torch
from torch import nn

from florilege.models.backbones import build
from florilege.models.backbones.layer_groups import block_of, blocks


@pytest.mark.parametrize(
    ("name", "count", "first", "last"),
    [
        ("tiny", 5, ["layers.0"], ["layers.4"]),
        ("densenet40_40", 6, ["features.conv0"], ["features.denseblock3", "features.norm5"]),
        ("resnet18", 9, ["conv1", "bn1"], ["layer4.1"]),
        ("resnet50", 17, ["conv1", "bn1"], ["layer4.2"]),
        ("convnext_tiny", 22, ["features.0"], ["features.7.2", "classifier"]),
        ("efficientnet_b0", 18, ["features.0"], ["features.8"]),
        ("densenet121", 8, ["features.conv0", "features.norm0"],
         ["features.denseblock4", "features.norm5"]),
        ("swin_t", 16, ["features.0"], ["features.7.1", "norm"]),
        ("vit_b_16", 13, ["conv_proj"], ["encoder.layers.encoder_layer_11", "encoder.ln"]),
        ("vgg11_bn", 10, ["features.0", "features.1"], ["classifier.3"]),
    ],
)  # fmt: skip
def test_a_block_is_a_residual_block_or_a_transformer_layer(
    name: str, count: int, first: list[str], last: list[str]
) -> None:
    with torch.device("meta"):
        backbone = build(name, 3, "linear").backbone
    found = blocks(backbone)
    assert (len(found), found[0], found[-1]) == (count, first, last)


@pytest.mark.parametrize("name", ["tiny", "resnet18", "vit_b_16", "swin_t", "maxvit_t"])
def test_every_weight_is_in_one_block_and_blocks_rise_with_the_network(name: str) -> None:
    with torch.device("meta"):
        backbone = build(name, 3, "linear", image_size=224).backbone
    found = block_of(backbone)
    assert found.keys() == {name for name, _ in backbone.named_parameters()}
    assert set(found.values()) == set(range(len(blocks(backbone))))
    inside = [number for name, number in found.items() if name not in ("class_token",)]
    assert [number for number in inside if number] == sorted(number for number in inside if number)


def test_embeddings_of_a_transformer_are_in_its_first_block() -> None:
    with torch.device("meta"):
        found = block_of(build("vit_b_16", 3, "linear").backbone)
    assert found["class_token"] == found["encoder.pos_embedding"] == found["conv_proj.weight"] == 0
    assert found["encoder.layers.encoder_layer_0.ln_1.weight"] == 1


@pytest.mark.parametrize(
    ("name", "last"),
    [
        ("resnet18", ["layer4.1"]),
        ("vit_tiny_patch16_224", ["blocks.11", "norm"]),
        ("convnext_atto", ["stages.3.blocks.1", "head"]),
        ("tf_efficientnet_lite0", ["conv_head", "bn2"]),
    ],
)
def test_networks_of_timm_are_cut_alike(name: str, last: list[str]) -> None:
    timm = pytest.importorskip("timm")
    with torch.device("meta"):
        assert blocks(timm.create_model(name, num_classes=0))[-1] == last


def test_only_the_last_blocks_and_the_head_learn_and_no_gradient_goes_further() -> None:
    torch.manual_seed(0)
    network = build("tiny", 3, "linear")
    network.train_only(2)
    network.train()
    reached: list[bool] = []
    layers = network.backbone.layers
    assert isinstance(layers, nn.Sequential)
    layers[2].register_forward_hook(lambda *found: reached.append(found[2].requires_grad))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    optimiser = torch.optim.SGD(network.parameters(), lr=0.1)
    network(torch.randn(4, 3, 16, 16)).sum().backward()
    optimiser.step()
    assert reached == [False]
    moved = {key for key, value in network.state_dict().items() if not before[key].equal(value)}
    places = {key.split(".")[2] if key.startswith("backbone.") else "head" for key in moved}
    assert places == {"3", "4", "head"}
    assert "backbone.layers.3.1.running_mean" in moved


def test_no_block_at_all_is_the_head_alone() -> None:
    network = build("tiny", 3, "linear")
    network.train_only(0)
    learns = [name for name, parameter in network.named_parameters() if parameter.requires_grad]
    assert learns == ["head.weight", "head.bias"]
    assert not any(
        module.training
        for module in network.train().backbone.modules()
        if isinstance(module, nn.BatchNorm2d)
    )


def test_more_blocks_than_there_are_are_refused() -> None:
    with pytest.raises(ValueError, match=r"must be in \[0, 5\], the blocks of the network, got 6"):
        build("tiny", 3, "linear").train_only(6)
