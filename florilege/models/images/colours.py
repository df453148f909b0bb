"""Convert colours to sRGB by the profile that a picture carries, as phones store Display P3.

Networks are trained on sRGB, in which most photos are. Nothing is converted without a profile, with
one of sRGB, or with one that cannot be used: of another kind of colours, damaged, or huge.
"""

import io
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from PIL import Image, ImageCms

# Of a profile: those of phones have 500, those of scanners up to 600,000.
MOST_BYTES: Final = 1 << 20
COLOUR_MODES: Final = frozenset(("RGB", "RGBA", "P", "PA"))  # of decoded pictures
_ROUNDING: Final = 2
"""Grey levels that a profile may change and still be one of sRGB: some round their curves."""

# Primaries of ITU-T H.273 as red, green and blue in XYZ, adapted to D50 as profiles want them.
_PRIMARIES: Final = {
    9: ((0.67348, 0.27904, -0.00194), (0.16567, 0.67534, 0.02998), (0.12505, 0.04561, 0.79686)),
    12: ((0.51512, 0.24120, -0.00105), (0.29198, 0.69225, 0.04189), (0.15710, 0.06657, 0.78407)),
}
_LIKE_SRGB: Final = frozenset((1, 2, 6, 13, 14, 15))  # transfer curves that screens show as sRGB
_SRGB_CURVE: Final = (2.4, 1 / 1.055, 0.055 / 1.055, 1 / 12.92, 0.04045)


def to_srgb(image: Image.Image, profile: bytes) -> Image.Image:
    """An RGB picture in sRGB, from one whose colours a profile describes."""
    # Checked before the cache, which keeps the profiles that it was asked for.
    plausible = profile[16:20] == b"RGB " and 128 < len(profile) <= MOST_BYTES
    transform = _transform(profile) if plausible else None
    return image if transform is None else transform.apply(image)


@lru_cache(maxsize=16)
def _transform(profile: bytes) -> ImageCms.ImageCmsTransform | None:
    """How to convert to sRGB; None if a profile is that of sRGB or cannot be used."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        transform = ImageCms.buildTransform(source, ImageCms.createProfile("sRGB"), "RGB", "RGB")
    except (ImageCms.PyCMSError, OSError):  # damaged
        return None
    # 255 is 17 times 15: both ends are among them.
    levels = np.arange(0, 256, 15, dtype=np.uint8)
    colours = np.stack(np.meshgrid(levels, levels, levels), axis=-1).reshape(1, -1, 3)
    converted = np.asarray(transform.apply(Image.fromarray(colours)))
    change = np.abs(converted.astype(int) - colours)
    return transform if change.max() > _ROUNDING else None


def profile_of_png(chunk: bytes, codes: bytes) -> bytes:
    """The profile in the content of an ``iCCP`` chunk; empty if it is damaged or huge.

    Codes, the content of a ``cICP`` chunk, come first.
    """
    if len(codes) >= 2:
        return _profile_of_codes(*codes[:2])
    packed = chunk.partition(b"\0")[2]  # after its name
    try:
        # No more is unpacked, whatever a chunk of some bytes would give.
        profile = zlib.decompressobj().decompress(packed[1:], MOST_BYTES + 1)
    except zlib.error:
        return b""
    return profile if len(profile) <= MOST_BYTES else b""


def profile_of_boxes(boxes: Sequence[bytes]) -> bytes:
    """The profile in the contents of ``colr`` boxes of AVIF and HEIC, else that of their codes."""
    profiles = [box[4:] for box in boxes if box[:4] in (b"prof", b"rICC")]
    codes = [struct.unpack_from(">HH", box, 4) for box in boxes if box[:4] == b"nclx"]
    return profiles[0] if profiles else _profile_of_codes(*codes[0]) if codes else b""


def _profile_of_codes(primaries: int, transfer: int) -> bytes:
    """A profile for the codes of ITU-T H.273 in AVIF, HEIC and PNG; empty for those of sRGB.

    It is empty for the curves of high dynamic range, too, which no profile describes.
    """
    if primaries not in _PRIMARIES or transfer not in _LIKE_SRGB:
        return b""
    # The curve of sRGB as type 3 of ICC.1: (a x + b)^g from d on, and c x below.
    curve = b"para" + struct.pack(">IHH5i", 0, 3, 0, *map(_fixed_point, _SRGB_CURVE))
    columns = [
        b"XYZ " + struct.pack(">I3i", 0, *map(_fixed_point, column))
        for column in _PRIMARIES[primaries]
    ]
    names = [b"rXYZ", b"gXYZ", b"bXYZ", b"rTRC", b"gTRC", b"bTRC"]
    # The header has 128 bytes, the count four and each entry of the table twelve.
    contents, at, table = [*columns, curve, curve, curve], 132 + 12 * len(names), b""
    for name, content in zip(names, contents, strict=True):
        table += name + struct.pack(">II", at, len(content))
        at += len(content)
    header = struct.pack(
        ">I4sI4s4s4s12s4s", at, b"", 0x04000000, b"mntr", b"RGB ", b"XYZ ", b"", b"acsp"
    )
    white = struct.pack(">3i", *map(_fixed_point, (0.9642, 1.0, 0.8249)))
    header = header.ljust(68, b"\0") + white
    return header.ljust(128, b"\0") + struct.pack(">I", len(names)) + table + b"".join(contents)


def _fixed_point(value: float) -> int:
    return round(value * 65536)
