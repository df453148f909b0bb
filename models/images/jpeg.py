"""A picture to keep: its pixels as a JPEG, and nothing else that came with it."""

import io

from PIL import Image

from florilege.models.images.decoding import MAX_PIXELS, decode
from florilege.models.images.headers import Header


def plain_jpeg(
    picture: bytes | Header, *, side: int, quality: int, max_pixels: int = MAX_PIXELS
) -> bytes:
    """A JPEG of at most ``side`` pixels a side, upright, without metadata: the decoder drops it.

    Raises:
        ImageError: These bytes give no picture, or one of more than ``max_pixels`` pixels.
    """
    image = decode(picture, target=side, max_pixels=max_pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()
