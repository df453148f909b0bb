"""A plain JPEG is upright, small enough and holds only pixels."""

import io

import numpy as np
import pytest
from PIL import Image

from florilege.models.images import DamagedImage, OversizedImage, plain_jpeg

SECRET = b"by the gate"


def photo(form: str, **more: object) -> bytes:
    exif = Image.Exif()
    exif[0x0112], exif[0x010E] = 6, SECRET.decode()
    picture = Image.new("RGB", (60, 40), (20, 90, 160))
    picture.paste((250, 240, 20), (0, 0, 15, 10))
    buffer = io.BytesIO()
    picture.save(buffer, form, exif=exif, **more)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("form", "more"),
    [
        ("JPEG", {"comment": SECRET, "xmp": SECRET, "icc_profile": SECRET}),
        ("JPEG", {"comment": SECRET, "progressive": True}),
        ("PNG", {"icc_profile": SECRET}),
        ("WEBP", {"xmp": SECRET, "icc_profile": SECRET}),
        ("AVIF", {"xmp": SECRET}),
    ],
)
@pytest.mark.parametrize("side", [20, 60, 2048])
def test_what_came_with_a_picture_is_gone_and_it_stands_upright(
    form: str, more: dict[str, object], side: int
) -> None:
    content = plain_jpeg(photo(form, **more), side=side, quality=90)
    assert SECRET not in content
    for marker in (b"\xff\xe1", b"\xff\xe2", b"\xff\xed", b"\xff\xfe"):
        assert marker not in content.split(b"\xff\xda")[0]
    picture = Image.open(io.BytesIO(content))
    assert max(picture.size) == min(side, 60)
    assert np.argmin(np.asarray(picture)[1, -2]) == 2  # upper left before it was turned
    assert set(picture.info) <= {"jfif", "jfif_version", "jfif_unit", "jfif_density"}


def test_what_is_no_picture_or_too_large_is_refused() -> None:
    with pytest.raises(DamagedImage):
        plain_jpeg(photo("JPEG")[:-300], side=60, quality=90)
    with pytest.raises(OversizedImage):
        plain_jpeg(photo("JPEG"), side=60, quality=90, max_pixels=60 * 40 - 1)
    assert plain_jpeg(photo("JPEG"), side=60, quality=90, max_pixels=60 * 40)
