"""Ten crops of one photo."""

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from benchmarks.sets.crops import crops_of, ten_crops
from florilege.models.images import Preprocess, load


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


def png(pixels: NDArray[np.uint8]) -> bytes:
    file = BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def test_crops_cover_the_corners_of_the_whole_photo() -> None:
    pixels = np.zeros((64, 128, 3), dtype=np.uint8)
    pixels[:, :40, 0] = 200  # the left side, which the centre square does not show
    preprocess = Preprocess(image_size=28)
    crops = crops_of(png(pixels), preprocess)
    assert crops.shape == (10, 28, 28, 3)
    assert crops[0, :, :15, 0].min() == 200  # top left
    assert crops[1, :, :, 0].max() == 0  # top right
    assert (crops[5] == crops[0][:, ::-1]).all()
    assert load(png(pixels), preprocess)[:, 10:, 0].max() == 0


def test_a_small_crop_fraction_is_kept() -> None:
    pixels = np.arange(100 * 100 * 3, dtype=np.uint32).reshape(100, 100, 3).astype(np.uint8)
    preprocess = Preprocess(image_size=50, crop_fraction=0.5)  # the photo is 100 pixels wide then
    crops = crops_of(png(pixels), preprocess)
    np.testing.assert_array_equal(crops[4], pixels[25:75, 25:75])
    np.testing.assert_array_equal(crops[3], pixels[50:, 50:])
