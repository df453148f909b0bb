"""Small bundles and ONNX graphs for the tests of this folder."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from florilege.models.bundle import Bundle, write_bundle
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.images import Preprocess

CLASSES = ClassTable(
    (
        ClassInfo(id="10", scientific_name="Rosa canina", genus="Rosa", training_count=7),
        ClassInfo(id="11", scientific_name="Bellis perennis", genus="Bellis", training_count=3),
    )
)
PREPROCESS = Preprocess(image_size=4)
HEADS = {"linear": "logits"}
FILES = ["bundle.json", "classes.json", "model.onnx", "preprocess.json"]  # of each bundle


def network(
    heads: Mapping[str, float],
    *,
    classes: int = 2,
    side: int = 4,
    input_name: str = "image",
    features: str | None = None,
    feature_factor: float = 1.0,
) -> bytes:
    """A graph whose logits are factor times (mean of the picture, its negative, ...) per head.

    Args:
        heads: Factor by output name.
        classes: Outputs of each head; class ``i`` has sign + for even ``i``.
        features: Name of one more output, the mean of each row of the picture; none where None.
        feature_factor: What these are multiplied with.
    """
    nodes = [
        helper.make_node("Cast", [input_name], ["real"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["real", "axes"], ["mean"], keepdims=0),
        helper.make_node("Unsqueeze", ["mean", "last"], ["column"]),
    ]
    constants = [
        numpy_helper.from_array(np.array([1, 2, 3], np.int64), "axes"),
        numpy_helper.from_array(np.array([1], np.int64), "last"),
    ]
    for output, factor in heads.items():
        signs = np.array([[factor * (-1) ** index for index in range(classes)]], np.float32)
        constants.append(numpy_helper.from_array(signs, f"signs_{output}"))
        nodes.append(helper.make_node("Mul", ["column", f"signs_{output}"], [output]))
    image = helper.make_tensor_value_info(input_name, TensorProto.UINT8, ["batch", side, side, 3])
    outputs = [
        helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", classes])
        for output in heads
    ]
    if features is not None:
        rows = helper.make_tensor_value_info(features, TensorProto.FLOAT, ["batch", side])
        outputs.append(rows)
        constants.append(numpy_helper.from_array(np.array([2, 3], np.int64), "within"))
        constants.append(numpy_helper.from_array(np.array(feature_factor, np.float32), "by"))
        nodes.append(helper.make_node("ReduceMean", ["real", "within"], ["rows"], keepdims=0))
        nodes.append(helper.make_node("Mul", ["rows", "by"], [features]))
    graph = helper.make_graph(nodes, "tiny", [image], outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def make_bundle(
    path: Path,
    model: bytes | Path = b"a model",
    heads: Mapping[str, str] = HEADS,
    version: str = "1",
    classes: ClassTable = CLASSES,
    **more: bytes,
) -> Bundle:
    """Write a bundle; ``more`` are json files by stem, such as ``calibration``."""
    return write_bundle(
        path,
        name="tiny",
        version=version,
        heads=heads,
        model=model,
        classes=classes,
        preprocess=PREPROCESS,
        files={f"{stem}.json": content for stem, content in more.items()},
    )
