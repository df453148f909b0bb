"""What runs a network: ONNX Runtime or OpenVINO, its precision and its device.

Nothing else opens a graph that others have made: each is checked first. A tensor may be stored in a
file that the graph names. ONNX Runtime reads it from the working folder, OpenVINO from anywhere. So
a graph of a stranger could serve the contents of a file of this machine. The check reads just
enough of the serialised graph to know; it does without the package `onnx`, which servers lack.
"""

import os
import platform
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext, redirect_stdout
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, cast

from florilege.cores import cores
from florilege.errors import BundleError, UsageError, install_hint, installed

if TYPE_CHECKING:  # every command silences the telemetry, and most need no NumPy
    import numpy as np
    import numpy.typing as npt

CPU: Final = "CPUExecutionProvider"
CUDA: Final = "CUDAExecutionProvider"
DEVICES: Final = ("auto", "cpu", "cuda")
OPENVINO: Final = "openvino"
INPUT: Final = "image"  # of every graph of a bundle
FEATURES: Final = "features"  # its input of the last layer, (batch, dimensions); may be absent
RuntimeName = Literal["onnxruntime", "openvino"]
Precision = Literal["float32", "bf16"]
_WEIGHTS_FOLDER: Final = "session.model_external_initializers_file_folder_path"
WHEELS: Final = ("onnxruntime", "onnxruntime-gpu")


class Runtime(NamedTuple):
    """A library that runs networks, and its precision.

    The last digits differ between runtimes, so each needs its own calibration.
    """

    name: RuntimeName = "onnxruntime"
    precision: Precision = "float32"

    @classmethod
    def of(cls, name: RuntimeName, precision: Precision | None) -> "Runtime":
        """A runtime; by default OpenVINO computes in bf16 and ONNX Runtime in float32.

        Raises `ValueError` if ONNX Runtime does not support bf16 on this processor.
        """
        if name == OPENVINO:
            return cls(name, precision or "bf16")
        if precision == "bf16" and platform.machine() not in ("aarch64", "arm64"):
            raise ValueError(
                "precision bf16 needs runtime openvino: ONNX Runtime supports it only on ARM"
            )
        return cls(name, precision or "float32")

    @property
    def concurrency(self) -> int:
        """Threads that keep it busy; OpenVINO also runs the network in its own threads."""
        return cores() * (2 if self.name == OPENVINO else 1)

    @classmethod
    def fastest_float32(cls) -> "Runtime":
        """The fastest float32 runtime on a CPU: OpenVINO, if it is installed."""
        return cls(OPENVINO if installed(OPENVINO) else "onnxruntime", "float32")


def installed_wheels() -> dict[str, str]:
    """Versions of the installed ONNX Runtime wheels by name."""
    return {name: number for name in WHEELS if (number := installed(name))}


