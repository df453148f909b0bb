"""From photos to an answer over HTTP with networks of every kind, at more rows than one block."""

from pathlib import Path

import pytest

from models.backbones import available
from tests.roads import Road, write_photos

KINDS = {
    "resnet50": 32,
    "densenet121": 32,
    "mobilenet_v3_small": 32,
    "efficientnet_b0": 32,
    "convnext_tiny": 32,
    "vit_b_16": 32,
    "swin_t": 32,
    "vgg11": 32,
}
"""One network of each kind, with the side of its pictures in pixels."""
SIDES = {"inception_v3": 75, "maxvit_t": 224}
"""The networks that cannot take pictures of 64 px."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos") / "few", classes=21)


@pytest.mark.parametrize("backbone", KINDS)
def test_a_network_of_each_kind_goes_the_whole_road(
    backbone: str, data: Path, tmp_path: Path
) -> None:
    Road(tmp_path, data).travel(backbone, image_size=KINDS[backbone])


@pytest.mark.roads
@pytest.mark.parametrize("backbone", available())
def test_every_network_goes_the_whole_road(backbone: str, data: Path, tmp_path: Path) -> None:
    road = Road(tmp_path, data)
    road.travel(backbone, image_size=SIDES.get(backbone, 64), loss="two_head_average_k")


@pytest.mark.roads
@pytest.mark.parametrize("backbone", ["tiny", "resnet50"])
@pytest.mark.parametrize("classes", [2, 3, 21, 1_081, 10_000])
def test_any_number_of_classes_goes_the_whole_road(
    backbone: str, classes: int, tmp_path: Path
) -> None:
    road = Road(tmp_path, write_photos(tmp_path / "photos", classes=classes))
    road.travel(backbone, image_size=32)
