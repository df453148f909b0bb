"""Wrap an imported graph in our nodes: raw pictures in, logits and features out.

``image`` uint8 ``(batch, size, size, 3)`` -> float -> channel order -> normalise -> layout and
type -> original graph -> ``logits``, and ``features`` if its last layer is linear.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from florilege.models.imported.graph import Graph, subgraphs, tensors_read
from florilege.models.imported.input_format import InputFormat
from florilege.models.imported.output_choice import OutputChoice
from florilege.models.session import FEATURES, INPUT

LOGITS: Final = "logits"
_ADDED: Final = "florilege/"  # prefix of added nodes and tensors
_ORIGINAL: Final = "original/"  # prefix of original tensors whose names we need
_SMALLEST: Final = np.finfo(np.float32).tiny  # makes the logarithm of 0 finite

Step = tuple[str, Any, dict[str, Any]]  # an operation, its second operand or None, its attributes


def wrap_graph(
    graph: Graph, input_format: InputFormat, choice: OutputChoice, *, classes: int, batch: bool
) -> onnx.ModelProto:
    """Wrap the graph for batches of any number of pictures, or of one if not ``batch``."""
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    inner = model.graph
    names = {name: _ORIGINAL + name for name in (INPUT, LOGITS, FEATURES)}
    _rename(inner, names)
    entry, logits = (names.get(name, name) for name in (graph.input.name, choice.logits))
    if batch:
        _free_batch(inner, graph.batch)
    rows, side = "batch" if batch else 1, input_format.size
    flat: list[Step] = [("Flatten", None, {"axis": 1}), ("Cast", None, {"to": TensorProto.FLOAT})]
    log: list[Step] = [("Add", _SMALLEST, {}), ("Log", None, {})] if choice.log else []
    nodes = [
        *_chain(INPUT, _input_steps(input_format), entry),
        *inner.node,
        *_chain(logits, flat + log, LOGITS),
    ]
    outputs = [helper.make_tensor_value_info(LOGITS, TensorProto.FLOAT, [rows, classes])]
    if choice.features is not None:
        nodes += _chain(names.get(choice.features, choice.features), flat, FEATURES)
        shape = [rows, "dimensions"]
        outputs.append(helper.make_tensor_value_info(FEATURES, TensorProto.FLOAT, shape))
    image = helper.make_tensor_value_info(INPUT, TensorProto.UINT8, [rows, side, side, 3])
    _replace(inner.input, [image])
    _replace(inner.node, _needed(nodes, [value.name for value in outputs]))
    _replace(inner.output, outputs)
    _replace(inner.value_info, [])  # outdated shapes; ONNX Runtime infers the new ones
    tensors = set(tensors_read(inner.node))
    _replace(inner.initializer, [each for each in inner.initializer if each.name in tensors])
    return model


def _input_steps(input_format: InputFormat) -> list[Step]:
    """The steps of ``InputFormat.prepare``."""
    mean, std = (np.array(each, np.float32) for each in (input_format.mean, input_format.std))
    steps: list[tuple[bool, Step]] = [
        (input_format.type != "uint8", ("Cast", None, {"to": TensorProto.FLOAT})),
        (input_format.channels == "bgr", ("Gather", np.array([2, 1, 0]), {"axis": 3})),
        (input_format.scale != 1, ("Mul", np.float32(input_format.scale), {})),
        (any(input_format.mean), ("Sub", mean, {})),
        (set(input_format.std) != {1.0}, ("Div", std, {})),
        (input_format.type == "float16", ("Cast", None, {"to": TensorProto.FLOAT16})),
        (input_format.layout == "nchw", ("Transpose", None, {"perm": [0, 3, 1, 2]})),
    ]
    return [step for applies, step in steps if applies]


def _chain(start: str, steps: Sequence[Step], end: str) -> Iterator[onnx.NodeProto]:
    """Nodes from the tensor ``start`` to the tensor ``end``."""
    source = start
    for number, (kind, operand, attributes) in enumerate(steps):
        name = f"{_ADDED}{start}-{end}/{number}"
        if operand is not None:
            constant = numpy_helper.from_array(np.asarray(operand))
            yield helper.make_node("Constant", [], [f"{name}/operand"], value=constant)
        inputs = [source] if operand is None else [source, f"{name}/operand"]
        yield helper.make_node(kind, inputs, [name], name=name, **attributes)
        source = name
    yield helper.make_node("Identity", [source], [end])


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename tensors, also inside loops and branches, where no name shadows another."""
    sparse = (each.values for each in graph.sparse_initializer)
    for tensor in (*graph.initializer, *sparse, *graph.input, *graph.output):
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
        for inner in subgraphs(node):
            _rename(inner, names)


def _free_batch(graph: onnx.GraphProto, batch: int) -> None:
    """Let reshapes to a fixed batch size keep the batch size of their input: a 0 in the shape.

    ``parity`` runs batches to check that this was the meaning of each reshape.
    """
    weights, constants = {tensor.name for tensor in graph.initializer}, _constants(graph)
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[1] not in constants or node.input[0] in weights:
            continue
        tensor = constants[node.input[1]]
        sides = numpy_helper.to_array(tensor)
        if sides.size > 1 and sides[0] in (0, batch):
            shape = np.array([0, *sides[1:]], np.int64)
            tensor.CopyFrom(numpy_helper.from_array(shape, tensor.name))
            _replace(node.attribute, [each for each in node.attribute if each.name != "allowzero"])


def _constants(graph: onnx.GraphProto) -> dict[str, onnx.TensorProto]:
    """The initializers, and the ``Constant`` nodes whose value is a tensor, by name."""
    tensors = {tensor.name: tensor for tensor in graph.initializer}
    for node in graph.node:
        for attribute in node.attribute:
            if node.op_type == "Constant" and attribute.name == "value":
                tensors[node.output[0]] = attribute.t
    return tensors


def _needed(nodes: list[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """The nodes that the outputs depend on, in order."""
    tensors, needed = set(outputs), []
    for node in reversed(nodes):
        if tensors.intersection(node.output):
            tensors.update(tensors_read([node]))
            needed.append(node)
    return needed[::-1]


def _replace(field: Any, values: Sequence[Any]) -> None:
    copies = list(values)
    del field[:]
    field.extend(copies)
