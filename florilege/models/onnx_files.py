"""Refuse an ONNX graph that names files: a runtime would read them from the machine that serves.

A tensor may be stored in a file that the graph names. ONNX Runtime reads it from the working
folder, OpenVINO from anywhere. So a graph of a stranger could serve the contents of a file of this
machine. This module reads just enough of the serialised graph to know; it does without the package
`onnx`, which servers lack.

Numbers of fields are those of onnx.proto; the encoding is that of protocol buffers.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from florilege.errors import BundleError

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
