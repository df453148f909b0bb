import sys

import pytest
import torch
from torch import nn

from florilege.errors import UsageError
from florilege.models.backbones import architecture, build
from florilege.models.heads import HEADS
from florilege.models.images import Preprocess


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize(
    ("name", "size"),
    [("tiny", 48), ("tiny", 33), ("tiny_patches", 48), ("tiny_patches", 8), ("resnet18_small", 16)],
)
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
        *((name, 32) for name in ("resnet18", "densenet121", "mobilenet_v3_small", "swin_t")),
        *((name, 32) for name in ("efficientnet_b0", "shufflenet_v2_x0_5", "mnasnet0_5")),
        ("googlenet", 15),
        ("inception_v3", 75),
        ("squeezenet1_1", 17),
    ],
)
def test_torchvision_networks_get_our_head(name: str, size: int) -> None:
    with torch.device("meta"):  # shapes without computation
        network = build(name, 5, "two_head", image_size=size)
        # while training: no auxiliary heads
        multi_label, sccp = network(torch.zeros(2, 3, size, size))
    assert multi_label.shape == sccp.shape == (2, 5)
    assert not any(1000 in value.shape for value in network.state_dict().values())


@pytest.mark.parametrize(
    ("name", "smallest"),
    [
        ("alexnet", 63),
        ("convnext_tiny", 32),
        ("densenet121", 29),
        ("googlenet", 15),
        ("inception_v3", 75),
        ("squeezenet1_0", 21),
        ("squeezenet1_1", 17),
        ("vgg11_bn", 32),
    ],
)
def test_pictures_too_small_for_a_network_are_refused_when_it_is_built(
    name: str, smallest: int
) -> None:
    with torch.device("meta"):
        build(name, 3, "linear", image_size=smallest).eval()(torch.zeros(1, 3, smallest, smallest))
        with pytest.raises(RuntimeError):  # torch's own message, which hides the cause
            build(name, 3, "linear").eval()(torch.zeros(1, 3, smallest - 1, smallest - 1))
    message = f"one that fits, such as {smallest}, for {name}, got {smallest - 1}"
    with pytest.raises(ValueError, match=message):
        build(name, 3, "linear", image_size=smallest - 1)


@pytest.mark.parametrize(
    ("name", "size", "expected"),
    [
        ("vit_b_16", 50, 64),
        ("vit_b_32", 16, 32),
        ("maxvit_t", 64, 224),
        ("timm:vit_tiny_patch16_224", 50, 64),
        ("timm:vit_small_patch14_dinov2", 50, 56),
        ("timm:swin_tiny_patch4_window7_224", 224, 224),
        ("timm:tf_efficientnet_lite0", 50, 50),
        ("timm:inception_v3", 20, 112),
        *((name, 8, 8) for name in ("tiny", "densenet40_40", "resnet18", "mobilenet_v2", "swin_t")),
    ],
)
def test_a_network_says_which_sizes_it_takes(name: str, size: int, expected: int) -> None:
    assert (
        architecture(name).side_taken(size) == architecture(name).side_taken(expected) == expected
    )
    with torch.device("meta"):
        build(name, 3, "linear", image_size=expected).eval()(torch.zeros(1, 3, expected, expected))
    if size != expected:
        message = f"image_size must be one that fits, such as {expected}, for {name}, got {size}"
        with pytest.raises(ValueError, match=message):
            build(name, 3, "linear", image_size=size)


def test_the_papers_densenet_has_depth_40_and_growth_40() -> None:
    with torch.device("meta"):
        network = build("densenet40_40", 100, "linear")
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert len(convolutions) + 1 == 40  # and the last linear layer
    assert network.head.in_features == 440  # 80, each block adds 240, each transition halves
    # counted on the DenseNet3(40, 100, 40) of github.com/oval-group/smooth-topk
    assert sum(weights.numel() for weights in network.parameters()) == 1_941_620


def test_the_small_resnet_keeps_small_pictures_large() -> None:
    shapes: list[torch.Size] = []
    with torch.device("meta"):
        network = build("resnet18_small", 4, "linear").eval()
        layer = network.backbone.get_submodule("layer1")
        layer.register_forward_hook(lambda _m, _i, output: shapes.append(output.shape))
        network(torch.zeros(1, 3, 32, 32))
    assert shapes == [(1, 64, 32, 32)]


