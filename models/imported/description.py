"""The file of ``import --preprocess``: the input format of a classifier trained elsewhere."""

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from florilege.errors import UsageError

Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Layout = Literal["nchw", "nhwc"]
Type = Literal["float32", "float16", "uint8"]
Kind = Literal["logits", "probabilities"]


class Description(BaseModel):
    """The keys of the file; keys that the graph determines may be left out."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", strict=True, use_attribute_docstrings=True
    )

    layout: Layout | None = None
    """Order of the axes: channels before height and width, or after them."""
    type: Type | None = None
    """Type of the numbers in the input."""
    channels: Literal["rgb", "bgr"] = "rgb"
    """Order of the colours."""
    size: int | None = Field(default=None, ge=1, le=4096)
    """Side of the picture in pixels."""
    resize: Literal["bilinear", "bicubic"] = "bilinear"
    """How a photo is resized to that size."""
    crop: float = Field(default=1.0, gt=0, le=1)
    """Side of the centre crop as a share of the short side of the photo."""
    scale: Positive | None = None
    """Factor for pixels from 0 to 255."""
    mean: tuple[Number, Number, Number] | None = None
    """Subtracted after scaling; one number per channel in the order of ``channels``."""
    std: tuple[Positive, Positive, Positive] | None = None
    """Divides the result; one number per channel."""
    output: str | None = None
    """Name of the output that holds one number per class."""
    kind: Kind | None = None
    """Kind of these numbers; probabilities sum to one."""


def read_description(path: Path | None) -> Description:
    """Read a preprocess file; without a file, all keys have their defaults.

    Raises:
        UsageError: The file is unreadable, or has an unknown key or an invalid value.
    """
    if path is None:
        return Description()
    try:
        return Description.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"--preprocess {path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise UsageError(f"--preprocess {path}: {_complaint(error)}") from error


def _complaint(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    name = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"unknown key {name!r}; keys are {', '.join(Description.model_fields)}"
    message = f"{first['msg'][0].lower()}{first['msg'][1:]}"
    if not name:
        return message
    hint = ""
    if name == "resize" and isinstance(first["input"], int):
        hint = "; use crop for a resize before the crop: 224 of 256 pixels is 0.875"
    return f"{name}: {message}, got {first['input']!r}{hint}"
