"""Small pictures, encoded in every accepted type, for the tests of this folder."""

import io
import struct
import tempfile
import zlib
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pillow_heif
from PIL import Image

from florilege.models.reference_pictures import read_thumbnails

KINDS = ("jpeg", "png", "webp", "heic", "avif")


def scene(width: int, height: int) -> Image.Image:
    """A smooth picture without any symmetry: red grows to the right, green downwards."""
    rows, columns = np.mgrid[0:height, 0:width]
    red = 255 * columns / max(width - 1, 1)
    green = 255 * rows / max(height - 1, 1)
    blue = np.full_like(red, 128)
    return Image.fromarray(np.stack([red, green, blue], axis=2).astype(np.uint8))


def noise(width: int, height: int, seed: int = 0) -> Image.Image:
    """Independent pixels."""
    values = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    return Image.fromarray(values)


def encode(image: Image.Image, kind: str, **options: object) -> bytes:
    """The bytes of a file; ``options`` go to the encoder."""
    out = io.BytesIO()
    if kind == "heic":
        pillow_heif.from_pillow(image).save(out, **options)
    else:
        image.save(out, kind.upper(), **options)
    return out.getvalue()


def exif_with_orientation(orientation: int, order: str = "<", kind: int = 3) -> bytes:
    """An EXIF block with two tags, the second of them the orientation."""
    magic = b"II*\0" if order == "<" else b"MM\0*"
    make = struct.pack(order + "HHI4s", 0x010F, 2, 4, b"abc\0")
    turn = struct.pack(order + "HHIHH", 0x0112, kind, 1, orientation, 0)
    directory = struct.pack(order + "H", 2) + make + turn + struct.pack(order + "I", 0)
    return b"Exif\0\0" + magic + struct.pack(order + "I", 8) + directory


def stored_for(image: Image.Image, orientation: int) -> Image.Image:
    """The pixels that a camera stores so that ``orientation`` shows ``image``.

    The EXIF standard says where row 0 and column 0 of the stored picture lie: 1 top left,
    2 top right, 3 bottom right, 4 bottom left, 5 left top, 6 right top, 7 right bottom,
    8 left bottom.
    """
    pixels = np.asarray(image)  # (rows, columns, 3)
    if orientation in (3, 4, 7, 8):
        pixels = pixels[::-1]
    if orientation in (2, 3, 6, 7):
        pixels = pixels[:, ::-1]
    if orientation >= 5:
        pixels = pixels.swapaxes(0, 1)
    return Image.fromarray(np.ascontiguousarray(pixels))


def thumbnail(content: bytes) -> bytes:
    """The thumbnail of a picture."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "picture"
        path.write_bytes(content)
        return read_thumbnails("classes.csv", {"a": path})["a"]


def png(
    width: int, height: int, *, depth: int, colour: int, rows: bytes, extra: bytes = b""
) -> bytes:
    """A PNG built by hand, for depths that Pillow does not write; ``rows`` have filter bytes."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    data = (
        chunk(b"IHDR", header) + extra + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    )
    return b"\x89PNG\r\n\x1a\n" + data


def chunk(name: bytes, content: bytes) -> bytes:
    """A PNG chunk with its checksum."""
    checksum = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", checksum)


def difference(one: npt.NDArray[np.uint8], other: npt.NDArray[np.uint8]) -> int:
    """Largest difference of two arrays of the same shape, in grey levels."""
    assert one.shape == other.shape
    return int(np.abs(one.astype(int) - other.astype(int)).max())
