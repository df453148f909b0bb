"""Wrap an imported graph in our nodes, and compare its outputs with the original's.

``image`` uint8 ``(batch, size, size, 3)`` -> float -> channel order -> normalise -> layout and
type -> original graph -> ``logits``, and ``features`` if its last layer is linear.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import onnx
from onnx import TensorProto, helper, numpy_helper

from florilege.errors import BundleError
from florilege.models.imported.graph import Graph, subgraphs, tensors_read
from florilege.models.imported.signature import InputFormat, OutputChoice
from florilege.models.runtime import FEATURES, INPUT

LOGITS: Final = "logits"
_ADDED: Final = "florilege/"  # prefix of added nodes and tensors
_ORIGINAL: Final = "original/"  # prefix of original tensors whose names we need
_SMALLEST: Final = np.finfo(np.float32).tiny  # makes the logarithm of 0 finite

Step = tuple[str, Any, dict[str, Any]]  # an operation, its second operand or None, its attributes


def _wrap_graph(
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
    # These shapes hold no longer; ONNX Runtime infers those of the new graph.
    _replace(inner.value_info, [])
    tensors = set(tensors_read(inner.node))
    _replace(inner.initializer, [tensor for tensor in inner.initializer if tensor.name in tensors])
    return model


def _input_steps(input_format: InputFormat) -> list[Step]:
    """The steps of ``InputFormat.prepare``."""
    mean, std = (np.array(values, np.float32) for values in (input_format.mean, input_format.std))
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
    sparse = (tensor.values for tensor in graph.sparse_initializer)
    for tensor in (*graph.initializer, *sparse, *graph.input, *graph.output):
        tensor.name = names.get(tensor.name, tensor.name)
    for node in graph.node:
        for tensors in (node.input, node.output):
            tensors[:] = [names.get(name, name) for name in tensors]
        for inner in subgraphs(node):
            _rename(inner, names)


def _free_batch(graph: onnx.GraphProto, batch: int) -> None:
    """Make reshapes to a fixed batch size keep the batch size of their input: a 0 in the shape.

    `wrap_and_compare` runs batches to check that each reshape meant this.
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
            # With `allowzero` the 0 would mean no rows.
            _replace(
                node.attribute,
                [attribute for attribute in node.attribute if attribute.name != "allowzero"],
            )


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


Numbers = npt.NDArray[np.float64]
Pictures = npt.NDArray[np.uint8]

TOLERANCE: Final = 1e-4  # plus this share of the largest output
_FEW_BITS_TOLERANCE: Final = 1e-2  # the same, for graphs in half precision or eight bits
BATCH: Final = 4  # size of the batch that is compared with single pictures


@dataclass(frozen=True, kw_only=True)
class OutputComparison:
    """Differences between the original and the bundle's graph on the same pictures."""

    max_difference: float  # largest absolute difference between outputs
    tolerance: float  # largest difference allowed
    same_best_class: int  # pictures with the same best class
    pictures: int

    @property
    def holds(self) -> bool:
        """Whether the difference is within the tolerance and every best class is the same."""
        return self.same_best_class == self.pictures and self.max_difference <= self.tolerance

    @classmethod
    def of(cls, original: Numbers, ours: Numbers, *, relative: float) -> "OutputComparison":
        """Compare outputs ``(pictures, classes)``.

        If the original's two best outputs are closer than the tolerance, either counts as its best
        class. The tolerance is ``relative`` times one plus the largest absolute output.
        """
        difference = float(np.abs(original - ours).max())
        tolerance = relative * (1 + float(np.abs(original).max()))
        at_our_best = np.take_along_axis(original, ours.argmax(axis=1)[:, np.newaxis], axis=1)[:, 0]
        return cls(
            max_difference=difference if np.isfinite(difference) else float("inf"),
            tolerance=tolerance,
            same_best_class=int((at_our_best >= original.max(axis=1) - tolerance).sum()),
            pictures=len(original),
        )


class WrappedModel(NamedTuple):
    """A wrapped graph that agrees with the original."""

    model: onnx.ModelProto
    batch: bool  # whether it takes several pictures at once
    comparison: OutputComparison
    logits: Numbers  # of the compared pictures
    dimensions: int | None  # of the features; None if there are none


def original_outputs(
    graph: Graph, input_format: InputFormat, pictures: Pictures
) -> dict[str, npt.NDArray[Any]]:
    """The outputs of the original, in batches of its size, with input prepared in plain NumPy."""
    starts = range(0, len(pictures), graph.batch)
    # The last batch is filled up from the beginning, and what is too much cut below.
    rows = (np.arange(start, start + graph.batch) % len(pictures) for start in starts)
    outputs = graph.run_all(input_format.prepare(pictures[row]) for row in rows)
    return {name: values[: len(pictures)] for name, values in outputs.items()}


def wrap_and_compare(
    graph: Graph,
    input_format: InputFormat,
    choice: OutputChoice,
    pictures: Pictures,
    original: Numbers,
) -> WrappedModel:
    """Wrap the graph for any number of pictures, or for one at a time if batches fail or differ.

    ``original`` holds its output for ``pictures``, ``(pictures, classes)``. Raises `BundleError`
    if the wrapped graph differs from it.
    """
    try:
        return _wrap_and_compare(graph, input_format, choice, pictures, original, batch=True)
    except BundleError:
        return _wrap_and_compare(graph, input_format, choice, pictures, original, batch=False)


def _wrap_and_compare(
    graph: Graph,
    input_format: InputFormat,
    choice: OutputChoice,
    pictures: Pictures,
    original: Numbers,
    *,
    batch: bool,
) -> WrappedModel:
    count, classes = original.shape
    model = _wrap_graph(graph, input_format, choice, classes=classes, batch=batch)
    singles = [picture[np.newaxis] for picture in pictures]
    outputs = Graph(model, files={}).run_all([*singles, pictures[:BATCH]] if batch else singles)
    logits = outputs[LOGITS].astype(np.float64)
    ours = _apply_link(logits, choice.link)
    # In few bits probabilities do not sum exactly to one, and only their shares are compared.
    if choice.log:
        original = original / original.sum(axis=1, keepdims=True)
    relative = _FEW_BITS_TOLERANCE if graph.few_bits else TOLERANCE
    comparison = OutputComparison.of(original, ours[:count], relative=relative)
    if batch:
        others = OutputComparison.of(original[:BATCH], ours[count:], relative=relative)
        largest = max(comparison.max_difference, others.max_difference)
        comparison = replace(comparison, max_difference=largest)
    if not comparison.holds:
        raise BundleError(
            f"the bundle's graph and the original differ by {comparison.max_difference:.3g} "
            f"(allowed {comparison.tolerance:.3g}), with the same best class for "
            f"{comparison.same_best_class} of {comparison.pictures} pictures; nothing was written"
        )
    dimensions = outputs[FEATURES].shape[1] if FEATURES in outputs else None
    if dimensions is not None:  # a session needs it
        model.graph.output[1].type.tensor_type.shape.dim[1].dim_value = dimensions
    return WrappedModel(model, batch, comparison, logits[:count], dimensions)


def _apply_link(logits: Numbers, link: str | None) -> Numbers:
    """The original's output, computed from logits."""
    if link is None:
        return logits
    if link == "sigmoid":
        # An infinite power gives 0, which is right.
        with np.errstate(over="ignore"):
            probabilities: Numbers = 1 / (1 + np.exp(-logits))
        return probabilities
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares: Numbers = powers / powers.sum(axis=1, keepdims=True)
    return shares
