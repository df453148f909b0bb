"""A graph in OpenVINO, which runs networks on a CPU in float32, or in bf16 for half the cost."""

import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilege.cores import cores
from florilege.errors import UsageError, install_hint
from florilege.models.runtime import silence_telemetry

_TYPES: Final = {"u8": "tensor(uint8)", "f32": "tensor(float)"}

_FIRST_RUN: Final = threading.Lock()


class Node(NamedTuple):
    """An input or output of a graph, described as ONNX Runtime does."""

    name: str
    type: str
    shape: list[int]


def open_in_openvino(
    content: bytes, shapes: Mapping[str, Sequence[int]], *, bf16: bool
) -> "OpenVinoGraph":
    """A graph for one picture at a time; any number of threads may run it at once.

    Args:
        content: Of an ONNX file.
        shapes: Of its inputs, by name. A fixed shape saves about a fifth of the time.
        bf16: Whether to calculate with 16 bits, of which 8 are the mantissa.

    Raises:
        UsageError: OpenVINO is missing, or the processor cannot calculate in bf16.
        Exception: Of OpenVINO, where it cannot read or run the graph.
    """
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
            "this processor has no bf16 (on x86 AVX-512 or AMX): add --runtime onnxruntime, or "
            "calibrate with --runtime openvino --precision float32"
        )
    model = core.read_model(content)
    model.reshape({name: list(shape) for name, shape in shapes.items()})
    settings = {
        "INFERENCE_PRECISION_HINT": "bf16" if bf16 else "f32",
        "NUM_STREAMS": cores(),  # a thread each: photos run side by side, each on one core
        "INFERENCE_NUM_THREADS": cores(),
        "ENABLE_CPU_PINNING": False,
    }
    provider = f"OpenVINO {'bf16' if bf16 else 'float32'}"
    graph = OpenVinoGraph(core.compile_model(model, "CPU", settings), provider)
    with _FIRST_RUN:  # two threads that are the first to make a tensor wait for each other forever
        graph.run([], {name: np.zeros(shape, np.uint8) for name, shape in shapes.items()})
    return graph


class OpenVinoGraph:
    """What :class:`florilege.models.session.Session` needs of a session of ONNX Runtime."""

    def __init__(self, compiled: Any, provider: str) -> None:
        self._compiled, self._provider = compiled, provider
        self._of_thread = threading.local()  # a request of OpenVINO serves one thread at a time

    def run(
        self, names: Sequence[str], feeds: Mapping[str, NDArray[Any]]
    ) -> list[NDArray[np.float32]]:
        """Named outputs for some pictures, one after the other, so that no digit depends on how
        many there are."""
        if not hasattr(self._of_thread, "request"):
            self._of_thread.request = self._compiled.create_infer_request()
        rows = []
        for row in range(len(next(iter(feeds.values())))):
            one = {name: values[row : row + 1] for name, values in feeds.items()}
            outputs = self._of_thread.request.infer(one, share_inputs=True, share_outputs=True)
            rows.append([outputs[name].copy() for name in names])
        return [np.concatenate(parts) for parts in zip(*rows, strict=True)]

    def get_providers(self) -> list[str]:
        """What it runs on."""
        return [self._provider]

    def get_inputs(self) -> list[Node]:
        """Its inputs."""
        return [_node(port) for port in self._compiled.inputs]

    def get_outputs(self) -> list[Node]:
        """Its outputs."""
        return [_node(port) for port in self._compiled.outputs]


def _node(port: Any) -> Node:
    element = port.get_element_type().to_string()
    return Node(port.get_any_name(), _TYPES.get(element, element), list(port.get_shape()))
