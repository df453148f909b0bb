"""A graph exported elsewhere: its input, its outputs and the layers between."""

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
from florilege.models.bundle import sha256_of
from florilege.models.runtime import open_graph, weight_files

_OLDEST_OPSET: Final = 7  # oldest in ONNX Runtime, and the first whose arithmetic broadcasts
_OLDEST_IR: Final = 4  # the first that allows constants that are not inputs
TYPES: Final[Mapping[int, str]] = {
    onnx.TensorProto.FLOAT: "float32",
    onnx.TensorProto.FLOAT16: "float16",
    onnx.TensorProto.UINT8: "uint8",
}
_SAME_NUMBERS: Final = (
    *("Identity", "Cast", "Flatten", "Reshape", "Squeeze", "Dropout"),
    *("QuantizeLinear", "DequantizeLinear"),
)


@dataclass(frozen=True)
class Graph:
    """An ONNX graph with one input and embedded constants; ``files`` holds hashes by file name."""

    model: onnx.ModelProto
    files: Mapping[str, str]

    @property
    def input(self) -> onnx.ValueInfoProto:
        value: onnx.ValueInfoProto = self.model.graph.input[0]
        return value

    @property
    def type(self) -> str | None:
        """Type of the input; None if pictures cannot have this type."""
        return TYPES.get(self.input.type.tensor_type.elem_type)

    @property
    def shape(self) -> list[int | None] | None:
        """Shape of the input, None for axes that may vary; None if the file gives no shape."""
        tensor = self.input.type.tensor_type
        if not tensor.HasField("shape"):
            return None
        return [dim.dim_value if dim.dim_value > 0 else None for dim in tensor.shape.dim]

    @property
    def mappings(self) -> list[str]:
        """Names of the outputs that are no arrays: sequences or maps, as `ZipMap` makes them."""
        outputs = self.model.graph.output
        kinds = {output.name: output.type.WhichOneof("value") for output in outputs}
        return [name for name, kind in kinds.items() if kind in ("sequence_type", "map_type")]

    @property
    def batch(self) -> int:
        """The number of pictures that the graph takes at once; 1 if any number fits."""
        return (self.shape or [None])[0] or 1

    @property
    def few_bits(self) -> bool:
        """Whether the graph computes partly in eight bits or half precision."""
        kinds = {node.op_type for node in self.model.graph.node}
        return self.type == "float16" or any("Quantize" in k or "QLinear" in k for k in kinds)

    @cached_property
    def _session(self) -> Any:
        try:
            content = self.model.SerializeToString()
        except Exception as error:  # protobuf's classes differ by version
            raise BundleError(
                "the graph holds more than 2 GB of weights, but a bundle stores them in one file; "
                "export it with float16 weights"
            ) from error
        try:
            return open_graph(content, quiet=True)
        except Exception as error:  # the runtime raises a different class for each kind of damage
            raise BundleError(f"ONNX Runtime cannot run this graph: {error}") from error

    def run(self, batch: npt.NDArray[Any]) -> dict[str, npt.NDArray[Any]]:
        """The outputs that are arrays with at least one axis, by name, for a prepared input.

        Raises `BundleError` if the graph does not load, or does not take this input.
        """
        session = self._session
        try:
            values = session.run(None, {self.input.name: batch})
        except Exception as error:  # as above
            raise BundleError(
                f"the graph fails on an input of {batch.dtype} {batch.shape}, which follows from "
                f"layout, type and size: {error}"
            ) from error
        names = [output.name for output in self.model.graph.output]
        pairs = zip(names, values, strict=True)
        return {
            name: value for name, value in pairs if isinstance(value, np.ndarray) and value.ndim
        }

    def run_all(self, batches: Iterable[npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """The outputs of :meth:`run` for all batches, joined."""
        results = [self.run(batch) for batch in batches]
        return {name: np.concatenate([outputs[name] for outputs in results]) for name in results[0]}

    @cached_property
    def _producers(self) -> dict[str, onnx.NodeProto]:
        """The node that computes each tensor."""
        return {name: node for node in self.model.graph.node for name in node.output}

    def _producer(self, name: str) -> onnx.NodeProto | None:
        """The last node that changes the numbers of a tensor; None for an input or a constant."""
        node = self._producers.get(name)
        while node is not None and node.op_type in _SAME_NUMBERS:
            node = self._producers.get(node.input[0])
        return node

    def logits_behind(self, output: str) -> tuple[str, str | None]:
        """The tensor whose softmax or sigmoid is the output, and the name of that function.

        If the output follows neither, the output itself and None.
        """
        node = self._producer(output)
        axes = (
            [attribute.i for attribute in node.attribute if attribute.name == "axis"]
            if node
            else []
        )
        # By default 1 before opset 13 and -1 from then on.
        over_classes = not axes or axes[0] in (1, -1)
        if node is None or not over_classes or node.op_type not in ("Softmax", "Sigmoid"):
            return output, None
        return node.input[0], node.op_type.lower()

    def features_behind(self, logits: str) -> str | None:
        """The input of the last linear layer before ``logits``; None without such a layer."""
        node = self._producer(logits)
        while node is not None and node.op_type == "Add":  # the bias
            variable = [tensor for tensor in node.input if tensor in self._variable_tensors]
            node = self._producer(variable[0]) if len(variable) == 1 else None
        if node is None or node.op_type not in ("Gemm", "MatMul", "Conv"):
            return None
        return node.input[0] if self._is_linear(node) else None

    def _is_linear(self, node: onnx.NodeProto) -> bool:
        features, weights = node.input[0], node.input[1]
        if features not in self._variable_tensors or weights in self._variable_tensors:
            return False
        transposed = any(attribute.name == "transA" and attribute.i for attribute in node.attribute)
        constants = (tensor for tensor in self.model.graph.initializer if tensor.name == weights)
        kernel = next((constant.dims[2:] for constant in constants), ())
        return not transposed and all(side == 1 for side in kernel)

    @cached_property
    def _variable_tensors(self) -> set[str]:
        """The tensors that depend on the picture."""
        names = {self.input.name}
        for node in self.model.graph.node:  # in execution order
            if names.intersection(tensors_read([node])):
                names.update(node.output)
        return names

    @classmethod
    def read(cls, path: Path) -> "Graph":
        """Read an ONNX file and the weight files beside it.

        Raises `BundleError` if the file is unreadable, not an ONNX graph or too old, or does not
        take exactly one input.
        """
        try:
            content = path.read_bytes()
            model = _parsed(content)
            hashes = {path.name: sha256_of(content)} | _beside(content, path.parent)
            external_data_helper.load_external_data_for_model(model, str(path.parent))
        except (onnx.checker.ValidationError, ValueError) as error:
            raise BundleError(f"{path} is damaged or not an ONNX file: {error}") from error
        except OSError as error:
            raise BundleError(
                f"{error.filename or path} cannot be read: {error.strerror}"
            ) from error
        versions = {opset.domain: opset.version for opset in model.opset_import}
        version = versions.get("", versions.get("ai.onnx", 0))
        if version < _OLDEST_OPSET:
            raise BundleError(
                f"{path} has opset {version or 'unknown'}, the oldest supported is "
                f"{_OLDEST_OPSET}: export it again, or convert it with onnx.version_converter"
            )
        model.ir_version = max(model.ir_version, _OLDEST_IR)
        # Notes of the exporter, among which may be options that ONNX Runtime would follow
        # (`ort_config`).
        del model.metadata_props[:]
        _drop_constant_inputs(path, model.graph)
        return cls(model, hashes)


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs inside a loop or branch."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def tensors_read(nodes: Iterable[onnx.NodeProto]) -> Iterator[str]:
    """Every tensor that nodes read, including those read inside loops and branches."""
    for node in nodes:
        yield from node.input
        for inner in subgraphs(node):
            yield from tensors_read(inner.node)
            yield from (value.name for value in inner.output)


def _parsed(content: bytes) -> onnx.ModelProto:
    try:
        model = onnx.load_from_string(content)
    except Exception as error:  # protobuf's classes differ by version
        raise ValueError(str(error)) from error
    if not model.graph.node or not model.graph.output:
        raise ValueError("it holds no graph")
    return model


def _beside(content: bytes, folder: Path) -> dict[str, str]:
    """Hashes of the weight files, which must be in the model's folder and not be hidden."""
    hashes = {}
    for name in sorted(set(weight_files(content))):
        path = folder / name
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"its weight file {name} is outside its folder")
        # Exporters write none, but `.env` and its like hold what nobody wants in a bundle.
        if any(part.startswith(".") for part in Path(name).parts):
            raise ValueError(f"its weight file {name} is hidden")
        hashes[name] = sha256_of(path)
    return hashes


def _drop_constant_inputs(path: Path, graph: onnx.GraphProto) -> None:
    """Keep only the one real input; old files also list their constants as inputs."""
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)
    if len(inputs) != 1:
        names = ", ".join(value.name for value in inputs) or "none"
        raise BundleError(
            f"{path} takes {len(inputs)} inputs ({names}); a classifier of single pictures must "
            "take one: export it with the others fixed"
        )