def silence_telemetry() -> None:
    """Disable the telemetry of the runtimes; call it before anything imports them.

    The Linux and macOS wheels of ONNX Runtime otherwise write a device id to the user's cache
    folder, and they contain the address for events; ``ORT_DISABLE_TELEMETRY=0`` keeps telemetry
    on. OpenVINO otherwise writes a device id to the home folder and reports each import to Google
    Analytics; without ``openvino_telemetry`` it does neither.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
    sys.modules.setdefault("openvino_telemetry", cast(ModuleType, None))  # cannot be imported


def import_runtime() -> ModuleType:
    """Import ``onnxruntime`` with its telemetry off.

    Raises `UsageError` if it is missing, or both wheels are installed and share one folder.
    """
    wheels = installed_wheels()
    if len(wheels) > 1:
        raise UsageError(
            "onnxruntime and onnxruntime-gpu are both installed and overwrite each other: run"
            f" `pip uninstall onnxruntime onnxruntime-gpu`, then {install_hint('cpu')}; use `gpu`"
            " instead of `cpu` for an NVIDIA card"
        )
    silence_telemetry()
    try:
        import onnxruntime
    except ImportError as error:
        raise UsageError(
            f"ONNX Runtime cannot be imported ({error}): install the extra `cpu`, or `gpu` for an"
            f" NVIDIA card: {install_hint('cpu')}"
        ) from error
    return onnxruntime  # type: ignore[no-any-return]  # the wheel ships no types


def open_graph(
    content: bytes,
    *,
    providers: Sequence[str] = (CPU,),
    quiet: bool = False,
    replayed: bool = False,
    bf16: bool = False,
    falls_back: bool = False,
) -> Any:
    """Open a graph in ONNX Runtime with one thread per call; ``quiet`` disables its log.

    With ``falls_back`` it goes to the CPU where a GPU fails, now or later.

    With ``bf16`` an ARM processor multiplies matrices in bf16 if it supports that. A GPU computes
    in full float32, not TF32, whose 10-bit mantissa would move scores past thresholds calibrated
    elsewhere. ``replayed`` is for `florilege.models.session.FixedBatch`.

    Raises:
        UsageError: As `import_runtime`.
        BundleError: The graph names files, or is none.
        Exception: ONNX Runtime cannot read or run the graph.
    """
    refuse_files(content)
    runtime = import_runtime()
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.execution_mode = runtime.ExecutionMode.ORT_SEQUENTIAL
    if quiet:
        options.log_severity_level = 4  # errors are still raised
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.add_session_config_entry("session.inter_op.allow_spinning", "0")
    options.add_session_config_entry("mlas.enable_gemm_fastmath_arm64_bfloat16", str(int(bf16)))
    # A second lock beside `refuse_files`: weights in other files are looked for where none can be,
    # and the compact format of ONNX Runtime, which that check does not read, is not recognised.
    options.add_session_config_entry(_WEIGHTS_FOLDER, os.devnull)
    options.add_session_config_entry("session.load_model_format", "ONNX")
    cuda = {"use_tf32": "0", "enable_cuda_graph": str(int(replayed))}
    configured = [(CUDA, cuda) if name == CUDA else name for name in providers]
    # It prints that it falls back; stdout is that of all threads, so it is not touched otherwise.
    with redirect_stdout(sys.stderr) if falls_back else nullcontext():
        return runtime.InferenceSession(
            content, options, providers=configured, enable_fallback=int(falls_back)
        )


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
    import numpy as np

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
    # Run once alone: two threads that both create the first tensor deadlock in OpenVINO.
    with _FIRST_RUN:
        graph.run([], {graph.get_inputs()[0].name: np.zeros((1, side, side, 3), np.uint8)})
    return graph


class _OpenVinoGraph:
    """An OpenVINO graph with the methods of an ONNX Runtime session that ``Session`` uses."""

    def __init__(self, compiled: Any, provider: str) -> None:
        self._compiled, self._provider = compiled, provider
        # Of each thread one request, which serves one thread at a time.
        self._local = threading.local()

    def run(
        self, names: Sequence[str], feeds: "Mapping[str, npt.NDArray[Any]]"
    ) -> "list[npt.NDArray[np.float32]]":
        """Named outputs for some pictures, computed one by one so that results do not depend on
        their number."""
        import numpy as np

        if not hasattr(self._local, "request"):
            self._local.request = self._compiled.create_infer_request()
        rows = []
        for row in range(len(next(iter(feeds.values())))):
            picture = {name: values[row : row + 1] for name, values in feeds.items()}
            # Copied below: shared outputs are memory of the request, which the next picture
            # overwrites.
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


# Numbers of fields are those of onnx.proto; the encoding is that of protocol buffers.
_TENSOR, _SPARSE, _GRAPH, _NODE = "TensorProto", "SparseTensorProto", "GraphProto", "NodeProto"
# The fields that hold tensors, directly or inside, with the message in each of them.
_HOLDERS: Final[Mapping[str, Mapping[int, str]]] = {
    "ModelProto": {7: _GRAPH, 20: "TrainingInfoProto", 25: "FunctionProto"},
    _GRAPH: {1: _NODE, 5: _TENSOR, 15: _SPARSE},
    _NODE: {5: "AttributeProto"},
    "AttributeProto": {5: _TENSOR, 6: _GRAPH, 10: _TENSOR, 11: _GRAPH, 22: _SPARSE, 23: _SPARSE},
    _SPARSE: {1: _TENSOR, 2: _TENSOR},
    "TrainingInfoProto": {1: _GRAPH, 2: _GRAPH},
    "FunctionProto": {7: _NODE, 11: "AttributeProto"},
    _TENSOR: {},
}
_METADATA: Final = 14  # of a model: entries of a key and a value
_EXTERNAL_DATA: Final = 13  # of a tensor: entries of a key and a value
_DATA_LOCATION: Final = 14  # of a tensor: 0 inside the graph, 1 outside
_SESSION_OPTIONS: Final = b"ort_config"
"""Metadata from which ONNX Runtime can take session options, such as writing a profile."""
_VARINT, _BYTES = 0, 2  # wire types
_FIXED_SIZES: Final[Mapping[int, int]] = {1: 8, 5: 4}  # bytes by wire type
_LONGEST_VARINT: Final = 10  # bytes


class _Field(NamedTuple):
    number: int
    wire_type: int
    value: int  # of a varint
    start: int  # where its bytes are, if it has bytes
    end: int


def refuse_files(content: bytes) -> None:
    """Refuse an ONNX graph that names a file, or brings options of ONNX Runtime.

    Raises:
        BundleError: It does, or the bytes are not an ONNX graph.
    """
    for file in weight_files(content):
        raise BundleError(
            f"some of its weights are stored in the file {file[:100]!r}, but a bundle's graph must "
            "hold all of them, or a stranger's bundle could read files of this machine; "
            "`florilege import` takes weights from the folder of an ONNX file"
        )
    metadata = (field for field in _fields(content, 0, len(content)) if field.number == _METADATA)
    if any(_entry(content, field).get(1) == _SESSION_OPTIONS for field in metadata):
        raise BundleError("its metadata sets options of ONNX Runtime (ort_config): remove them")


def without_origins(model: Any) -> bytes:
    """Serialise an ``onnx.ModelProto`` without the exporter's stack traces, paths and notes."""
    graph, functions = model.graph, model.functions
    nodes = (node for holder in (graph, *functions) for node in holder.node)
    values = (*graph.value_info, *graph.input, *graph.output, *graph.initializer)
    for message in (model, graph, *functions, *nodes, *values):
        for field in {"metadata_props", "doc_string"} & set(message.DESCRIPTOR.fields_by_name):
            message.ClearField(field)
    model.producer_name, model.producer_version = "florilege", ""
    return bytes(model.SerializeToString(deterministic=True))


