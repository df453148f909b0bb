"""Decode encoded bytes into the pixels that a network sees: the only decoder of the system.

Evaluation during training, calibration, prediction and the server all call :func:`load`, so that
calibration and serving see the same pixels. Nothing here changes Pillow's global state, and any
number of threads may decode at once.
"""

import io
import json
import math
from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Final, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pillow_heif
from PIL import AvifImagePlugin, Image, ImageFile, JpegImagePlugin, PngImagePlugin, WebPImagePlugin
from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass

from florilege.models.images.colours import COLOUR_MODES as COLOUR_MODES
from florilege.models.images.colours import to_srgb as to_srgb
from florilege.models.images.headers import MAX_BYTES as MAX_BYTES
from florilege.models.images.headers import Header as Header
from florilege.models.images.headers import orientation
from florilege.models.images.headers import read_header as read_header
from florilege.models.images.sniff import ACCEPTED as ACCEPTED
from florilege.models.images.sniff import ENDINGS as ENDINGS
from florilege.models.images.sniff import DamagedImage as DamagedImage
from florilege.models.images.sniff import ImageError as ImageError
from florilege.models.images.sniff import Kind
from florilege.models.images.sniff import OversizedImage as OversizedImage
from florilege.models.images.sniff import UnsupportedImage as UnsupportedImage

MAX_PIXELS: Final = 50_000_000
DECODER_VERSION: Final = 2
"""Of the pixels that this decoder gives; raise it with any change of them. 1 ignored profiles."""
_END_OF_JPEG: Final = b"\xff\xd9"
_RESTARTS: Final = [b"\xff" + bytes([marker]) for marker in range(0xD0, 0xD8)]
_Draft = tuple[str, tuple[int, int, float, float]] | None  # mode and box
STRIP: Final = 64  # rows of the shrunk picture per step; all at once takes far more memory

_RESAMPLE: Final = {"bilinear": Image.Resampling.BILINEAR, "bicubic": Image.Resampling.BICUBIC}
_TRANSPOSES: Final = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
# Plugin classes instead of `Image.open`, which would check the size again and warn.
_PLUGINS: Final[dict[Kind, Callable[[io.BytesIO], ImageFile.ImageFile]]] = {
    "jpeg": JpegImagePlugin.JpegImageFile,
    "png": PngImagePlugin.PngImageFile,
    "webp": WebPImagePlugin.WebPImageFile,
    "heic": pillow_heif.HeifImageFile,
    "avif": AvifImagePlugin.AvifImageFile,
}


Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class Preprocess:
    """How a picture becomes the input of a network; the content of ``preprocess.json``.

    The centre square of side ``crop_fraction`` times the short side is resized to
    ``image_size`` x ``image_size`` with antialiasing. The exported graph itself normalises with
    ``mean`` and ``std``, which are stored here only for information.
    """

    image_size: Annotated[int, Field(strict=True, ge=1, le=4096)]  # pixels of the side
    crop_fraction: Annotated[float, Field(ge=0.01, le=1)] = 1.0  # of the short side
    resample: Literal["bilinear", "bicubic"] = "bilinear"
    mean: tuple[Number, Number, Number] = (0.485, 0.456, 0.406)  # per channel, pixels in [0, 1]
    std: tuple[Positive, Positive, Positive] = (0.229, 0.224, 0.225)
    reducing_gap: Annotated[float, Field(ge=1, le=8)] = 2.0
    """Shrinking before the resize keeps this times the final size."""

    @property
    def reduced_side(self) -> int:
        """Smallest short side in pixels that shrinking before the resize may leave."""
        return math.ceil(self.reducing_gap * round(self.image_size / self.crop_fraction))

    def to_json(self) -> str:
        return json.dumps(asdict(self), indent=1)


def load(
    data: bytes | Header | Image.Image, preprocess: Preprocess, *, max_pixels: int = MAX_PIXELS
) -> npt.NDArray[np.uint8]:
    """Decode a picture into the input of a network.

    Args:
        data: An encoded JPEG, PNG, WebP, HEIC or AVIF picture, or its header; or a decoded picture.
        preprocess: Size and crop.
        max_pixels: Maximum number of pixels, checked in the header before decoding.

    Returns:
        sRGB values, uint8, shape ``(image_size, image_size, 3)``. A picture of this size is
        unchanged if ``crop_fraction`` is 1.

    Raises:
        ImageError: One of its three kinds, whatever the bytes are.
    """
    picture = _open(data, preprocess.reduced_side, max_pixels)
    side = preprocess.image_size
    crop = min(picture.width, picture.height) * preprocess.crop_fraction
    x, y = (picture.width - crop) / 2, (picture.height - crop) / 2
    box = (x, y, x + crop, y + crop)
    square = picture.image.resize((side, side), _RESAMPLE[preprocess.resample], box)
    # The crop is centred, so rotating it last gives the same result with far less work. So does
    # converting its colours, but for rounding.
    return np.array(_oriented(to_srgb(square, picture.profile), picture.orientation))


