"""A foreign graph with our own ends: raw pictures in, logits and features out.

``image`` uint8 ``(batch, size, size, 3)`` -> float -> order of colours -> normalise -> layout and
type -> their graph -> ``logits``, and ``features`` where its last layer is a linear one.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from florilege.models.imported.graph import TYPES, Graph, subgraphs, used
from florilege.models.imported.input_format import Form
from florilege.models.session import FEATURES, INPUT

LOGITS: Final = "logits"
OURS: Final = "florilege/"  # before the names of what is added
THEIRS: Final = "original/"  # before names of theirs that ours need
SMALLEST: Final = float(np.finfo(np.float32).tiny)  # makes the logarithm of a 0 finite
_CODES: Final = {name: code for code, name in TYPES.items()}


@dataclass(frozen=True, kw_only=True)
class Chosen:
    """What of a graph is served.

    ``link`` says how the output that people know follows from ``logits``: ``softmax``, ``sigmoid``,
    or None where it is these. ``log`` marks probabilities whose logits the graph does not hold.
    """

    output: str
    logits: str  # the tensor
    link: str | None
    log: bool
    features: str | None  # the tensor; None for no features

    @property
    def kind(self) -> str:
        """What the output is, in the words of the preprocess file."""
        return "logits" if self.link is None else "probabilities"


def wrapped(
    graph: Graph, form: Form, chosen: Chosen, *, classes: int, one_at_a_time: bool = False
) -> onnx.ModelProto:
    """The graph with our ends.

    Args:
        graph: What was read.
        form: How it wants its pictures.
        chosen: What of it is served.
        classes: Number of logits.
        one_at_a_time: Keep to batches of one; otherwise any number of pictures goes at once.
    """
    model = onnx.ModelProto()
    model.CopyFrom(graph.model)
    taken = {
        name: THEIRS + name if name in (INPUT, LOGITS, FEATURES) else name for name in _names(graph)
    }
    _rename(model.graph, taken)
    if not one_at_a_time:
        _free_batch(model.graph, graph.batch)
    ends = _Ends(batch=1 if one_at_a_time else "batch")
    ends.front(form, into=taken[graph.input.name])
    inner = list(model.graph.node)
    ends.back(taken[chosen.logits], LOGITS, log=chosen.log, columns=classes)
    if chosen.features is not None:
        ends.back(taken[chosen.features], FEATURES, log=False, columns="dimensions")
    nodes = _needed([*ends.first, *inner, *ends.last], [value.name for value in ends.outputs])
    _replace(model.graph.node, nodes)
    _replace(model.graph.input, ends.inputs)
    _replace(model.graph.output, ends.outputs)
    del model.graph.value_info[:]  # shapes of before; ONNX Runtime finds those of now
    read = set(used(nodes))
    kept = [tensor for tensor in model.graph.initializer if tensor.name in read]
    _replace(model.graph.initializer, [*kept, *ends.constants])
    return model


class _Ends:
    """The nodes before and after theirs."""

    def __init__(self, batch: int | str) -> None:
        self.batch = batch
        self.first: list[onnx.NodeProto] = []
        self.last: list[onnx.NodeProto] = []
        self.constants: list[onnx.TensorProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []

    def front(self, form: Form, *, into: str) -> None:
        """From ``image`` to the tensor ``into``, step by step what ``Form.prepared`` does."""
        shape = [self.batch, form.size, form.size, 3]
        self.inputs.append(helper.make_tensor_value_info(INPUT, TensorProto.UINT8, shape))
        steps: list[tuple[str, list[str], dict[str, Any]]] = []
        if form.type != "uint8":
            steps.append(("Cast", [], {"to": TensorProto.FLOAT}))
        if form.channels == "bgr":
            steps.append(("Gather", [self._constant("colours", [2, 1, 0], np.int64)], {"axis": 3}))
        if form.scale != 1:
            steps.append(("Mul", [self._constant("scale", form.scale)], {}))
        if any(form.mean):
            steps.append(("Sub", [self._constant("mean", form.mean)], {}))
        if set(form.std) != {1.0}:
            steps.append(("Div", [self._constant("std", form.std)], {}))
        if form.type == "float16":
            steps.append(("Cast", [], {"to": TensorProto.FLOAT16}))
        if form.layout == "nchw":
            steps.append(("Transpose", [], {"perm": [0, 3, 1, 2]}))
        self.first = _chain(INPUT, steps or [("Identity", [], {})], into, "front")

    def back(self, name: str, output: str, *, log: bool, columns: int | str) -> None:
        """From the tensor ``name`` to ``output``, float32 with a row for each picture."""
        steps: list[tuple[str, list[str], dict[str, Any]]] = [
            ("Flatten", [], {"axis": 1}),
            ("Cast", [], {"to": TensorProto.FLOAT}),
        ]
        if log:
            steps += [("Add", [self._constant("smallest", SMALLEST)], {}), ("Log", [], {})]
        self.last += _chain(name, steps, output, output)
        shape = [self.batch, columns]
        self.outputs.append(helper.make_tensor_value_info(output, TensorProto.FLOAT, shape))

    def _constant(self, name: str, numbers: Any, kind: Any = np.float32) -> str:
        self.constants.append(numpy_helper.from_array(np.asarray(numbers, kind), OURS + name))
        return OURS + name


def _chain(
    start: str, steps: Sequence[tuple[str, list[str], dict[str, Any]]], end: str, name: str
) -> list[onnx.NodeProto]:
    """Nodes one after the other, from the tensor ``start`` to the tensor ``end``."""
    between = [f"{OURS}{name}/{number}" for number in range(1, len(steps))]
    places = zip([start, *between], [*between, end], strict=True)
    return [
        helper.make_node(kind, [source, *more], [target], name=f"{OURS}{name}/{number}", **settings)
        for number, ((source, target), (kind, more, settings)) in enumerate(
            zip(places, steps, strict=True)
        )
    ]


# Their graph -----------------------------------------------------------------------------------


def _names(graph: Graph) -> Iterator[str]:
    """Every tensor of the outermost graph."""
    inside = graph.model.graph
    yield from (value.name for value in inside.input)
    yield from (tensor.name for tensor in inside.initializer)
    yield from (name for node in inside.node for name in node.output)


def _rename(graph: onnx.GraphProto, names: dict[str, str]) -> None:
    """Rename tensors, inside of loops and branches too: no name hides another there."""
    for tensor in (*graph.initializer, *graph.input, *graph.output):
        tensor.name = names.get(tensor.name, tensor.name)
    for sparse in graph.sparse_initializer:
        sparse.values.name = names.get(sparse.values.name, sparse.values.name)
    for node in graph.node:
        for places in (node.input, node.output):
            places[:] = [names.get(name, name) for name in places]
        for inner in subgraphs(node):
            _rename(inner, names)


def _free_batch(graph: onnx.GraphProto, batch: int) -> None:
    """Let reshapes to a fixed batch keep the batch they get, which a 0 in the shape says.

    Whether that was the meaning of all of them shows when batches are run, see ``proof``.
    """
    shapes = {tensor.name: tensor for tensor in graph.initializer}
    weights = set(shapes)
    shapes |= {node.output[0]: _value(node) for node in graph.node if node.op_type == "Constant"}
    for node in graph.node:
        if node.op_type != "Reshape" or node.input[0] in weights or node.input[1] not in shapes:
            continue
        tensor = shapes[node.input[1]]
        sides = numpy_helper.to_array(tensor)
        if sides.size > 1 and sides[0] in (0, batch):
            freed = np.array([0, *sides[1:]], np.int64)
            tensor.CopyFrom(numpy_helper.from_array(freed, tensor.name))
            others = [each for each in node.attribute if each.name != "allowzero"]
            _replace(node.attribute, others)


def _value(node: onnx.NodeProto) -> onnx.TensorProto:
    """The tensor of a ``Constant``, empty where it is given in another way."""
    found = (each.t for each in node.attribute if each.name == "value")
    return next(found, onnx.TensorProto(data_type=TensorProto.INT64, dims=[0]))


def _needed(nodes: list[onnx.NodeProto], outputs: Sequence[str]) -> list[onnx.NodeProto]:
    """The nodes that the outputs follow from; they come in order."""
    wanted, kept = set(outputs), []
    for node in reversed(nodes):
        if wanted.intersection(node.output):
            wanted.update(used([node]))
            kept.append(node)
    return kept[::-1]


def _replace(field: Any, values: Sequence[Any]) -> None:
    copies = list(values)
    del field[:]
    field.extend(copies)
