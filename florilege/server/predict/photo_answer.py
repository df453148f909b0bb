"""What Python hands in and gets back: photos in any of their forms, and the answer to them.

An answer shows its names, its length, a few lines of text, and a picture of it.
"""

import base64
import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from html import escape
from io import BytesIO
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Final, Self
from urllib.parse import urlsplit
from urllib.request import url2pathname

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from pydantic import PrivateAttr

from florilege.calibration.rules import RULES
from florilege.errors import DataError, FlorilegeError, UsageError, reason_of
from florilege.files import open_written
from florilege.models.images import COLOUR_MODES, MAX_BYTES, ImageError, plain_jpeg, to_srgb
from florilege.server.schemas import Answer, Measured, Result, SetInfo
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

_WIDTH: Final = 100  # characters of the line of names
_ROWS: Final = 12  # names below a photo
_SIDE: Final = 240  # pixels of a shown photo


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
    return name if isinstance(name, str) else f"the given {type(photo).__name__}"


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
        with open_written(path) as file:
            content: bytes = _limited(file, str(photo))
            return content
    except (OSError, ValueError) as error:  # ValueError: a null byte in the name
        raise DataError(f"{photo}: {reason_of(error)}; name a photo that can be read") from error


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


@dataclass(frozen=True)
class _Photos:
    """The photos of an answer, in the form they were given; no part of what answers compare."""

    photos: Sequence[Any] = field(default=(), compare=False, repr=False)


class PhotoAnswer(Answer):
    """The prediction set of one plant: all that ``POST /v1/identify`` answers, for Python.

    It is a collection of the set's results, best first: ``len``, ``for`` and ``in`` work, the last
    with a name or a class id. What ``max_results`` or ``min_score`` leave out is only in
    ``set.size``. ``include=["scores"]`` adds classes outside the set to ``results`` alone.
    """

    _photos: _Photos = PrivateAttr(default_factory=_Photos)

    @classmethod
    def of_photos(cls, answer: Answer, photos: Sequence[Any]) -> Self:
        """An answer, with the photos to show beside it."""
        own = cls.model_construct(**vars(answer))
        own._photos = _Photos(photos)
        return own

    @property
    def names(self) -> list[str]:
        """The scientific names of the set, best first."""
        return [result.name for result in self]

    @property
    def top(self) -> Result | None:
        """The best of the set, with its name and score; None if the set is empty."""
        return next(iter(self), None)

    def __iter__(self) -> Iterator[Result]:  # type: ignore[override]  # pydantic iterates over fields
        return (result for result in self.results if result.in_set)

    def __len__(self) -> int:
        return sum(result.in_set for result in self.results)

    def __contains__(self, name: object) -> bool:
        return any(name in (result, result.name, result.class_id) for result in self)

    def __repr__(self) -> str:
        """Three lines at most: the names with scores, what such sets are worth, and a caution."""
        lines = [f"{_candidates(self.set.size)}{_names(list(self), self.set.size)}"]
        lines += [_worth(self.set), _caution(self)]
        return "\n".join(filter(None, lines))

    __str__ = __repr__

    def _repr_html_(self) -> str:
        """What a notebook shows: the photos, the names with scores, and what they are worth."""
        results = list(self)
        rows = "".join(
            f"<tr><td><i>{escape(result.name)}</i></td><td>{result.score:.2f}</td></tr>"
            for result in results[:_ROWS]
        )
        if self.set.size > len(results[:_ROWS]):
            rows += f"<tr><td>and {self.set.size - len(results[:_ROWS]):,} more</td><td></td></tr>"
        notes = "<br>".join(escape(text) for text in (_worth(self.set), _caution(self)) if text)
        pictures = "".join(filter(None, map(_picture, self._photos.photos)))
        return (
            '<div style="display:flex;flex-wrap:wrap;gap:1em;align-items:flex-start">'
            f'<div>{pictures}</div><div style="flex:1;min-width:16em">'
            f"<b>{_candidates(self.set.size)}</b>"
            f"<table>{rows}</table><small>{notes}</small></div></div>"
        )


def _candidates(size: int) -> str:
    return f"{size:,} candidate{'' if size == 1 else 's'}" if size else "no candidates"


def _names(results: Sequence[Result], size: int) -> str:
    """As many names with their scores as fit on a line, and the number of the others."""
    text, listed = "", 0
    for result in results:
        more = f"{', ' if listed else ': '}{result}"
        if listed and len(text) + len(more) > _WIDTH:
            break
        text, listed = text + more, listed + 1
    return f"{text} and {size - listed:,} more" if listed and size > listed else text


def _worth(info: SetInfo) -> str:
    """How often such sets are right, and what is promised of new photos."""
    value = info.k if RULES[info.rule].asks == "k" else info.coverage
    rule = f"{info.rule} {value:g}"
    if not info.calibrated:
        return f"{rule}: not calibrated for this request, so how often it is right is unknown"
    if info.hit_rate is None:
        return f"{rule}: how often such sets are right is unknown"
    words = f"{rule}: {_rate(info.hit_rate, ' of such sets hold the right one')}"
    if info.hit_rate_at_size is not None:
        words += f"; of size {info.size}: {_rate(info.hit_rate_at_size)}"
    return f"{words}; guaranteed for new photos like these" if info.guaranteed else words


def _rate(measured: Measured, of: str = "") -> str:
    """A rate with its interval, such as ``94.0 % (90 to 97 %)``."""
    interval = ""
    if measured.ci95 is not None:
        low, high = (f"{100 * bound:.0f}" for bound in measured.ci95)
        interval = f" ({low} to {high} %)"
    return f"{100 * measured.value:.1f} %{of}{interval}"


def _caution(answer: Answer) -> str:
    """The first reason to trust the answer less."""
    if answer.rejection.verdict in ("suspect", "rejected"):
        return "unlike the photos that the model knows: perhaps none of its classes"
    return answer.warnings[0].detail if answer.warnings else ""


def _picture(photo: Any) -> str:
    """A small picture as HTML; empty if the photo cannot be read any more."""
    with suppress(FlorilegeError, ImageError):
        content = read_photo(photo)
        if isinstance(content, Image.Image):
            small = content.convert("RGB")
            small.thumbnail((_SIDE, _SIDE))
            buffer = BytesIO()
            small.save(buffer, "JPEG")
            content = buffer.getvalue()
        encoded = base64.b64encode(plain_jpeg(content, side=_SIDE, quality=80)).decode()
        return f'<img alt="photo" src="data:image/jpeg;base64,{encoded}">'
    return ""
