"""Run a graph in OpenVINO on a CPU, in float32, or in bf16 at half the cost."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilege.cores import cores
from florilege.errors import UsageError, install_hint
from florilege.models.onnx_files import refuse_files
from florilege.models.runtime import silence_telemetry

_TYPES: Final = {"u8": "tensor(uint8)", "f32": "tensor(float)"}

_FIRST_RUN: Final = threading.Lock()


class _Node(NamedTuple):
    """An input or output of a graph, described as in ONNX Runtime."""

    name: str
    type: str
    shape: list[int]


def open_in_openvino(content: bytes, side: int, *, bf16: bool) -> "_OpenVinoGraph":
    """Open a graph for one picture at a time; any number of threads may run it at once.

    Pictures have ``side`` pixels: a fixed shape saves about a fifth of the time. ``bf16`` computes
    with 16 bits, of which 8 are the mantissa.

    Raises:
        UsageError: OpenVINO is missing, or the processor does not support bf16.
        BundleError: The graph names files, which OpenVINO would read from anywhere, or is none.
        Exception: OpenVINO cannot read or run the graph.
    """
    refuse_files(content)
    silence_telemetry()
    try:
        import openvino
    except ImportError as error:
        raise UsageError(
            f"OpenVINO cannot be imported ({error}): {install_hint('openvino')}, or add "
            "--runtime onnxruntime"
        ) from error
    core = openvino.Core()
    if bf16 and "BF16" not in core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        raise UsageError(
            "this processor does not support bf16 (AVX-512 or AMX on x86): add --runtime "
            "onnxruntime, or calibrate with --runtime openvino --precision float32"
        )
    model = core.read_model(content)
    model.reshape([1, side, side, 3])
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32",
        "NUM_STREAMS": cores(),  # one thread per stream: photos run in parallel, one per core
        "INFERENCE_NUM_THREADS": cores(),
        "ENABLE_CPU_PINNING": False,
    }
    provider = f"OpenVINO {'bf16' if bf16 else 'float32'}"
    graph = _OpenVinoGraph(core.compile_model(model, "CPU", settings), provider)
    with _FIRST_RUN:  # two threads that both create the first tensor deadlock
        graph.run([], {graph.get_inputs()[0].name: np.zeros((1, side, side, 3), np.uint8)})
    return graph


class _OpenVinoGraph:
    """An OpenVINO graph with the methods of an ONNX Runtime session that ``Session`` uses."""

    def __init__(self, compiled: Any, provider: str) -> None:
        self._compiled, self._provider = compiled, provider
        self._local = threading.local()  # an OpenVINO request serves one thread at a time

    def run(
        self, names: Sequence[str], feeds: Mapping[str, NDArray[Any]]
    ) -> list[NDArray[np.float32]]:
        """Named outputs for some pictures, computed one by one so that results do not depend on
        their number."""
        if not hasattr(self._local, "request"):
            self._local.request = self._compiled.create_infer_request()
        rows = []
        for row in range(len(next(iter(feeds.values())))):
            picture = {name: values[row : row + 1] for name, values in feeds.items()}
            outputs = self._local.request.infer(picture, share_inputs=True, share_outputs=True)
            rows.append([outputs[name].copy() for name in names])
        return [np.concatenate(parts) for parts in zip(*rows, strict=True)]

    def get_providers(self) -> list[str]:
        return [self._provider]

    def get_inputs(self) -> list[_Node]:
        return [_node(port, port.get_node().get_friendly_name()) for port in self._compiled.inputs]

    def get_outputs(self) -> list[_Node]:
        """One for each name: OpenVINO gives a tensor also the names of those that equal it."""
        return [_node(port, name) for port in self._compiled.outputs for name in port.get_names()]


def _node(port: Any, name: str) -> _Node:
    element = port.get_element_type().to_string()
    return _Node(name, _TYPES.get(element, element), list(port.get_shape()))
