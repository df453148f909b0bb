"""The signature of a graph: the format of its input, and the output to serve."""

from codecs import BOM_UTF8
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from florilege.errors import UsageError, os_error_as
from florilege.models.images import Number, Positive, Preprocess
from florilege.models.imported.graph import TYPES, Graph
from florilege.settings import complaint

_Layout = Literal["nchw", "nhwc"]
_Type = Literal["float32", "float16", "uint8"]


class Description(BaseModel):
    """The keys of the preprocess file; keys that the graph determines may be left out."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    layout: _Layout | None = None  # channels before height and width, or after them
    type: _Type | None = None  # of the numbers in the input
    channels: Literal["rgb", "bgr"] = "rgb"  # order of the colours
    size: int | None = Field(default=None, ge=1, le=4096)  # side of the picture in pixels
    resize: Literal["bilinear", "bicubic"] = "bilinear"  # how a photo is resized to that size
    crop: float = Field(default=1.0, ge=0.01, le=1)  # side of the centre square, of the short side
    scale: Positive | None = None  # factor for pixels from 0 to 255
    mean: tuple[Number, Number, Number] | None = None  # subtracted then, in the order of `channels`
    std: tuple[Positive, Positive, Positive] | None = None  # divides the result
    output: str | None = None  # name of the output that holds one number per class
    kind: Literal["logits", "probabilities"] | None = None  # of these; probabilities sum to one

    @classmethod
    def read(cls, path: Path | None) -> "Description":
        """Read a preprocess file; without a file, all keys have their defaults.

        Raises `UsageError` if it is unreadable, or has an unknown key or an invalid value.
        """
        if path is None:
            return cls()
        with os_error_as(UsageError, f"--preprocess {path} cannot be read"):
            content = path.read_bytes()
        try:
            return Description.model_validate_json(content.removeprefix(BOM_UTF8))
        except ValidationError as error:
            first, hint = error.errors()[0], ""
            if first["loc"] == ("resize",) and isinstance(first["input"], int):
                hint = "; use crop for a resize before the crop: 224 of 256 pixels is 0.875"
            raise UsageError(
                f"--preprocess {path}: {complaint(error, Description)}{hint}"
            ) from error


class InputFormat(Description):
    """A complete description: ``(pixel * scale - mean) / std``, then type and layout.

    For ``uint8``, pixels are unchanged: the scale is 1, mean and std are 0 and 1.
    """

    layout: _Layout
    type: _Type
    size: int
    scale: Positive = 1.0
    mean: tuple[Number, Number, Number] = (0.0, 0.0, 0.0)
    std: tuple[Positive, Positive, Positive] = (1.0, 1.0, 1.0)

    @property
    def facts(self) -> dict[str, str]:
        """The preparation of a photo, for people."""
        mean, std = (
            ", ".join(f"{number:.4g}" for number in three) for three in (self.mean, self.std)
        )
        scaled = f"pixel x {self.scale:.6g}, minus {mean}, over {std}"
        return {
            "normalisation": "pixels as they are" if self.type == "uint8" else scaled,
            "photos": f"{self.resize}, centre square of {self.crop:.4g} of the short side",
        }

    def prepare(self, pictures: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """Convert RGB pictures ``(batch, size, size, 3)`` to this format, in plain NumPy."""
        values: npt.NDArray[Any] = pictures if self.channels == "rgb" else pictures[..., ::-1]
        if self.type != "uint8":
            scale = np.float32(self.scale)
            mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
            values = ((values.astype(np.float32) * scale - mean) / std).astype(self.type)
        if self.layout == "nchw":
            values = values.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(values)

    @property
    def preprocess(self) -> Preprocess:
        """The ``preprocess.json`` of the bundle: mean and std for values from 0 to 1, red first."""
        order = slice(None) if self.channels == "rgb" else slice(None, None, -1)
        mean, std = (
            np.array(values)[order] / (255 * self.scale) for values in (self.mean, self.std)
        )
        return Preprocess(
            image_size=self.size,
            crop_fraction=self.crop,
            resample=self.resize,
            mean=mean.tolist(),
            std=std.tolist(),
        )

    @classmethod
    def of(cls, graph: Graph, description: Description) -> "InputFormat":
        """Combine the graph and the preprocess file into an input format.

        Raises `UsageError` if keys are missing, which the message names, the graph and the file
        contradict each other, or the graph does not take square pictures in colour.
        """
        number_type = _type(graph, description)
        shape = graph.shape or [None] * 4
        if len(shape) != 4:
            raise _refusal(graph, "it must be a batch of pictures, with four axes")
        layout = _layout(graph, shape, description)
        size = _size(graph, shape, layout, description)
        values = description.model_dump() | {"layout": layout, "type": number_type, "size": size}
        optional = _SCALING if number_type == "uint8" else set()
        if missing := [key for key in _EXAMPLES if values[key] is None and key not in optional]:
            raise UsageError(f"{_input_text(graph)} does not determine {_missing_keys(missing)}")
        return cls(**{key: value for key, value in values.items() if value is not None})


_EXAMPLES: Final[Mapping[str, str]] = {
    "layout": '"layout": "nchw" or "nhwc"',
    "size": '"size": SIDE_IN_PIXELS',
    "scale": '"scale": 0.00392156862745098',
    "mean": '"mean": [0.485, 0.456, 0.406]',
    "std": '"std": [0.229, 0.224, 0.225]',
}
_SCALING: Final = {"scale", "mean", "std"}
_AXIS: Final[Mapping[_Layout, int]] = {"nchw": 1, "nhwc": 3}
_SIDES: Final[Mapping[_Layout, slice]] = {"nchw": slice(2, 4), "nhwc": slice(1, 3)}


def _missing_keys(keys: list[str]) -> str:
    example = ", ".join(_EXAMPLES[key] for key in keys)
    usual = " (replace the numbers, which suit most networks trained on ImageNet)"
    return (
        f"{', '.join(keys)}. Add them to the file given with --preprocess, as JSON: {{{example}}}"
        f"{usual if 'scale' in keys else ''}; docs/import.md explains each"
    )


def _type(graph: Graph, description: Description) -> str:
    if graph.type is None:
        raise _refusal(graph, f"its type must be one of {', '.join(TYPES.values())}")
    if description.type not in (None, graph.type):
        conflict = f"it is {graph.type}, but the preprocess file says {description.type}"
        raise _refusal(graph, conflict)
    scaling = [name for name in description.model_dump(exclude_none=True) if name in _SCALING]
    if graph.type == "uint8" and scaling:
        raise _refusal(graph, f"it takes unscaled pixels: leave out {', '.join(scaling)}")
    return graph.type


def _layout(graph: Graph, shape: list[int | None], description: Description) -> _Layout | None:
    """The layout in the file, or the only one that the shape allows; None if it allows both."""
    channels = {
        layout: shape[axis]
        for layout, axis in _AXIS.items()
        if shape[axis] in (3, None) and description.layout in (None, layout)
    }
    if not channels:
        pictures = f"as {description.layout}" if description.layout else "in colour"
        raise _refusal(graph, f"pictures {pictures} have three channels, which do not fit")
    possible = [layout for layout, count in channels.items() if count == 3] or list(channels)
    return possible[0] if len(possible) == 1 else None


def _size(
    graph: Graph, shape: list[int | None], layout: _Layout | None, description: Description
) -> int | None:
    sizes = {side for side in (shape[_SIDES[layout]] if layout else ()) if side is not None}
    if len(sizes) > 1:
        raise _refusal(graph, "only square pictures are supported")
    size = next(iter(sizes), None)
    if size and description.size not in (None, size):
        conflict = f"it takes {size} pixels, but the preprocess file says {description.size}"
        raise _refusal(graph, conflict)
    return size or description.size


def _refusal(graph: Graph, reason: str) -> UsageError:
    return UsageError(f"{_input_text(graph)} does not take pictures: {reason}")


def _input_text(graph: Graph) -> str:
    dims = "of unknown shape"
    if graph.shape is not None:
        dims = f"({', '.join('?' if side is None else str(side) for side in graph.shape)})"
    return f"the input `{graph.input.name}`, {graph.type or 'another type'} {dims},"


Arrays = Mapping[str, npt.NDArray[Any]]

_SUM_TOLERANCE: Final = 0.02  # of the sum that identifies probabilities
_DECLARED_SUM_TOLERANCE: Final = 0.25  # for declared probabilities: in eight bits, errors add up


@dataclass(frozen=True, kw_only=True)
class OutputChoice:
    """The tensors of a graph to serve.

    ``link`` is the function from ``logits`` to the graph's output: ``softmax``, ``sigmoid``, or
    None for the identity. ``log`` marks probabilities whose logits are not in the graph.
    """

    output: str
    logits: str  # the tensor
    link: str | None
    log: bool
    features: str | None  # the tensor; None for no features

    @property
    def kind(self) -> str:
        return "logits" if self.link is None else "probabilities"

    @classmethod
    def of(
        cls, graph: Graph, outputs: Arrays, description: Description, *, classes: int
    ) -> "OutputChoice":
        """Choose the output and the tensor of its logits.

        ``outputs`` are those for a batch of pictures; ``classes`` is the number of rows of the
        class table. Raises `UsageError` if no output or several have one number per class, or the
        numbers contradict the preprocess file.
        """
        output = _output_name(graph, outputs, description.output, classes)
        rows = outputs[output].reshape(len(outputs[output]), -1).astype(np.float64)
        logits, link = graph.logits_behind(output)
        kind = _kind(output, rows, link, description.kind)
        if link is None:
            logits, link = output, "softmax" if kind == "probabilities" else None
        return cls(
            output=output,
            logits=logits,
            link=link,
            log=link is not None and logits == output,
            features=graph.features_behind(logits),
        )


def _output_name(graph: Graph, outputs: Arrays, name: str | None, classes: int) -> str:
    numbers = _candidates(graph, outputs, name)
    fits = [name for name, value in numbers.items() if _columns(value) == classes]
    if not fits:
        raise _no_fit(graph, numbers or outputs, classes)
    logits = {tensor for output in fits if (tensor := graph.logits_behind(output)[0]) != output}
    logits &= set(fits)
    if len(logits) == 1:  # served instead of their softmax, which is an output too
        return logits.pop()
    if len(fits) > 1:
        raise UsageError(
            f"several outputs hold a number for each of the {classes:,} classes: choose one in the "
            f'file given with --preprocess, {{"output": "{fits[0]}"}}; there are '
            f"{', '.join(fits)}"
        )
    return fits[0]


def _candidates(graph: Graph, outputs: Arrays, name: str | None) -> Arrays:
    """The floating-point outputs, or only the one named ``name``."""
    if name in graph.mappings:
        raise _no_array(name)
    numbers = {key: row for key, row in outputs.items() if np.issubdtype(row.dtype, np.floating)}
    if name is None:
        return numbers
    if name not in numbers:
        raise UsageError(f"the graph has no output {name!r} of numbers; it has {_listed(outputs)}")
    return {name: numbers[name]}


def _columns(value: npt.NDArray[Any]) -> int | None:
    """The number of values per picture; None if they have several axes."""
    sides = [side for side in value.shape[1:] if side != 1]
    return int(np.prod(sides)) if value.ndim > 1 and len(sides) <= 1 else None


def _no_array(output: str) -> UsageError:
    return UsageError(
        f"the output `{output}` holds a mapping or list for the pictures, not an array with a "
        "number for each class: export the model again with `zipmap=False` (skl2onnx: "
        "`options={'zipmap': False}`)"
    )


def _no_fit(graph: Graph, outputs: Arrays, classes: int) -> UsageError:
    if graph.mappings:
        return _no_array(graph.mappings[0])
    if outputs and all(value.ndim < 2 for value in outputs.values()):
        return UsageError(
            f"the output `{min(outputs)}` has no axis for pictures and another for classes: "
            "export the model again without `squeeze`"
        )
    message = (
        f"classes.csv must have one row for each number of the output, in its order; it has "
        f"{classes:,} rows, but the graph has {_listed(outputs)}"
    )
    if any(_columns(value) == classes + 1 for value in outputs.values()):
        message += (
            ": one more, perhaps a background class, which comes first in TensorFlow networks. "
            "Add a row for it in its place"
        )
    return UsageError(message)


def _listed(outputs: Arrays) -> str:
    each = (
        f"`{name}` ({', '.join(['batch', *map(str, value.shape[1:])])})"
        for name, value in outputs.items()
    )
    return ", ".join(each) or "no array"


def _kind(
    output: str, rows: npt.NDArray[np.float64], link: str | None, declared: str | None
) -> str:
    """``logits`` or ``probabilities``."""
    sums = rows.sum(axis=1)
    tolerance = _DECLARED_SUM_TOLERANCE if declared == "probabilities" else _SUM_TOLERANCE
    likely = "probabilities" if link or _sum_to_one(rows, tolerance) else "logits"
    if declared is None and likely == "logits" and rows.min() >= 0 and rows.max() <= 1:
        raise UsageError(
            f"`{output}` holds numbers from 0 to 1 that do not sum to one: specify their kind in "
            'the file given with --preprocess, {"kind": "logits"} or {"kind": "probabilities"}'
        )
    if declared not in (None, likely):
        fault = (
            'logits, but these are probabilities: leave out "kind"'
            if declared == "logits"
            else f"probabilities, but they do not sum to one: {sums.min():.3g} to {sums.max():.3g}"
        )
        raise UsageError(f"the preprocess file says that `{output}` holds {fault}")
    return likely


def _sum_to_one(rows: npt.NDArray[np.float64], tolerance: float) -> bool:
    """Whether each row holds the probabilities of several classes."""
    if rows.shape[1] == 1 or not (rows >= 0).all():
        return False
    return bool(np.abs(rows.sum(axis=1) - 1).max() < tolerance)
