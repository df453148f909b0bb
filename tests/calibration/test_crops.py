"""Ten crops of one photo."""

import numpy as np
import pytest

from calibration.crops import ten_crops


def test_the_crops_are_the_corners_the_centre_and_their_mirrors() -> None:
    picture = np.random.default_rng(0).integers(0, 256, (9, 12, 3)).astype(np.uint8)
    crops = ten_crops(picture, 4)
    assert crops.shape == (10, 4, 4, 3)
    assert crops.dtype == np.uint8
    expected = [picture[:4, :4], picture[:4, -4:], picture[-4:, :4], picture[-4:, -4:]]
    expected.append(picture[2:6, 4:8])
    for crop, mirrored, wanted in zip(crops[:5], crops[5:], expected, strict=True):
        assert crop.tolist() == wanted.tolist()
        assert mirrored.tolist() == wanted[:, ::-1].tolist()


def test_a_crop_as_large_as_the_photo_is_the_photo() -> None:
    picture = np.arange(27, dtype=np.uint8).reshape(3, 3, 3)
    assert all(crop.tolist() == picture.tolist() for crop in ten_crops(picture, 3)[:5])


@pytest.mark.parametrize("size", [0, 5])
def test_a_crop_larger_than_the_photo_is_refused(size: int) -> None:
    with pytest.raises(ValueError, match=f"got .* and {size}"):
        ten_crops(np.zeros((4, 9, 3), dtype=np.uint8), size)