@pytest.mark.parametrize("name", ["tiny", "timm:test_efficientnet"])  # timm's tries the size first
def test_the_same_random_state_gives_the_same_network(name: str) -> None:
    torch.manual_seed(3)
    first = build(name, 4, "linear", image_size=41).state_dict()
    torch.manual_seed(3)
    second = build(name, 4, "linear", image_size=41).state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("resnet19", ["resnet18", "timm:resnet18"]),
        ("resnet5000", ["resnet50", "timm:resnet50"]),
        ("efficientnet_lite0", ["timm:efficientnet_lite0"]),
        ("timm:tf_efficientnet_lite9", ["timm:tf_efficientnet_lite0"]),
        ("timm:tf_efficientnet_lite0.in2k", ["timm:tf_efficientnet_lite0.in1k"]),
    ],
)
def test_an_unknown_backbone_is_refused_with_the_names_that_are_nearest(
    name: str, near: list[str]
) -> None:
    with pytest.raises(ValueError, match=f"there is no backbone '{name}'; did you mean") as refusal:
        build(name, 4, "linear")
    listed = str(refusal.value).partition("did you mean ")[2].rstrip("?").split(" or ")
    assert set(near) <= set(listed)
    assert len(listed) == len(set(listed)) <= 10


def test_a_name_like_no_other_is_refused_too() -> None:
    with pytest.raises(ValueError, match=r"no backbone '0'; docs/training\.md lists them"):
        build("0", 4, "linear")


def test_without_timm_its_networks_say_how_to_have_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UsageError, match="checkout"):
        build("timm:resnet18", 4, "linear")
    with pytest.raises(ValueError, match="did you mean resnet18"):
        build("resnet19", 4, "linear")


def test_networks_without_pretrained_weights_take_pictures_as_they_always_did() -> None:
    for name in ("tiny", "resnet18", "efficientnet_b0"):
        assert architecture(name).preprocess() == Preprocess(image_size=224)
        assert architecture(name).preprocess("some/file.pt") == Preprocess(image_size=224)


@pytest.mark.parametrize(
    ("name", "size", "resized", "resample"),
    [
        ("resnet18", 224, 256, "bilinear"),
        ("efficientnet_b0", 224, 256, "bicubic"),
        ("inception_v3", 299, 342, "bilinear"),
    ],
)
def test_torchvisions_pretrained_weights_say_how_they_want_pictures(
    name: str, size: int, resized: int, resample: str
) -> None:
    preprocess = architecture(name).preprocess("pretrained")
    assert (preprocess.image_size, preprocess.resample) == (size, resample)
    assert round(size / preprocess.crop_fraction) == resized
    assert preprocess.mean == (0.485, 0.456, 0.406)


def test_statistics_that_are_kept_do_not_move_while_everything_learns() -> None:
    network = build("tiny", 3, "linear")
    network.keep_statistics()
    network.train()
    before = {key: value.clone() for key, value in network.state_dict().items()}
    pictures = torch.randn(4, 3, 16, 16)
    torch.autograd.backward(network(pictures).sum())
    assert all(parameter.grad is not None for parameter in network.parameters())
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key]), key
    trained = network(pictures)
    assert torch.equal(trained, network.eval()(pictures))


# without the RegNets, which have batch norms and cannot be built without memory
@pytest.mark.parametrize(
    "name",
    [
        *("alexnet", "convnext_tiny", "densenet121", "densenet40_40", "efficientnet_b0"),
        *("efficientnet_v2_s", "googlenet", "inception_v3", "maxvit_t", "mnasnet0_5"),
        *("mobilenet_v2", "mobilenet_v3_small", "resnet18", "resnet18_small"),
        *("resnext50_32x4d", "shufflenet_v2_x0_5", "squeezenet1_0", "swin_t", "swin_v2_t"),
        *("tiny", "tiny_patches", "vgg11", "vgg11_bn", "vit_b_16", "wide_resnet50_2"),
    ],
)
def test_a_name_tells_whether_a_network_has_normalisation_layers(name: str) -> None:
    with torch.device("meta"):
        modules = build(name, 3, "linear").modules()
    norms = (each for each in modules if "norm" in type(each).__name__.lower())
    assert architecture(name).normalises == any("weight" in each._parameters for each in norms)


@pytest.mark.parametrize(("name", "momentum"), [("mnasnet0_5", 0.1), ("efficientnet_b5", 0.01)])
def test_batch_norms_follow_within_a_few_hundred_steps(name: str, momentum: float) -> None:
    with torch.device("meta"):
        modules = build(name, 3, "linear").modules()
    assert {m.momentum for m in modules if isinstance(m, nn.BatchNorm2d)} == {momentum}