def weight_files(content: bytes) -> Iterator[str]:
    """The file of each tensor of a serialised ONNX graph, at any depth, that is stored in one.

    It is a path as the graph names it, perhaps absolute, or empty. The weights are skipped, so it
    takes milliseconds. Unknown fields are skipped too, so graphs of newer versions of ONNX pass.

    Raises:
        BundleError: The bytes are not an ONNX graph.
    """
    # A list, no recursion: a stranger's graph may nest deeper than Python can.
    pending, messages = [("ModelProto", 0, len(content))], set[str]()
    while pending:
        message, start, end = pending.pop()
        messages.add(message)
        fields = list(_fields(content, start, end))
        if message == _TENSOR and any(map(_is_outside, fields)):
            yield _weight_file(content, fields)
        for field in fields:
            inner = _HOLDERS[message].get(field.number)
            if inner is not None:
                if field.wire_type != _BYTES:
                    raise _no_graph(field.start)
                pending.append((inner, field.start, field.end))
    if _GRAPH not in messages:
        raise _no_graph(len(content))


def _is_outside(field: _Field) -> bool:
    """Whether this field of a tensor says that it is in a file; both fields are for that alone."""
    inside = (field.wire_type, field.value) == (_VARINT, 0)
    return field.number == _EXTERNAL_DATA or (field.number == _DATA_LOCATION and not inside)


def _weight_file(content: bytes, fields: list[_Field]) -> str:
    """The last location of a tensor, which is the one that counts."""
    entries = [_entry(content, field) for field in fields if field.number == _EXTERNAL_DATA]
    files = [entry.get(2, b"") for entry in entries if entry.get(1) == b"location"]
    return b"".join(files[-1:]).decode(errors="replace")


def _entry(content: bytes, field: _Field) -> dict[int, bytes]:
    """The key, 1, and the value, 2, of an entry."""
    parts = _fields(content, field.start, field.end)
    return {part.number: content[part.start : part.end] for part in parts}


def _fields(content: bytes, start: int, end: int) -> Iterator[_Field]:
    """The fields of the message that fills these bytes."""
    at = start
    while at < end:
        tag, at = _varint(content, at, end)
        number, wire_type, value = tag >> 3, tag & 7, 0
        size = _FIXED_SIZES.get(wire_type, 0)
        if wire_type in (_VARINT, _BYTES):
            value, at = _varint(content, at, end)
            size = value if wire_type == _BYTES else 0
        elif not size:  # groups and undefined types: no ONNX file has any
            raise _no_graph(at)
        if at + size > end:
            raise _no_graph(at)
        yield _Field(number, wire_type, value, at, at + size)
        at += size


def _varint(content: bytes, at: int, end: int) -> tuple[int, int]:
    """The number at a place, and the place after it."""
    if at < end and (value := content[at]) < 0x80:  # nearly all of them
        return value, at + 1
    value = 0
    for shift in range(min(_LONGEST_VARINT, end - at)):
        byte = content[at + shift]
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return value, at + shift + 1
    raise _no_graph(at)


def _no_graph(at: int) -> BundleError:
    return BundleError(f"the file is not an ONNX graph, or damaged at byte {at:,}")
