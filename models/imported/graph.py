"""A graph that someone else exported: what it takes, what it gives, and what lies in between."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import onnx
from onnx import external_data_helper

from florilege.errors import BundleError
from florilege.models.session import open_graph

_OLDEST_OPSET: Final = 7  # ONNX Runtime's, and the first whose arithmetic broadcasts
_OLDEST_IR: Final = 4  # the first in which a constant need not be an input
TYPES: Final[Mapping[int, str]] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.UINT8: "uint8",
}
_SAME_NUMBERS: Final = (
    *("Identity", "Cast", "Flatten", "Reshape", "Squeeze", "Dropout"),
    *("QuantizeLinear", "DequantizeLinear"),
)
_LINKS: Final = {"Softmax": "softmax", "Sigmoid": "sigmoid"}


@dataclass(frozen=True)
class Graph:
    """An ONNX file with one input, its constants inside; ``files`` are hashes by file name."""

    model: onnx.ModelProto
    files: Mapping[str, str]

    @property
    def input(self) -> onnx.ValueInfoProto:
        """What the graph takes."""
        value: onnx.ValueInfoProto = self.model.graph.input[0]
        return value

    @property
    def type(self) -> str | None:
        """Type of the input; None for one that no picture has."""
        return TYPES.get(self.input.type.tensor_type.elem_type)

    @property
    def shape(self) -> list[int | None] | None:
        """Shape of the input, None where it may vary; None in all if the file does not say."""
        tensor = self.input.type.tensor_type
        if not tensor.HasField("shape"):
            return None
        return [dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim]

    @property
    def batch(self) -> int:
        """How many pictures the graph takes at once; 1 where it takes any number."""
        return (self.shape or [None])[0] or 1

    @cached_property
    def few_bits(self) -> bool:
        """Whether some of it is computed in eight bits or half precision."""
        kinds = {node.op_type for node in self.model.graph.node}
        return self.type == "float16" or any("Quantize" in k or "QLinear" in k for k in kinds)

    @cached_property
    def outputs(self) -> list[str]:
        """Names of the outputs."""
        return [value.name for value in self.model.graph.output]

    @cached_property
    def session(self) -> Any:
        """The graph as it is, in ONNX Runtime.

        Raises:
            BundleError: It does not load.
        """
        try:
            content = self.model.SerializeToString()
        except Exception as error:  # of protobuf, whose kinds differ by version
            raise BundleError(
                "the graph holds more than 2 GB of weights, and a bundle has them in one file; "
                "export it with float16 weights"
            ) from error
        try:
            return open_graph(content, threads=1, quiet=True)
        except Exception as error:  # each kind of damage raises another class of the runtime's own
            raise BundleError(f"ONNX Runtime does not run this graph: {error}") from error

    def run(self, batch: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """Its outputs, arrays alone, for an input made ready.

        Raises:
            BundleError: It does not take this input.
        """
        try:
            values = self.session.run(None, {self.input.name: batch})
        except Exception as error:  # as above
            raise BundleError(
                f"the graph fails on {batch.dtype} {batch.shape}, its input as layout, type and "
                f"size say: {error}"
            ) from error
        pairs = zip(self.outputs, values, strict=True)
        return {name: value for name, value in pairs if isinstance(value, np.ndarray)}

    @cached_property
    def _makers(self) -> dict[str, onnx.NodeProto]:
        """The node that makes each tensor."""
        return {name: node for node in self.model.graph.node for name in node.output}

    @cached_property
    def _constants(self) -> dict[str, tuple[int, ...]]:
        """Shape of each constant of the graph."""
        return {tensor.name: tuple(tensor.dims) for tensor in self.model.graph.initializer}

    def logits_behind(self, output: str) -> tuple[str, str | None]:
        """The tensor whose softmax or sigmoid the output is, with the name of that function.

        The output itself with None where it ends in neither.
        """
        name = output
        while (node := self._makers.get(name)) is not None:
            if node.op_type in _LINKS and _over_classes(node):
                return node.input[0], _LINKS[node.op_type]
            if node.op_type not in _SAME_NUMBERS:
                break
            name = node.input[0]
        return output, None

    def features_behind(self, logits: str) -> str | None:
        """What the last linear layer before ``logits`` is given; None without such a layer."""
        name = logits
        while (node := self._makers.get(name)) is not None:
            if node.op_type in ("Gemm", "MatMul", "Conv"):
                return node.input[0] if self._is_linear(node) else None
            if node.op_type in _SAME_NUMBERS:
                name = node.input[0]
                continue
            variable = [each for each in node.input if each in self._variable_tensors]
            if node.op_type != "Add" or len(variable) != 1:
                break
            name = variable[0]  # past the bias
        return None

    def _is_linear(self, node: onnx.NodeProto) -> bool:
        features, weights = node.input[0], node.input[1]
        if features not in self._variable_tensors or weights in self._variable_tensors:
            return False
        attributes = {each.name: each.i for each in node.attribute}
        kernel = self._constants.get(weights, ())[2:]
        return not attributes.get("transA") and all(side == 1 for side in kernel)

    @cached_property
    def _variable_tensors(self) -> set[str]:
        """The tensors that depend on the picture; all others are constants."""
        names = {self.input.name}
        for node in self.model.graph.node:  # in an order in which they can be run
            if names.intersection(tensors_read([node])):
                names.update(node.output)
        return names


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs inside of a loop or a branch."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def tensors_read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Every tensor that nodes read, inside of their loops and branches too."""
    for node in nodes:
        yield from node.input
        for inner in subgraphs(node):
            yield from tensors_read(inner.node)
            yield from (value.name for value in inner.output)


