"""A small array as a PNG file: lossless, and quick to write since it is uncompressed."""

from io import BytesIO

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def encode_png(picture: NDArray[np.uint8]) -> bytes:
    """The bytes of a PNG file that decodes to exactly ``picture``.

    Raises:
        ValueError: It is not uint8 of shape ``(height, width, 3)``, RGB, with at least one pixel.

    Example:
        >>> encode_png(np.zeros((2, 2, 3), dtype=np.uint8))[:8]
        b'\\x89PNG\\r\\n\\x1a\\n'
    """
    if picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise ValueError(f"picture must have shape (height, width, 3), got {picture.shape}")
    if picture.dtype != np.uint8:
        raise ValueError(f"picture must be uint8, got {picture.dtype}")
    file = BytesIO()
    Image.fromarray(picture).save(file, "PNG", compress_level=0)
    return file.getvalue()
