"""From photos to an answer over HTTP with networks of every kind, at more rows than one block."""

from pathlib import Path

import pytest

from florilege import cli
from florilege.models.backbones import architecture, available
from tests.commands import call
from tests.pipeline_run import answers, write_photos
from tests.pretrained import efficientnet_lite0

KINDS = ("timm:test_resnet", "timm:test_vit")  # of `make test`: bottlenecks, and patches
TIMM = (
    "tf_efficientnet_lite0",
    "mobilenetv3_small_050",
    "convnext_atto",
    "vit_tiny_patch16_224",
    "deit_tiny_distilled_patch16_224",
    "swin_tiny_patch4_window7_224",
    "resnetv2_50x1_bit",
    "efficientformerv2_s0",
    "levit_128s",
    "regnetx_002",
    "repvgg_a0",
    "vit_small_patch14_dinov2",
)
TOO_LARGE = ("regnet_y_128gf", "vit_h_14")
"""An ONNX file does not hold their weights."""
EVERY = [
    *(name for name in available() if name not in TOO_LARGE),
    *(f"timm:{name}" for name in TIMM),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos") / "few", classes=21)


@pytest.mark.timeout(600)  # a slow disk or a busy machine; half a minute is usual
@pytest.mark.parametrize("backbone", KINDS)
def test_a_network_of_each_kind_goes_through_the_pipeline(
    backbone: str, data: Path, tmp_path: Path
) -> None:
    predicted, answered = answers(tmp_path, data, backbone, image_size=32)
    assert answered == predicted


@pytest.mark.end_to_end
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backbone", EVERY)
def test_every_network_goes_through_the_pipeline(backbone: str, data: Path, tmp_path: Path) -> None:
    side = architecture(backbone).side_taken(40)
    predicted, answered = answers(
        tmp_path, data, backbone, image_size=side, loss="two_head_average_k"
    )
    assert answered == predicted


@pytest.mark.end_to_end
@pytest.mark.timeout(3600)
def test_real_weights_with_many_classes_go_through_the_pipeline(tmp_path: Path) -> None:
    data, weights = write_photos(tmp_path / "photos", classes=1_081), efficientnet_lite0()
    network = "timm:tf_efficientnet_lite0"
    predicted, answered = answers(tmp_path, data, network, image_size=224, weights=weights)
    assert answered == predicted


@pytest.mark.end_to_end
@pytest.mark.parametrize("backbone", TOO_LARGE)
def test_a_network_too_large_to_export_is_refused(
    backbone: str, data: Path, tmp_path: Path
) -> None:
    side = architecture(backbone).side_taken(32)
    words = ("train", "--data", data, "--out", tmp_path / "run", "--backbone", backbone)
    result = call(cli.app, *words, "--image-size", side, "--epochs", 0)
    assert (result.exit_code, "choose a smaller backbone" in result.output) == (2, True)


@pytest.mark.end_to_end
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("backbone", ["tiny", "resnet50"])
@pytest.mark.parametrize("classes", [2, 3, 21, 1_081, 10_000])
def test_any_number_of_classes_goes_through_the_pipeline(
    backbone: str, classes: int, tmp_path: Path
) -> None:
    data = write_photos(tmp_path / "photos", classes=classes)
    predicted, answered = answers(tmp_path, data, backbone, image_size=32)
    assert answered == predicted
