"""Graphs that name a file wherever ONNX allows a tensor, as a stranger's bundle may."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
from onnx import AttributeProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from tests.models.bundles import network

SECRET = b"TOKEN=0123456789"  # the content of the file, as long as the tensor


def outside(file: str) -> TensorProto:
    """A tensor of 16 bytes that is stored in a file."""
    tensor = TensorProto(name="secret", data_type=TensorProto.UINT8, dims=[len(SECRET)])
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": file, "offset": "0", "length": str(len(SECRET))}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _constant(file: str, output: str = "secret") -> NodeProto:
    return helper.make_node("Constant", [], [output], value=outside(file))


def _sparse(file: str) -> onnx.SparseTensorProto:
    indices = numpy_helper.from_array(np.arange(len(SECRET)), "places")
    return onnx.SparseTensorProto(values=outside(file), indices=indices, dims=[len(SECRET)])


def _initializer(model: ModelProto, file: str) -> None:
    model.graph.initializer.append(outside(file))


def _constant_node(model: ModelProto, file: str) -> None:
    model.graph.node.insert(0, _constant(file))


def _branches(model: ModelProto, file: str) -> None:
    """One branch has it as an initializer, the other in a node."""
    branches = []
    for nodes, tensors in (([], [outside(file)]), ([_constant(file)], [])):
        end = helper.make_node("Identity", ["secret"], ["end"])
        value = helper.make_tensor_value_info("end", TensorProto.UINT8, [len(SECRET)])
        branches.append(helper.make_graph([*nodes, end], "branch", [], [value], tensors))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "always"))
    node = helper.make_node("If", ["always"], ["secret"], name="branching")
    for name, branch in zip(("then_branch", "else_branch"), branches, strict=True):
        node.attribute.append(helper.make_attribute(name, branch))
    model.graph.node.insert(0, node)


def _function(model: ModelProto, file: str) -> None:
    _add_function(model, [_constant(file)])


def _default_of_a_function(model: ModelProto, file: str) -> None:
    """The tensor is the default of an attribute that a node inside refers to."""
    node = helper.make_node("Constant", [], ["secret"])
    node.attribute.add(name="value", ref_attr_name="value", type=AttributeProto.TENSOR)
    default = AttributeProto(name="value", type=AttributeProto.TENSOR, t=outside(file))
    _add_function(model, [node], [default])


def _add_function(
    model: ModelProto, nodes: Sequence[NodeProto], defaults: Sequence[AttributeProto] = ()
) -> None:
    opsets = [helper.make_opsetid("", 20)]
    function = helper.make_function("own", "Secret", [], ["secret"], nodes, opsets)
    function.attribute_proto.extend(defaults)
    model.functions.append(function)
    model.opset_import.append(helper.make_opsetid("own", 1))
    model.graph.node.insert(0, helper.make_node("Secret", [], ["secret"], domain="own"))


def _sparse_initializer(model: ModelProto, file: str) -> None:
    model.graph.sparse_initializer.append(_sparse(file))


def _sparse_constant(model: ModelProto, file: str) -> None:
    node = helper.make_node("Constant", [], ["secret"])
    value = _sparse(file)
    node.attribute.add(name="sparse_value", type=AttributeProto.SPARSE_TENSOR, sparse_tensor=value)
    model.graph.node.insert(0, node)


PLACES: Mapping[str, Callable[[ModelProto, str], None]] = {
    "initializer": _initializer,
    "constant": _constant_node,
    "branches": _branches,
    "function": _function,
    "default of a function": _default_of_a_function,
    "sparse initializer": _sparse_initializer,
    "sparse constant": _sparse_constant,
}


def leaking(place: str, file: str, *, side: int = 4) -> ModelProto:
    """A classifier of pictures with a logit for each byte of the file.

    ``side`` is that of its pictures.
    """
    model = onnx.load_from_string(network({"unused": 1.0}, side=side))
    PLACES[place](model, file)
    model.graph.node.extend(
        [
            helper.make_node("Cast", ["secret"], ["bytes"], to=TensorProto.FLOAT),
            helper.make_node("Mul", ["column", "zero"], ["nothing"]),
            helper.make_node("Add", ["nothing", "bytes"], ["logits"]),
        ]
    )
    model.graph.initializer.append(numpy_helper.from_array(np.zeros(1, np.float32), "zero"))
    shape: list[str | int | None] = ["batch", len(SECRET)]
    output = helper.make_tensor_value_info("logits", TensorProto.FLOAT, shape)
    del model.graph.output[:]
    model.graph.output.append(output)
    return model
