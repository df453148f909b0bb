"""Wrap an imported graph in our nodes: raw pictures in, logits and features out.

``image`` uint8 ``(batch, size, size, 3)`` -> float -> channel order -> normalise -> layout and
type -> original graph -> ``logits``, and ``features`` if its last layer is linear.
"""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from florilege.models.imported.graph import (
    Graph,
    drop_unused_constants,
    subgraphs,
    tensors_read,
)
from florilege.models.imported.input_format import InputFormat
from florilege.models.imported.output_choice import OutputChoice
from florilege.models.session import FEATURES, INPUT

LOGITS: Final = "logits"
_ADDED: Final = "florilege/"  # prefix of added nodes and tensors
_ORIGINAL: Final = "original/"  # prefix of original tensors whose names we need
_SMALLEST: Final = float(np.finfo(np.float32).tiny)  # makes the logarithm of 0 finite


def wrap_graph(
    graph: Graph,
    input_format: InputFormat,
    choice: OutputChoice,
    *,
    classes: int,
    one_at_a_time: bool = False,
) -> onnx.ModelProto:
    """Wrap the graph in our nodes.

    Args:
        graph: The original graph.
        input_format: Its input format.
        choice: Its tensors to serve.
        classes: Number of logits.
        one_at_a_time: Whether batches hold one picture; otherwise they hold any number.
    """
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    names = {
        name: _ORIGINAL + name if name in (INPUT, LOGITS, FEATURES) else name
        for name in _names(graph)
    }
    _rename(model.graph, names)
    if not one_at_a_time:
        _free_batch(model.graph, graph.batch)
    adapters = _Adapters(batch=1 if one_at_a_time else "batch")
    adapters.add_input(input_format, into=names[graph.input.name])
    inner = list(model.graph.node)
    adapters.add_output(names[choice.logits], LOGITS, log=choice.log, columns=classes)
    if choice.features is not None:
        adapters.add_output(names[choice.features], FEATURES, log=False, columns="dimensions")
    outputs = [value.name for value in adapters.outputs]
    nodes = _needed([*adapters.first, *inner, *adapters.last], outputs)
    _replace(model.graph.node, nodes)
    _replace(model.graph.input, adapters.inputs)
    _replace(model.graph.output, adapters.outputs)
    del model.graph.value_info[:]  # outdated shapes; ONNX Runtime infers the new ones
    drop_unused_constants(model.graph)
    model.graph.initializer.extend(adapters.constants)
    return model


class _Adapters:
    """Our nodes before and after the original ones."""

    def __init__(self, batch: int | str) -> None:
        self.batch = batch
        self.first: list[onnx.NodeProto] = []
        self.last: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def add_input(self, input_format: InputFormat, *, into: str) -> None:
        """Convert ``image`` to the tensor ``into`` with the steps of ``InputFormat.prepare``."""
        shape = [self.batch, input_format.size, input_format.size, 3]
        self.inputs.append(helper.make_tensor_value_info(INPUT, TensorProto.UINT8, shape))
        steps: list[tuple[str, list[str], dict[str, Any]]] = []
        if input_format.type != "uint8":
            steps.append(("Cast", [], {"to": TensorProto.FLOAT}))
        if input_format.channels == "bgr":
            steps.append(("Gather", [self._constant("colours", [2, 1, 0], np.int64)], {"axis": 3}))
        if input_format.scale != 1:
            steps.append(("Mul", [self._constant("scale", input_format.scale)], {}))
        if any(input_format.mean):
            steps.append(("Sub", [self._constant("mean", input_format.mean)], {}))
        if set(input_format.std) != {1.0}:
            steps.append(("Div", [self._constant("std", input_format.std)], {}))
        if input_format.type == "float16":
            steps.append(("Cast", [], {"to": TensorProto.FLOAT16}))
        if input_format.layout == "nchw":
            steps.append(("Transpose", [], {"perm": [0, 3, 1, 2]}))
        self.first = _chain(INPUT, steps or [("Identity", [], {})], into, "front")

    def add_output(self, name: str, output: str, *, log: bool, columns: int | str) -> None:
        """Convert the tensor ``name`` to ``output``, float32 with one row per picture."""
        steps: list[tuple[str, list[str], dict[str, Any]]] = [
            ("Flatten", [], {"axis": 1}),
            ("Cast", [], {"to": TensorProto.FLOAT}),
        ]
        if log:
            steps += [("Add", [self._constant("smallest", _SMALLEST)], {}), ("Log", [], {})]
        self.last += _chain(name, steps, output, output)
        shape = [self.batch, columns]
        self.outputs.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, shape))

    def _constant(self, name: str, numbers: Any, kind: Any = np.float32) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(numbers, kind), _ADDED + name))
        return _ADDED + name


def _chain(
    start: str, steps: Sequence[tuple[str, list[str], dict[str, Any]]], end: str, name: str
) -> list[onnx.NodeProto]:
    """A chain of nodes from the tensor ``start`` to the tensor ``end``."""
    between = [f"{_ADDED}{name}/{number}" for number in range(1, len(steps))]
    ends = zip([start, *between], [*between, end], strict=True)
    return [
        helper.make_node(
            kind, [source, *more], [target], name=f"{_ADDED}{name}/{number}", **settings
        )
        for number, ((source, target), (kind, more, settings)) in enumerate(
            zip(ends, steps, strict=True)
        )
    ]


# The original graph ----------------------------------------------------------------------------


def _names(graph: Graph) -> Iterator[str]:
    """Every tensor of the outermost graph."""
    inside = graph.model.graph
    yield from (value.name for value in inside.input)
    yield from (tensor.name for tensor in inside.initializer)
    yield from (name for node in inside.node for name in node.output)


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename tensors, also inside loops and branches, where no name shadows another."""
    for tensor in (*graph.initializer, *graph.input, *graph.output):
        tensor.name = names.get(tensor.name, tensor.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
        for inner in subgraphs(node):
            _rename(inner, names)


def _free_batch(graph: onnx.GraphProto, batch: int) -> None:
    """Let reshapes to a fixed batch size keep the batch size of their input: a 0 in the shape.

    ``parity`` runs batches to check that this was the meaning of each reshape.
    """
    shapes = {tensor.name: tensor for tensor in graph.initializer}
    weights = set(shapes)
    shapes |= {node.output[0]: _value(node) for node in graph.node if node.op_type == "Constant"}
    reshapes = [node for node in graph.node if node.op_type == "Reshape"]
    for node in reshapes:
        tensor = shapes.get(node.input[1])
        if tensor is None or node.input[0] in weights:
            continue
        sides = numpy_helper.to_array(tensor)
        if sides.size > 1 and sides[0] in (0, batch):
            shape = np.array([0, *sides[1:]], np.int64)
            tensor.CopyFrom(numpy_helper.from_array(shape, tensor.name))
            _replace(node.attribute, [each for each in node.attribute if each.name != "allowzero"])


def _value(node: onnx.NodeProto) -> onnx.TensorProto:
    """The tensor of a ``Constant``; empty if its value has another form."""
    tensors = (each.t for each in node.attribute if each.name == "value")
    return next(tensors, onnx.TensorProto(data_type=TensorProto.INT64, dims=[0]))


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
