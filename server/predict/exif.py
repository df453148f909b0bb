"""When and where a photo was taken, from its EXIF block."""

from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import pillow_heif
from PIL import ExifTags, Image, UnidentifiedImageError


class Capture(NamedTuple):
    """What a camera wrote; None where it is missing or unreadable."""

    time: datetime | None = None  # with its offset from UTC only if the camera knew it
    latitude: float | None = None  # degrees, WGS84
    longitude: float | None = None


def read_capture(path: str | Path) -> Capture:
    """Read the EXIF block of a file; anything that is missing or damaged is None."""
    try:
        with _open(Path(path)) as image:
            exif = image.getexif()
            camera = exif.get_ifd(ExifTags.IFD.Exif)
            position = exif.get_ifd(ExifTags.IFD.GPSInfo)
    except Exception:  # Pillow raises almost anything on damaged files
        return Capture()
    tags = ExifTags.GPS
    latitude = _degrees(position, tags.GPSLatitude, tags.GPSLatitudeRef, "S", 90)
    longitude = _degrees(position, tags.GPSLongitude, tags.GPSLongitudeRef, "W", 180)
    if latitude is None or longitude is None:
        return Capture(_time(camera))
    return Capture(_time(camera), latitude, longitude)


def _open(path: Path) -> Image.Image:
    try:
        return Image.open(path)
    except UnidentifiedImageError:
        return pillow_heif.HeifImageFile(path)  # type: ignore[no-untyped-call]  # not typed


def _time(camera: dict[int, Any]) -> datetime | None:
    text = str(camera.get(ExifTags.Base.DateTimeOriginal, ""))
    offset = str(camera.get(ExifTags.Base.OffsetTimeOriginal, ""))
    for value, form in ((text + offset, "%Y:%m:%d %H:%M:%S%z"), (text, "%Y:%m:%d %H:%M:%S")):
        try:
            return datetime.strptime(value, form)  # a camera may know no offset
        except ValueError:
            continue
    return None


def _degrees(
    position: dict[int, Any], value: int, reference: int, negative: str, most: int
) -> float | None:
    try:
        degrees, minutes, seconds = (float(part) for part in position[value])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        return None
    total = degrees + minutes / 60 + seconds / 3600
    if not 0 <= total <= most:
        return None
    return round(-total if position.get(reference) == negative else total, 6)
