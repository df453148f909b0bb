"""What can be wrong with the bytes of a picture: three errors, each with a stable code."""

from typing import ClassVar


class ImageError(ValueError):
    """Base of the three: these bytes give no picture. The message may be shown to the sender."""

    code: ClassVar[str] = "image_unreadable"  # stable, for machines


class UnsupportedImage(ImageError):
    """The bytes are not of an accepted image type; the message names those that are."""

    code = "unsupported_image_type"


class OversizedImage(ImageError):
    """More bytes or pixels than allowed."""

    code = "image_too_large"

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit  # in the unit the message names; None if memory ran out


class DamagedImage(ImageError):
    """The first bytes are of an accepted type, but the picture is broken or cut short."""
