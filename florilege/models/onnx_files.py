"""Refuse an ONNX graph that names files: a runtime would read them from the machine that serves.

A tensor may be stored in a file that the graph names. ONNX Runtime reads it from the working
folder, OpenVINO from anywhere. So a graph of a stranger could serve the contents of a file of this
machine. This module reads just enough of the serialised graph to know; it does without the package
`onnx`, which servers lack.

Numbers of fields are those of onnx.proto; the encoding is that of protocol buffers.
"""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from florilege.errors import BundleError

# The fields that hold tensors, directly or inside, with the message in each of them.
_HOLDERS: Final[Mapping[str, Mapping[int, str]]] = {
    "ModelProto": {7: "GraphProto", 20: "TrainingInfoProto", 25: "FunctionProto"},
    "GraphProto": {1: "NodeProto", 5: "TensorProto", 15: "SparseTensorProto"},
    "NodeProto": {5: "AttributeProto"},
    "AttributeProto": {
        5: "TensorProto",
        6: "GraphProto",
        10: "TensorProto",
        11: "GraphProto",
        22: "SparseTensorProto",
        23: "SparseTensorProto",
    },
    "SparseTensorProto": {1: "TensorProto", 2: "TensorProto"},
    "TrainingInfoProto": {1: "GraphProto", 2: "GraphProto"},
    "FunctionProto": {7: "NodeProto", 11: "AttributeProto"},
    "TensorProto": {},
}
_GRAPH: Final = 7  # of a model
_METADATA: Final = 14  # of a model: entries of a key and a value
_NAME: Final = 8  # of a tensor
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


class OutsideTensor(NamedTuple):
    """A tensor of a graph that is stored in a file."""

    name: str
    file: str  # as the graph names it: a path, perhaps absolute; empty if it names none


def refuse_files(content: bytes) -> None:
    """Refuse an ONNX graph that names a file, or brings options of ONNX Runtime.

    Raises:
        BundleError: It does, or the bytes are not an ONNX graph.
    """
    for name, file in outside_tensors(content):
        raise BundleError(
            f"its tensor {name[:100]!r} is stored in the file {file[:100]!r}, but a bundle's graph "
            "must hold all its weights, or a stranger's bundle could read files of this machine; "
            "`florilege import` takes weights from the folder of an ONNX file"
        )
    metadata = (each for each in _fields(content, 0, len(content)) if each.number == _METADATA)
    if any(_entry(content, field).get(1) == _SESSION_OPTIONS for field in metadata):
        raise BundleError(
            "its metadata holds options of ONNX Runtime (ort_config), which only a server may set: "
            "remove them"
        )


def outside_tensors(content: bytes) -> Iterator[OutsideTensor]:
    """The tensors of a serialised ONNX graph, at any depth, that are stored in files.

    The weights are skipped, so it takes milliseconds. Unknown fields are skipped too, so graphs of
    newer versions of ONNX pass.

    Raises:
        BundleError: The bytes are not an ONNX graph.
    """
    pending, has_graph = [("ModelProto", 0, len(content))], False
    while pending:
        message, start, end = pending.pop()
        fields = list(_fields(content, start, end))
        if message == "ModelProto":
            has_graph = any(field.number == _GRAPH for field in fields)
        if message == "TensorProto" and any(map(_is_outside, fields)):
            yield _outside_tensor(content, fields)
        for field in fields:
            inner = _HOLDERS[message].get(field.number)
            if inner is not None:
                if field.wire_type != _BYTES:
                    raise _no_graph(field.start)
                pending.append((inner, field.start, field.end))
    if not has_graph:
        raise BundleError("the file is not an ONNX graph: it holds none")


def _is_outside(field: _Field) -> bool:
    """Whether this field of a tensor says that it is in a file; both fields are for that alone."""
    inside = (field.wire_type, field.value) == (_VARINT, 0)
    return field.number == _EXTERNAL_DATA or (field.number == _DATA_LOCATION and not inside)


def _outside_tensor(content: bytes, fields: list[_Field]) -> OutsideTensor:
    names = [content[field.start : field.end] for field in fields if field.number == _NAME]
    files = [
        entry[2]
        for field in fields
        if field.number == _EXTERNAL_DATA
        and (entry := _entry(content, field)).get(1) == b"location"
        and 2 in entry
    ]
    name, file = (b"".join(values[-1:]).decode(errors="replace") for values in (names, files))
    return OutsideTensor(name, file)


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
    return BundleError(f"the file is not an ONNX graph, or is damaged at byte {at:,}")
