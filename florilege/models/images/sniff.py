"""Detect an image type from its first bytes; the errors of bytes that are no usable picture.

Names and declared types are often wrong.
"""

from collections.abc import Mapping
from typing import ClassVar, Final, Literal

Kind = Literal["jpeg", "png", "webp", "heic", "avif"]

ACCEPTED: Final = ("image/jpeg", "image/png", "image/webp", "image/heic", "image/avif")
# File suffixes of these types, for searching folders.
ENDINGS: Final = frozenset(
    (".jpg", ".jpeg", ".jpe", ".jfif", ".png", ".webp", ".heic", ".heif", ".avif")
)

_BRANDS: Final[Mapping[bytes, Kind]] = {
    **dict.fromkeys(b"heic heix heim heis hevc hevx hevm hevs".split(), "heic"),
    **dict.fromkeys(b"avif avis".split(), "avif"),
}

# Refused types that the message names.
_REFUSED: Final = (
    (b"GIF8", "a GIF picture"),
    (b"II*\0", "a TIFF picture"),
    (b"MM\0*", "a TIFF picture"),
    (b"BM", "a BMP picture"),
    (b"8BPS", "a Photoshop document"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x1f\x8b", "data in gzip"),
    (b"<svg", "an SVG drawing"),
    (b"<?xml", "an XML document"),
)


class ImageError(ValueError):
    """Base class: the bytes are not a usable picture. The message may be shown to the sender."""

    code: ClassVar[str] = "image_unreadable"  # stable, for machines


class UnsupportedImage(ImageError):
    """The bytes are not of an accepted image type; the message names the accepted types."""

    code = "unsupported_image_type"


class OversizedImage(ImageError):
    """The picture has more bytes or pixels than allowed."""

    code = "image_too_large"

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit  # in the unit that the message names; None if memory ran out


class DamagedImage(ImageError):
    """The first bytes are of an accepted type, but the picture is damaged or truncated."""


def sniff(data: bytes) -> Kind:
    """Detect the image type of ``data``.

    Raises:
        UnsupportedImage: The type is not accepted; the message names the accepted types.

    Example:
        >>> sniff(b"\\x89PNG\\r\\n\\x1a\\n")
        'png'
    """
    if data.startswith(b"\xff\xd8\xff"):
        return "jpeg"
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "png"
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "webp"
    if kind := _sniff_container(data):
        return kind
    raise UnsupportedImage(f"{_describe(data)}; accepted are {', '.join(ACCEPTED)}")


def _sniff_container(data: bytes) -> Kind | None:
    """HEIC or AVIF, from the first known brand of the ``ftyp`` box; the major brand is first."""
    if data[4:8] != b"ftyp":
        return None
    # Bounded: a box may say that it has gigabytes of brands.
    end = min(int.from_bytes(data[:4], "big"), 1024, len(data))
    brands = [data[8:12], *(data[at : at + 4] for at in range(16, end - 3, 4))]
    return next((_BRANDS[brand] for brand in brands if brand in _BRANDS), None)


def _describe(data: bytes) -> str:
    if not data:
        return "the file is empty"
    for magic, name in _REFUSED:
        if data.lstrip()[: len(magic)].lower() == magic.lower():
            return f"this is {name}"
    return "these bytes are not a picture of a known type"