def decode(data: bytes | Header, *, target: int, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Decode a whole picture, upright and in sRGB, large enough to be resized to ``target``.

    If its short side is more than four times ``target``, the picture is shrunk by a whole factor to
    at least twice ``target``; a JPEG is shrunk during decoding. Other arguments and errors are
    those of :func:`load`.
    """
    picture = _open(data, 2 * target, max_pixels)
    return _oriented(to_srgb(picture.image, picture.profile), picture.orientation)


def plain_jpeg(
    picture: bytes | Header, *, side: int, quality: int, max_pixels: int = MAX_PIXELS
) -> bytes:
    """An upright JPEG with sides of at most ``side`` pixels, without metadata; errors as `load`."""
    image = decode(picture, target=side, max_pixels=max_pixels)
    image.thumbnail((side, side), Image.Resampling.LANCZOS)
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=quality, optimize=True)
    return buffer.getvalue()


class _Picture(NamedTuple):
    """A decoded RGB picture as stored, perhaps shrunk."""

    image: Image.Image  # the last pixels cover less if the factor does not divide the size
    width: float  # exact width of the whole picture in pixels of `image`
    height: float
    orientation: int = 1  # EXIF orientation, not yet applied
    profile: bytes = b""  # of its colours, not yet applied; empty for sRGB


def _open(data: bytes | Header | Image.Image, least: int, max_pixels: int) -> _Picture:
    if max_pixels < 1:
        raise ValueError(f"max_pixels must be at least 1, got {max_pixels}")
    if isinstance(data, Image.Image):
        return _shrunk_picture(data, least, *data.size)
    header = data if isinstance(data, Header) else read_header(data)
    _check_pixels(header.width, header.height, max_pixels)
    try:
        return _decoded(header, least, max_pixels)
    except ImageError:
        raise
    except (MemoryError, Image.DecompressionBombError) as error:  # the latter only for huge WebP
        raise OversizedImage("not enough memory to decode this picture") from error
    # Decoders raise almost anything on damaged input, SyntaxError too.
    except Exception as error:
        raise DamagedImage(f"the {header.kind} picture is damaged or cut short") from error


def _check_pixels(width: int, height: int, max_pixels: int) -> None:
    if width * height > max_pixels:
        raise OversizedImage(
            f"{width} x {height} pixels; at most {max_pixels} are allowed: send a smaller picture",
            limit=max_pixels,
        )


def _decoded(header: Header, least: int, max_pixels: int) -> _Picture:
    if not header.endless:
        image, drafted = _loaded(header, header.pixels, least, max_pixels)
    else:
        quiet, noisy = _ended(header.pixels)
        image, drafted = _loaded(header, quiet, least, max_pixels)
        if image != _loaded(header, noisy, least, max_pixels)[0]:
            raise DamagedImage("the jpeg ends before its last row")
    width, height = drafted[1][2:] if drafted else image.size
    exif_orientation = header.orientation or orientation(image.info.get("exif") or b"")
    profile = header.profile if image.mode in COLOUR_MODES else b""
    picture = _shrunk_picture(image, least, width, height)
    return picture._replace(orientation=exif_orientation, profile=profile)


def _ended(pixels: bytes) -> tuple[bytes, bytes]:
    """A JPEG that lacks its end marker with two ends; it lacks more if they look different.

    What follows the last row changes no pixel. A missing row is grey with the first end, and full
    of noise with the second, which begins with what is left of a part between restart markers and
    continues with the next one.
    """
    # Half a marker at the end would end the row before the noise does.
    pixels = pixels.rstrip(b"\xff")
    scan = pixels.rfind(b"\xff\xda")
    places = [pixels.rfind(marker, scan) for marker in _RESTARTS]
    last = -1 if max(places) < 0 else places.index(max(places))
    noise = b"\xaa" * 256 + _RESTARTS[(last + 1) % 8] + b"\x55" * 256
    return pixels + _END_OF_JPEG, pixels + noise + _END_OF_JPEG


def _loaded(
    header: Header, pixels: bytes, least: int, max_pixels: int
) -> tuple[ImageFile.ImageFile, _Draft]:
    """A decoded picture, and the draft of a JPEG that was shrunk."""
    image = _PLUGINS[header.kind](io.BytesIO(pixels))
    # Checked a second time, and again once it is loaded: the decoder may read another size than we
    # did.
    _check_pixels(*image.size, max_pixels)
    drafted = image.draft(None, (least, least)) if header.kind == "jpeg" else None
    image.load()
    _check_pixels(*image.size, max_pixels)
    return image, drafted


def _shrunk_picture(image: Image.Image, least: int, width: float, height: float) -> _Picture:
    factor = max(1, min(image.size) // least)
    shrunk = _shrunk_rgb(image, factor)
    return _Picture(shrunk, width / factor, height / factor)


def _shrunk_rgb(image: Image.Image, factor: int) -> Image.Image:
    """RGB, each pixel the mean of ``factor`` x ``factor``; done in strips to save memory."""
    if factor == 1 and _is_rgb(image):
        return image
    width, height = image.size
    shrunk = Image.new("RGB", (-(-width // factor), -(-height // factor)))
    for top in range(0, height, STRIP * factor):
        strip = image.crop((0, top, width, min(top + STRIP * factor, height)))
        shrunk.paste(_rgb(strip).reduce(factor), (0, top // factor))
    return shrunk


def _is_rgb(image: Image.Image) -> bool:
    return image.mode == "RGB" and not image.has_transparency_data


def _rgb(image: Image.Image) -> Image.Image:
    """RGB from any mode; transparent parts become white."""
    if image.mode.startswith("I;16"):
        image = _eight_bit(image)
    if _is_rgb(image):
        return image
    if not image.has_transparency_data:
        return image.convert("RGB")
    image = image.convert("RGBA")
    white = Image.new("RGB", image.size, (255, 255, 255))
    white.paste(image, mask=image)
    return white


def _eight_bit(image: Image.Image) -> Image.Image:
    """The high byte of 16-bit grey, as in Pillow's 16-bit colour; Pillow itself clips grey."""
    values = np.asarray(image).astype(np.uint16)
    grey = (values >> 8).astype(np.uint8)
    key = image.info.get("transparency")
    if isinstance(key, int):
        grey[values == key] = 255
    return Image.fromarray(grey)


def _oriented(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(_TRANSPOSES[orientation]) if orientation in _TRANSPOSES else image
