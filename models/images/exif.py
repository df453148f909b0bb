"""The one thing wanted from a photo's EXIF data: which way up it is."""

import struct
from typing import Final

_ORIENTATION: Final = 0x0112
_SHORT: Final = 3
_UPRIGHT: Final = 1


def orientation(exif: bytes) -> int:
    """Orientation tag of an EXIF block, 1 to 8; 1 (upright) where absent or damaged.

    Only the first directory is read: Pillow's reader warns about oddities in tags nobody asked for.

    Args:
        exif: TIFF structure, with or without the leading ``Exif\\0\\0``.
    """
    tiff = exif.removeprefix(b"Exif\0\0")
    order = {b"II*\0": "<", b"MM\0*": ">"}.get(tiff[:4])
    if order is None:
        return _UPRIGHT
    try:
        return _first_directory_orientation(tiff, order)
    except struct.error:  # an offset past the end
        return _UPRIGHT


def _first_directory_orientation(tiff: bytes, order: str) -> int:
    (start,) = struct.unpack_from(order + "I", tiff, 4)
    (entries,) = struct.unpack_from(order + "H", tiff, start)
    for index in range(entries):
        at = start + 2 + 12 * index
        tag, kind, count, value = struct.unpack_from(order + "HHIH", tiff, at)
        if tag == _ORIENTATION:
            valid = kind == _SHORT and count == 1 and 1 <= value <= 8
            return int(value) if valid else _UPRIGHT
    return _UPRIGHT
