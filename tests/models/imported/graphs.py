"""Tiny classifiers like those exported by other programs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime
import timm
import torch
from onnx import TensorProto, helper, numpy_helper
from timm.models import save_for_hf

from florilege.models.imported.signature import Description

SIDE = 6
CLASSES = 3
SCALED: dict[str, Any] = {"scale": 0.01, "mean": (0.5, 1.0, 1.5), "std": (0.5, 0.25, 2.0)}
CODES = {"float32": TensorProto.FLOAT, "float16": TensorProto.FLOAT16, "uint8": TensorProto.UINT8}


def scaled_description(**more: Any) -> Description:
    """A description that scales."""
    return Description(**{**SCALED, **more})


def foreign(
    *,
    layout: str = "nchw",
    kind: str = "float32",
    ending: str = "logits",
    last: str = "Gemm",
    shape: Sequence[int | str] | None = None,
    opset: int = 17,
    ir: int = 8,
    flat: Sequence[int] | None = None,
    names: tuple[str, str] = ("x", "y"),
    more_outputs: Sequence[str] = (),
) -> onnx.ModelProto:
    """A convolution, a mean over the picture and a linear layer with random weights.

    Args:
        layout, kind: Of the input.
        ending: ``logits``, ``Softmax``, ``Sigmoid``, ``LogSoftmax``, or ``hidden``, a softmax that
            is written out.
        last: The linear layer: ``Gemm``, ``MatMul`` or ``Conv``.
        shape: Of the input; by default any number of pictures of 6 x 6 pixels.
        flat: Shape that the mean is reshaped to instead of being flattened.
        more_outputs: Tensors that are given too, such as ``logits`` or ``mean``.
    """
    random = np.random.default_rng(5)
    real = np.float16 if kind == "float16" else np.float32
    weights: dict[str, npt.NDArray[Any]] = {
        "kernel": random.normal(scale=0.3, size=(4, 3, 3, 3)).astype(real),
        "matrix": random.normal(size=(4, CLASSES)).astype(real),
        "tall": random.normal(size=(CLASSES, 4, 1, 1)).astype(real),
        "bias": random.normal(size=CLASSES).astype(real),
        "flat": np.array(flat or [0, -1], np.int64),
        "two": np.array([2, 3], np.int64),
    }
    entry, end = names
    nodes = [
        helper.make_node("Cast", [entry], ["real"], to=TensorProto.FLOAT)
        if kind == "uint8"
        else helper.make_node("Identity", [entry], ["real"]),
        helper.make_node("Transpose", ["real"], ["first"], perm=[0, 3, 1, 2])
        if layout == "nhwc"
        else helper.make_node("Identity", ["real"], ["first"]),
        helper.make_node("Conv", ["first", "kernel"], ["maps"], strides=[2, 2]),
        helper.make_node("Relu", ["maps"], ["active"]),
        helper.make_node("GlobalAveragePool", ["active"], ["square"]),
        helper.make_node("Reshape", ["square", "flat"], ["mean"]),
    ]
    target = end if ending == "logits" else "raw"
    if last == "Gemm":
        nodes += [helper.make_node("Gemm", ["mean", "matrix", "bias"], [target])]
    elif last == "MatMul":
        nodes += [
            helper.make_node("MatMul", ["mean", "matrix"], ["product"]),
            helper.make_node("Add", ["bias", "product"], [target]),
        ]
    else:
        nodes += [helper.make_node("Conv", ["square", "tall"], [target])]
    if ending == "hidden":
        nodes += [
            helper.make_node("Exp", ["raw"], ["powers"]),
            helper.make_node("ReduceSum", ["powers", "one"], ["sum"]),
            helper.make_node("Div", ["powers", "sum"], [end]),
        ]
        weights["one"] = np.array([1], np.int64)
    elif ending != "logits":
        nodes += [helper.make_node(ending, ["raw"], [end])]
    sides: list[int | str | None] = list(
        shape or (["n", 3, SIDE, SIDE] if layout == "nchw" else ["n", SIDE, SIDE, 3])
    )
    output = TensorProto.FLOAT16 if kind == "float16" else TensorProto.FLOAT
    constants = [numpy_helper.from_array(value, name) for name, value in weights.items()]
    inputs = [helper.make_tensor_value_info(entry, CODES[kind], sides)]
    if ir < 4:
        inputs += [
            helper.make_tensor_value_info(each.name, each.data_type, each.dims)
            for each in constants
        ]
    graph = helper.make_graph(
        nodes,
        "foreign",
        inputs,
        [helper.make_tensor_value_info(name, output, None) for name in (end, *more_outputs)],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=ir)


def save(model: onnx.ModelProto, path: Path) -> Path:
    """Write it to a file."""
    path.write_bytes(model.SerializeToString())
    return path


def oracle(
    model: onnx.ModelProto,
    pictures: npt.NDArray[np.uint8],
    *,
    layout: str = "nchw",
    kind: str = "float32",
    channels: str = "rgb",
) -> npt.NDArray[np.float64]:
    """The first output, picture by picture, with the input computed in float64."""
    session = onnxruntime.InferenceSession(model.SerializeToString())
    result = []
    for picture in pictures:
        values = picture if channels == "rgb" else picture[..., ::-1]
        if kind != "uint8":
            values = (values * SCALED["scale"] - SCALED["mean"]) / SCALED["std"]
        inputs = values.transpose(2, 0, 1) if layout == "nchw" else values
        (name,) = (each.name for each in session.get_inputs())
        result.append(session.run(None, {name: inputs[np.newaxis].astype(kind)})[0].reshape(-1))
    return np.array(result, dtype=np.float64)


def random_pictures(count: int, side: int = SIDE) -> npt.NDArray[np.uint8]:
    """Independent pixels."""
    return np.random.default_rng(1).integers(0, 256, (count, side, side, 3), dtype=np.uint8)


def timm_folder(path: Path, classes: int, **config: Any) -> str:
    """The name of a small network of timm, saved as people do with ``config`` beside it."""
    torch.manual_seed(0)
    network = timm.create_model("test_efficientnet", num_classes=classes)
    save_for_hf(network, str(path), model_config=config, safe_serialization=True)
    return f"timm:local-dir:{path}"
