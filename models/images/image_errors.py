"""Errors of unusable picture bytes: three kinds, each with a stable code."""

from typing import ClassVar


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
