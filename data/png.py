"""A small array as a PNG file, faster than a general encoder: no filter, lightest compression."""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_RGB, _BITS = 2, 8


def encode_png(picture: NDArray[np.uint8]) -> bytes:
    """The bytes of a PNG file that decodes to exactly ``picture``.

    Args:
        picture: RGB, uint8, shape ``(height, width, 3)``, at least one pixel.

    Raises:
        ValueError: Another shape or type.

    Example:
        >>> encode_png(np.zeros((2, 2, 3), dtype=np.uint8))[:8]
        b'\\x89PNG\\r\\n\\x1a\\n'
    """
    if picture.ndim != 3 or picture.shape[2] != 3 or 0 in picture.shape:
        raise ValueError(f"picture must have shape (height, width, 3), got {picture.shape}")
    if picture.dtype != np.uint8:
        raise ValueError(f"picture must be uint8, got {picture.dtype}")
    height, width, _ = picture.shape
    rows = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # each row starts with filter type 0
    rows[:, 1:] = picture.reshape(height, -1)
    header = struct.pack(">2I5B", width, height, _BITS, _RGB, 0, 0, 0)
    body = zlib.compress(rows.tobytes(), level=1)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(content, zlib.crc32(kind))
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
