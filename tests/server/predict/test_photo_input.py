"""What is read of each form of a photo."""

from io import BytesIO
from typing import Any

import numpy as np
import pytest
from PIL import Image

from florilege.models.images import decode
from florilege.models.images.colours import _profile_of_codes
from florilege.server.predict.photo_answer import name_of, read_photo

DISPLAY_P3 = _profile_of_codes(12, 13)


@pytest.mark.parametrize("profile", [b"", DISPLAY_P3], ids=["srgb", "display-p3"])
@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_an_image_is_read_as_its_file_would_be(orientation: int, profile: bytes) -> None:
    exif, file = Image.Exif(), BytesIO()
    exif[0x0112] = orientation
    pixels = np.random.default_rng(0).integers(0, 256, (6, 9, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG", exif=exif, icc_profile=profile)
    expected = np.asarray(decode(file.getvalue(), target=32))
    file.seek(0)
    picture = read_photo(Image.open(file))
    assert isinstance(picture, Image.Image)
    np.testing.assert_array_equal(np.asarray(picture), expected)
    assert not profile or (expected.sum(axis=2) != pixels.sum()).any()


def test_reading_a_file_is_bounded() -> None:
    class Endless:
        def read(self, size: int = -1) -> bytes:
            assert size > 0
            return bytes(10)

    assert read_photo(Endless()) == bytes(10)


def test_messages_name_a_photo_by_its_path_if_it_has_one() -> None:
    names: list[tuple[Any, str]] = [("a/b.jpg", "a/b.jpg"), (b"", "the given bytes")]
    assert [name_of(photo) for photo, _ in names] == [name for _, name in names]
