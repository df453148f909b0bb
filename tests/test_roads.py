"""From photos to an answer over HTTP with networks of every kind, at more rows than one block."""

from pathlib import Path

import pytest

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


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_photos(tmp_path_factory.mktemp("photos") / "few", classes=21)


@pytest.mark.parametrize("backbone", KINDS)
def test_a_network_of_each_kind_goes_the_whole_road(
    backbone: str, data: Path, tmp_path: Path
) -> None:
    road = Road(tmp_path, data)
    road.travel(backbone, image_size=KINDS[backbone])
