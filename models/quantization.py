"""A graph whose convolutions calculate with numbers of eight bits, by ONNX Runtime's quantisation.

Weights get a scale for each channel. What flows between convolutions gets one scale a tensor, from
how large its numbers are on training photos; the few largest are cut off. Input and outputs stay as
they are. Normalisation, pooling, features and the last layer calculate in float32: they take next
to no time, and scores depend on them directly.
"""

import io
import tempfile
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Final

import numpy as np
import numpy.typing as npt
import onnx
from onnxruntime.quantization import CalibrationMethod, QuantType, quantize_static
from onnxruntime.quantization.quant_utils import add_pre_process_metadata

from florilege.errors import BundleError
from florilege.models.onnx_graph import without_origins
from florilege.models.session import INPUT
from florilege.progress import Advance, progress

PERCENTILE: Final = 99.99
"""Of the numbers of a tensor, this many per cent keep their value; the rest are cut off."""

_QUANTISED: Final = ("QuantizeLinear", "DequantizeLinear", "ConvInteger", "QLinearConv")


def int8_graph(
    model: bytes, photos: int, picture: Callable[[int], npt.NDArray[np.uint8]], *, name: str
) -> bytes:
    """The same network in eight bits.

    Args:
        model: An ONNX graph that takes ``image``, uint8 ``(batch, height, width, 3)``.
        photos: How many pictures there are to learn from how large its numbers are.
        picture: Makes one of them, ``(height, width, 3)``.
        name: What an error calls the graph.

    Raises:
        BundleError: It calculates with eight bits already, or has no convolution.
    """
    graph = onnx.load_from_string(model)
    kinds = {node.op_type for node in graph.graph.node}
    if kinds & set(_QUANTISED):
        raise BundleError(f"{name} calculates with eight bits already: take the bundle before that")
    if "Conv" not in kinds:
        raise BundleError(f"{name} has no convolution, and nothing else would be quantised")
    graph = onnx.shape_inference.infer_shapes(graph)
    add_pre_process_metadata(graph)  # the exporter has done what ONNX Runtime would warn of
    with tempfile.TemporaryDirectory() as scratch, progress(photos, "measuring ranges") as advance:
        path = Path(scratch) / "int8.onnx"
        with redirect_stdout(io.StringIO()):  # it prints what it does
            quantize_static(
                graph,
                path,
                _Pictures(photos, picture, advance),
                op_types_to_quantize=["Conv"],
                per_channel=True,
                activation_type=QuantType.QUInt8,
                weight_type=QuantType.QInt8,
                calibrate_method=CalibrationMethod.Percentile,
                # one photo at a time: it would hold every tensor of all photos otherwise
                extra_options={"CalibPercentile": PERCENTILE, "CalibStridedMinMax": 1},
            )
        return without_origins(onnx.load(path))


class _Pictures:
    """Pictures one by one, as ONNX Runtime asks for them."""

    def __init__(
        self, photos: int, picture: Callable[[int], npt.NDArray[np.uint8]], advance: Advance
    ) -> None:
        self._photos, self._picture, self._advance = photos, picture, advance
        self._rows = range(0)

    def __len__(self) -> int:
        return self._photos

    def set_range(self, start_index: int, end_index: int) -> None:
        self._rows = range(start_index, end_index)

    def get_next(self) -> dict[str, npt.NDArray[np.uint8]] | None:
        if not self._rows:
            return None
        row, self._rows = self._rows[0], self._rows[1:]
        self._advance()
        return {INPUT: self._picture(row)[np.newaxis]}
