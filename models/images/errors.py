"""What can be wrong with the bytes of a picture: three errors, each with a stable code."""

from typing import ClassVar


class ImageError(ValueError):
    """Base of the three: these bytes give no picture. The message is fit for the sender."""

    code: ClassVar[str] = "image_unreadable"  # stable, for machines


class UnsupportedImage(ImageError):
    """The bytes are of no accepted image type; the message names those that are."""

    code = "unsupported_image_type"


class ImageTooLarge(ImageError):
    """More bytes or pixels than allowed."""

    code = "image_too_large"

    def __init__(self, message: str, *, limit: int | None = None) -> None:
        super().__init__(message)
        self.limit = limit  # in the unit the message names; None where memory ran out


class DamagedImage(ImageError):
    """An accepted type by its first bytes, but broken or cut short."""
