"""How a graph wants its pictures: read from it where it says so, asked for where it does not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from florilege.errors import UsageError
from florilege.models.images import Preprocess
from florilege.models.imported.description import Description, Layout, Type
from florilege.models.imported.graph import TYPES, Graph

Three = tuple[float, float, float]

ASKED: Final[Mapping[str, str]] = {
    "layout": '"layout": "nchw" or "nhwc"',
    "size": '"size": SIDE_IN_PIXELS',
    "scale": '"scale": 0.00392156862745098',
    "mean": '"mean": [0.485, 0.456, 0.406]',
    "std": '"std": [0.229, 0.224, 0.225]',
}
_AXIS: Final[Mapping[Layout, int]] = {"nchw": 1, "nhwc": 3}
_SIDES: Final[Mapping[Layout, slice]] = {"nchw": slice(2, 4), "nhwc": slice(1, 3)}


@dataclass(frozen=True, kw_only=True)
class Form:
    """How a network wants its pictures: ``(pixel * scale - mean) / std``, then type and layout.

    ``mean`` and ``std`` are in the order of ``channels``. Of type ``uint8`` it takes pixels as they
    are: the scale is 1, mean and std are 0 and 1.
    """

    layout: Layout
    type: Type
    channels: str
    size: int
    scale: float
    mean: Three
    std: Three

    def prepared(self, pictures: npt.NDArray[np.uint8]) -> npt.NDArray[Any]:
        """RGB pictures ``(batch, size, size, 3)`` as the network wants them, in plain NumPy."""
        ordered = pictures if self.channels == "rgb" else pictures[..., ::-1]
        if self.type == "uint8":
            values: npt.NDArray[Any] = ordered
        else:
            scale = np.float32(self.scale)
            mean, std = np.array(self.mean, np.float32), np.array(self.std, np.float32)
            values = ((ordered.astype(np.float32) * scale - mean) / std).astype(self.type)
        if self.layout == "nchw":
            values = values.transpose(0, 3, 1, 2)
        return np.ascontiguousarray(values)

    def preprocess(self, description: Description) -> Preprocess:
        """The ``preprocess.json`` of the bundle: mean and std for values from 0 to 1, red first."""
        unit = 255 * self.scale
        mean, std = ([number / unit for number in three] for three in (self.mean, self.std))
        if self.channels == "bgr":
            mean, std = mean[::-1], std[::-1]
        return Preprocess(
            image_size=self.size,
            crop_fraction=description.crop,
            resample=description.resize,
            mean=(mean[0], mean[1], mean[2]),
            std=(std[0], std[1], std[2]),
        )


def form_of(graph: Graph, said: Description) -> Form:
    """Put together what the graph and the preprocess file say.

    Raises:
        UsageError: Something is still open, and the message names the keys to add; the two
            contradict each other; or the graph does not take square pictures in colour.
    """
    kind = _type(graph, said)
    shape = graph.shape or [None] * 4
    if len(shape) != 4:
        raise _refusal(graph, "it has to be a batch of pictures, with four axes")
    layout = _layout(graph, shape, said)
    size = said.size if layout is None else _size(graph, shape[_SIDES[layout]], said)
    open_keys = [name for name, found in (("layout", layout), ("size", size)) if found is None]
    if kind != "uint8":
        open_keys += [name for name in ("scale", "mean", "std") if getattr(said, name) is None]
    if open_keys:
        raise UsageError(_question(graph, open_keys))
    assert layout is not None
    assert size is not None
    return Form(
        layout=layout,
        type=kind,
        channels=said.channels,
        size=size,
        scale=said.scale or 1.0,
        mean=said.mean or (0.0, 0.0, 0.0),
        std=said.std or (1.0, 1.0, 1.0),
    )


def _type(graph: Graph, said: Description) -> Type:
    found: Any = graph.type
    if found is None:
        raise _refusal(graph, f"its type has to be one of {', '.join(TYPES.values())}")
    if said.type not in (None, found):
        raise _refusal(graph, f"it is {found}, but the preprocess file says {said.type}")
    scaled = [name for name in ("scale", "mean", "std") if getattr(said, name) is not None]
    if found == "uint8" and scaled:
        raise _refusal(graph, f"it takes pixels as they are: leave out {', '.join(scaled)}")
    return found  # type: ignore[no-any-return]  # one of TYPES


def _layout(graph: Graph, shape: list[int | None], said: Description) -> Layout | None:
    fits: list[Layout] = [layout for layout, axis in _AXIS.items() if shape[axis] in (3, None)]
    if not fits or (said.layout and said.layout not in fits):
        wanted = f"as {said.layout}" if said.layout else "in colour"
        raise _refusal(graph, f"pictures {wanted} have three channels, and it does not fit them")
    sure = [layout for layout in fits if shape[_AXIS[layout]] == 3]
    likely = sure or fits
    return said.layout or (likely[0] if len(likely) == 1 else None)


def _size(graph: Graph, sides: list[int | None], said: Description) -> int | None:
    found = {side for side in sides if side is not None}
    if len(found) > 1:
        raise _refusal(graph, "only square pictures are made")
    size = found.pop() if found else None
    if size and said.size not in (None, size):
        raise _refusal(graph, f"it takes {size} pixels, but the preprocess file says {said.size}")
    return size or said.size


def _question(graph: Graph, keys: list[str]) -> str:
    example = ", ".join(ASKED[key] for key in keys)
    usual = " (the numbers are those of most networks trained on ImageNet; put yours)"
    return (
        f"{_shown(graph)} leaves {', '.join(keys)} open. Say them in the file given with "
        f"--preprocess, as JSON: {{{example}}}{usual if 'scale' in keys else ''}; docs/import.md "
        "explains each"
    )


def _refusal(graph: Graph, why: str) -> UsageError:
    return UsageError(f"{_shown(graph)} cannot be given pictures: {why}")


def _shown(graph: Graph) -> str:
    dims = "of unknown shape"
    if graph.shape is not None:
        dims = f"({', '.join('?' if side is None else str(side) for side in graph.shape)})"
    return f"the input `{graph.input.name}`, {graph.type or 'another type'} {dims},"