def _over_classes(node: onnx.NodeProto) -> bool:
    axes = [each.i for each in node.attribute if each.name == "axis"]
    return node.op_type == "Sigmoid" or not axes or axes[0] in (1, -1)


def read_graph(path: Path) -> Graph:
    """Read an ONNX file, with the files beside it that hold its weights.

    Raises:
        BundleError: It cannot be read, is no ONNX graph, is too old, or does not take exactly one
            batch of pictures.
    """
    try:
        content = path.read_bytes()
        model = _parsed(content)
        hashes = {path.name: hashlib.sha256(content).hexdigest()} | _beside(model, path.parent)
        external_data_helper.load_external_data_for_model(model, str(path.parent))
    except (onnx.checker.ValidationError, ValueError) as error:
        raise BundleError(f"{path} is not an ONNX file, or damaged: {error}") from error
    except OSError as error:
        raise BundleError(f"{error.filename or path} cannot be read: {error.strerror}") from error
    if not model.graph.node or not model.graph.output:
        raise BundleError(f"{path} is not an ONNX file, or damaged: it holds no graph")
    _check_version(path, model)
    model.ir_version = max(model.ir_version, _OLDEST_IR)
    _keep_inputs(path, model.graph)
    drop_unused_constants(model.graph)
    return Graph(model, hashes)


def _parsed(content: bytes) -> onnx.ModelProto:
    try:
        return onnx.load_from_string(content)
    except Exception as error:  # of protobuf, whose kinds differ by version
        raise ValueError(str(error)) from error


def _beside(model: onnx.ModelProto, folder: Path) -> dict[str, str]:
    """Hashes of the files that hold weights, checked to lie in the model's folder."""
    hashes = {}
    external = filter(external_data_helper.uses_external_data, model.graph.initializer)
    locations = {external_data_helper.ExternalDataInfo(tensor).location for tensor in external}
    for name in sorted(locations):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"its weights are said to lie in {name}, outside of its folder")
        with path.open("rb") as file:
            hashes[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return hashes


def _check_version(path: Path, model: onnx.ModelProto) -> None:
    versions = {each.domain: each.version for each in model.opset_import}
    version = versions.get("", versions.get("ai.onnx", 0))
    if version < _OLDEST_OPSET:
        raise BundleError(
            f"{path} is of opset {version or 'unknown'}, the oldest that runs is {_OLDEST_OPSET}: "
            "export it again, or convert it with onnx.version_converter"
        )


def _keep_inputs(path: Path, graph: onnx.GraphProto) -> None:
    """Leave what must be given as input; old files list their constants there too."""
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs) or "none"
        raise BundleError(
            f"{path} takes {len(inputs)} inputs ({names}); a classifier of single pictures takes "
            "one: export it with the others fixed"
        )


def drop_unused_constants(graph: onnx.GraphProto) -> None:
    """Remove the constants that no node reads and that are no output."""
    needed = {*tensors_read(graph.node), *(value.name for value in graph.output)}
    tensors = [tensor for tensor in graph.initializer if tensor.name in needed]
    del graph.initializer[:]
    graph.initializer.extend(tensors)
