"""Small bundles and ONNX graphs for the tests of this folder."""

import io
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import onnx.parser
from onnx import numpy_helper

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
    outputs = [f"float[batch, {classes}] {output}" for output in heads]
    nodes = [f"{output} = Mul(column, signs_{output})" for output in heads]
    signs = [(-1) ** index for index in range(classes)]
    constants = {f"signs_{name}": np.array([signs]) * factor for name, factor in heads.items()}
    if features is not None:
        outputs.append(f"float[batch, {side}] {features}")
        nodes.append(f"rows = ReduceMean <keepdims = 0> (real, within) {features} = Mul(rows, by)")
        constants["by"] = np.array(feature_factor)
    model = onnx.parser.parse_model(f"""<ir_version: 10, opset_import: ["": 20]>
        tiny (uint8[batch, {side}, {side}, 3] {input_name}) => ({", ".join(outputs)})
        <int64[3] axes = {{1, 2, 3}}, int64[1] last = {{1}}, int64[2] within = {{2, 3}}> {{
            real = Cast <to = 1> ({input_name})
            mean = ReduceMean <keepdims = 0> (real, axes)
            column = Unsqueeze(mean, last)
            {" ".join(nodes)}
        }}""")
    for name, values in constants.items():
        tensor = numpy_helper.from_array(values.astype(np.float32), name)
        model.graph.initializer.append(tensor)
    onnx.checker.check_model(model, full_check=True)
    return bytes(model.SerializeToString())


def npy_of_shape(*shape: int) -> bytes:
    """The start of a file of float64 numbers, which holds none of them."""
    file = io.BytesIO()
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(file, header)
    return file.getvalue()


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
