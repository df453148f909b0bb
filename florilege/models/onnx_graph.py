"""Serialise an ONNX graph without traces of its origin, or with weights of half the size."""

from typing import Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from florilege.models.onnx_files import refuse_files

SMALL: Final = 2**15  # numbers; smaller tensors, a tenth of all weights, stay as they are


def without_origins(model: onnx.ModelProto) -> bytes:
    """Serialise ``model`` without the exporter's stack traces, source paths and other notes."""
    graph, functions = model.graph, model.functions
    nodes = (node for holder in (graph, *functions) for node in holder.node)
    values = (*graph.value_info, *graph.input, *graph.output, *graph.initializer)
    for message in (model, graph, *functions, *nodes, *values):
        for field in {"metadata_props", "doc_string"} & set(message.DESCRIPTOR.fields_by_name):
            message.ClearField(field)
    model.producer_name, model.producer_version = "florilege", ""
    return bytes(model.SerializeToString(deterministic=True))


def halve_weights(model: bytes) -> bytes:
    """The same graph with large weights as int16, a scale for each row, and nodes to widen them.

    Logits of an EfficientNet-Lite0 change by a sixth of what float16 changes. Raises
    `BundleError` if the graph names files, which the package `onnx` would read.
    """
    refuse_files(model)
    proto = onnx.load_from_string(model)
    graph, nodes = proto.graph, list[onnx.NodeProto]()
    inputs = {value.name for value in graph.input}  # defaults of inputs, in old graphs
    for tensor in list(graph.initializer):
        if tensor.data_type != TensorProto.FLOAT or tensor.name in inputs or len(tensor.dims) < 2:
            continue
        values = numpy_helper.to_array(tensor)
        if values.size < SMALL or not np.isfinite(values).all():
            continue
        name, (stored, scales) = tensor.name, _rounded(values)
        tensor.CopyFrom(numpy_helper.from_array(stored, f"{name}/int16"))
        graph.initializer.append(numpy_helper.from_array(scales, f"{name}/scales"))
        cast = helper.make_node("Cast", [f"{name}/int16"], [f"{name}/wide"], to=TensorProto.FLOAT)
        nodes += [cast, helper.make_node("Mul", [f"{name}/wide", f"{name}/scales"], [name])]
    for place, node in enumerate(nodes):
        graph.node.insert(place, node)
    return bytes(proto.SerializeToString(deterministic=True))


def _rounded(values: NDArray[np.float32]) -> tuple[NDArray[np.int16], NDArray[np.float32]]:
    """Integers and scales, ``(rows, 1, ...)``, whose product is nearest to ``values``."""
    largest = np.abs(values).max(axis=tuple(range(1, values.ndim)), keepdims=True)
    scales = np.where(largest > 0, largest / np.iinfo(np.int16).max, 1).astype(np.float32)
    return np.rint(values / scales.astype(np.float64)).astype(np.int16), scales
