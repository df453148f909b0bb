"""What people call a photo: a path, a URL of a file, an open file, bytes, pixels or an image."""

import os
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from florilege.errors import DataError, UsageError
from florilege.models.images import MAX_BYTES
from florilege.models.images.colours import COLOUR_MODES, to_srgb
from florilege.server.settings import MAX_IMAGES

Photo = (
    str
    | os.PathLike[str]
    | BinaryIO
    | bytes
    | bytearray
    | memoryview
    | NDArray[np.uint8]
    | Image.Image
)
"""One photo, in any of its forms."""
FORMS: Final = (
    "a path, a file: URL, an open binary file, the bytes of a file, an image of Pillow, or pixels, "
    "uint8 (height, width, 3) in RGB"
)
_SCHEMES: Final = ("http", "https", "ftp", "s3", "gs", "data")


def is_photo(value: object) -> bool:
    """Whether a value is one photo; an open file is, although it iterates over its lines."""
    forms = (str, os.PathLike, bytes, bytearray, memoryview, np.ndarray, Image.Image)
    return isinstance(value, forms) or hasattr(value, "read")


def photos_of_plant(value: Any) -> list[Any]:
    """The photos of one plant, from one photo or several; a `UsageError` for anything else."""
    if is_photo(value):
        return [value]
    if not isinstance(value, Iterable) or isinstance(value, dict):
        raise UsageError(f"a photo is {FORMS}; got {type(value).__name__}")
    photos = list(islice(value, MAX_IMAGES + 1))  # there may be any number
    if not 1 <= len(photos) <= MAX_IMAGES:
        number = "none" if not photos else f"more than {MAX_IMAGES}"
        raise UsageError(
            f"a list is 1 to {MAX_IMAGES} photos of one plant, got {number}; predict_many takes "
            "any number of photos, each of another plant"
        )
    return photos


def name_of(photo: object) -> str:
    """What messages call a photo: its path, if it has one."""
    if isinstance(photo, str | os.PathLike):
        return os.fsdecode(photo)
    name = getattr(photo, "name", None) or getattr(photo, "filename", None)
    return name if isinstance(name, str) else f"this {type(photo).__name__}"


def read_photo(photo: Any) -> bytes | Image.Image:
    """The bytes of a photo's file, or its decoded picture, upright and in sRGB.

    Raises:
        DataError: It cannot be read.
        UsageError: It is no photo.
    """
    if isinstance(photo, bytes | bytearray | memoryview):
        return bytes(photo)
    if isinstance(photo, np.ndarray):
        return _of_pixels(photo)
    if isinstance(photo, Image.Image):
        return _upright(photo)
    if hasattr(photo, "read"):
        return _of_file(photo)
    if not isinstance(photo, str | os.PathLike):
        raise UsageError(f"a photo is {FORMS}; got {type(photo).__name__}")
    path = _path(photo)
    if path.is_dir():
        raise DataError(f"{photo} is a folder: predict_many answers each photo in it")
    try:
        with path.open("rb") as file:
            content: bytes = _limited(file, str(photo))
            return content
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{photo}: {reason}; name a photo that can be read") from error


def _path(photo: str | os.PathLike[str]) -> Path:
    """A path, also from a URL of a file."""
    text = os.fspath(photo)
    scheme = text.partition(":")[0].lower()
    if scheme == "file":
        url = urlsplit(text)
        if url.netloc not in ("", "localhost"):
            raise DataError(f"{text}: the file is on {url.netloc}; copy it here first")
        return Path(url2pathname(url.path))
    if scheme in _SCHEMES and text.startswith((f"{scheme}://", "data:")):
        raise DataError(f"{text[:80]}: nothing is downloaded; pass the bytes, or a file")
    return Path(text)


def _of_file(file: Any) -> bytes:
    name = name_of(file)
    content = _limited(file, name)
    if not isinstance(content, bytes):
        raise UsageError(f"{name} is open as text: open it with open(path, 'rb')")
    if not content:
        raise DataError(f"{name} has nothing left to read: seek(0), or pass its path")
    return content


def _limited(file: Any, name: str) -> Any:
    """What is left of a file; reading is bounded, since some files have no end."""
    try:
        content = file.read(MAX_BYTES + 1)
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is open as text: open it with open(path, 'rb')") from error
    if len(content) > MAX_BYTES:
        raise DataError(f"{name} has more than {MAX_BYTES:,} bytes: send a smaller photo")
    return content


def _of_pixels(pixels: NDArray[Any]) -> Image.Image:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        several = "; several photos of one plant are a list" if pixels.ndim == 4 else ""
        raise DataError(
            f"pixels must be uint8 with shape (height, width, 3), got {pixels.dtype} "
            f"{pixels.shape}{several}"
        )
    return Image.fromarray(pixels)


def _upright(image: Image.Image) -> Image.Image:
    """A picture as the decoder would give it: its orientation and its profile are applied."""
    try:
        image.load()
        upright = ImageOps.exif_transpose(image)
    except (OSError, SyntaxError, ValueError) as error:  # Pillow decodes a file only now
        raise DataError(f"{name_of(image)} cannot be decoded: {error}") from error
    profile = image.info.get("icc_profile")
    if not profile or image.mode not in COLOUR_MODES or image.has_transparency_data:
        return upright
    return to_srgb(upright.convert("RGB"), profile)
