"""The blocks of a backbone, and the modules that partial training leaves unchanged."""

import re

import pytest
import torch
from torch import nn

from florilege.models.backbones import Network, _block_of, available, build

FAMILIES = [  # smallest network of each of our and torchvision's families: blocks, the last one
    ("tiny", 5, "layers.4"),
    ("tiny_patches", 4, "layers.3"),
    ("densenet40_40", 21, "features.denseblock3.denselayer6"),
    ("resnet18_small", 9, "layer4.1"),
    ("alexnet", 7, "classifier.4"),
    ("convnext_tiny", 22, "features.7.2"),
    ("densenet121", 62, "features.denseblock4.denselayer16"),
    ("efficientnet_b0", 18, "features.8"),
    ("efficientnet_v2_s", 42, "features.7"),
    ("googlenet", 12, "inception5b"),
    ("inception_v3", 16, "Mixed_7c"),
    ("maxvit_t", 36, "classifier"),
    ("mnasnet0_5", 20, "layers.14"),
    ("mobilenet_v2", 19, "features.18"),
    ("mobilenet_v3_small", 14, "classifier"),
    ("regnet_y_400mf", 17, "trunk_output.block4.block4-5"),
    ("resnet50", 17, "layer4.2"),
    ("resnext50_32x4d", 17, "layer4.2"),
    ("shufflenet_v2_x0_5", 18, "conv5"),
    ("squeezenet1_1", 9, "features.12"),
    ("swin_t", 16, "features.7.1"),
    ("swin_v2_t", 16, "features.7.1"),
    ("vgg11_bn", 10, "classifier.3"),
    ("vit_b_16", 13, "encoder.layers.encoder_layer_11"),
    ("wide_resnet50_2", 17, "layer4.2"),
]
OF_TIMM = [  # blocks, the last one
    ("regnety_032", 22, "s4.b1"),
    ("swin_tiny_patch4_window7_224", 13, "layers.3.blocks.1"),
    ("tf_efficientnet_lite0", 17, "blocks.6.0"),
    ("vit_tiny_patch16_224", 13, "blocks.11"),
    ("convnext_atto", 13, "stages.3.blocks.1"),
    ("densenet121", 59, "features.denseblock4.denselayer16"),
    ("resnet18", 9, "layer4.1"),
    ("mobilenetv3_small_050", 14, "conv_head"),
    ("caformer_s18", 22, "stages.3.blocks.2"),  # declares no groups
]


def _network(name: str) -> Network:
    if "regnet_" in name:  # cannot be built without memory
        return build(name, 3, "linear")
    with torch.device("meta"):
        return build(name, 3, "linear", image_size=224)


def _backbone(name: str) -> nn.Module:
    return _network(name).backbone


@pytest.mark.parametrize(
    ("name", "count", "last"),
    [*FAMILIES, *((f"timm:{name}", count, last) for name, count, last in OF_TIMM)],
)
def test_a_block_is_a_residual_block_or_a_transformer_layer(
    name: str, count: int, last: str
) -> None:
    backbone = _backbone(name)
    numbers = _block_of(backbone)
    assert numbers.keys() == {name for name, _ in backbone.named_parameters()}
    assert set(numbers.values()) == set(range(count))
    inside = {number for name, number in numbers.items() if name.startswith(f"{last}.")}
    assert inside == {count - 1}


def test_every_family_on_offer_is_in_the_table() -> None:
    assert available() == sorted(set(available()))
    assert {re.split("[0-9_]", name)[0] for name in available()} == {
        re.split("[0-9_]", name)[0] for name, *_ in FAMILIES
    }


def test_blocks_rise_with_the_network() -> None:
    for name in ("tiny", "resnet18", "swin_t", "maxvit_t", "densenet121"):
        numbers = list(_block_of(_backbone(name)).values())
        assert numbers == sorted(numbers)


def test_embeddings_of_a_transformer_are_in_its_first_block() -> None:
    numbers = _block_of(_backbone("vit_b_16"))
    assert (
        numbers["class_token"]
        == numbers["encoder.pos_embedding"]
        == numbers["conv_proj.weight"]
        == 0
    )
    assert numbers["encoder.layers.encoder_layer_0.ln_1.weight"] == 1
    assert numbers["encoder.ln.weight"] == numbers["encoder.layers.encoder_layer_11.ln_1.weight"]


def test_the_lowest_rate_of_a_hierarchical_network_is_low() -> None:
    assert max(_network("timm:regnety_032").depths().values()) == 22  # 0.75 ** 22 is 0.0018
    assert max(_network("regnet_y_3_2gf").depths().values()) == 22


@pytest.mark.parametrize(
    ("name", "spared"),
    [
        ("vit_b_16", {"class_token", "pos_embedding"}),
        ("swin_t", {"relative_position_bias_table"}),
        ("swin_v2_t", set()),
        ("maxvit_t", {"relative_position_bias_table"}),
        ("resnet18", set()),
        ("timm:vit_tiny_patch16_224", {"cls_token", "pos_embed"}),
        ("timm:resnet18", set()),
    ],
)
def test_tokens_embeddings_and_bias_tables_are_not_decayed(name: str, spared: set[str]) -> None:
    names = _network(name).not_decayed()
    assert {name.rpartition(".")[2] for name in names} == spared


@pytest.mark.parametrize(
    ("name", "share"),
    [
        ("timm:regnety_032", 0.32),  # the last stage is two blocks
        ("timm:swin_tiny_patch4_window7_224", 0.56),  # likewise
        ("vit_b_16", 0.17),
    ],
)
def test_two_blocks_are_a_part_of_the_weights(name: str, share: float) -> None:
    network = _network(name)
    network.train_only(2)
    sizes = [(weight.numel(), weight.requires_grad) for weight in network.backbone.parameters()]
    trained = sum(size for size, learns in sizes if learns) / sum(size for size, _ in sizes)
    assert trained == pytest.approx(share, abs=0.005)


@pytest.mark.parametrize("name", ["resnet18", "vit_b_32", "timm:regnety_002", "timm:convnext_atto"])
def test_what_is_left_alone_stays_in_evaluation_mode(name: str) -> None:
    network = _network(name)
    network.train_only(2)
    for module in network.train().backbone.modules():
        learns = [weight.requires_grad for weight in module.parameters()]
        if learns:
            assert module.training == any(learns)


def test_only_the_last_blocks_and_the_head_learn_and_no_gradient_goes_further() -> None:
    torch.manual_seed(0)
    network = build("tiny", 3, "linear")
    network.train_only(2)
    network.train()
    reached: list[bool] = []
    layers = network.backbone.layers
    assert isinstance(layers, nn.Sequential)
    layers[2].register_forward_hook(lambda *arguments: reached.append(arguments[2].requires_grad))
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
