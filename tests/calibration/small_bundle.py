"""A small bundle over coloured squares, and the squares: real files through the real pipeline."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from florilege.models.bundle import Bundle, write_bundle
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.images import Preprocess

SIDE = 4
CLASSES = 6
COLOURS = np.random.default_rng(1).uniform(60, 200, (CLASSES, 3))
NOISE = 45.0


def network(heads: dict[str, float], *, features: bool = False) -> bytes:
    """A graph that scores each class by its distance from the mean colour.

    Args:
        heads: Sharpness of the logits by output name.
        features: Whether it also gives features, the mean colour about grey.
    """
    nodes = [
        helper.make_node("Cast", ["image"], ["real"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["real", "axes"], ["mean"], keepdims=0),
        helper.make_node("MatMul", ["mean", "directions"], ["projected"]),
        helper.make_node("Add", ["projected", "offsets"], ["raw"]),
    ]
    constants = [
        numpy_helper.from_array(np.array([1, 2], np.int64), "axes"),
        numpy_helper.from_array((2 * COLOURS.T).astype(np.float32), "directions"),
        numpy_helper.from_array(-(COLOURS**2).sum(1).astype(np.float32), "offsets"),
    ]
    for output, sharpness in heads.items():
        constants.append(numpy_helper.from_array(np.array(sharpness, np.float32), f"by_{output}"))
        nodes.append(helper.make_node("Mul", ["raw", f"by_{output}"], [output]))
    image = helper.make_tensor_value_info("image", TensorProto.UINT8, ["batch", SIDE, SIDE, 3])
    outputs = [
        helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", CLASSES])
        for output in heads
    ]
    if features:
        constants.append(numpy_helper.from_array(np.full(3, 128, np.float32), "grey"))
        nodes.append(helper.make_node("Sub", ["mean", "grey"], ["features"]))
        colour = helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", 3])
        outputs.append(colour)
    graph = helper.make_graph(nodes, "squares", [image], outputs, constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    return bytes(model.SerializeToString())


def make_bundle(
    path: Path,
    *,
    heads: dict[str, str] | None = None,
    counted: bool = True,
    features: bool = False,
    sharper: float = 1.0,
) -> Bundle:
    """Write the bundle; with ``counted`` the class table knows how many training photos it had.

    All logits are ``sharper`` times as large as usual.
    """
    heads = heads or {"multi_label": "multi_label_logits", "sccp": "sccp_logits"}
    sharpness = dict(zip(heads.values(), (2e-4 * sharper, 1e-3 * sharper), strict=False))
    classes = ClassTable(
        tuple(
            ClassInfo(
                id=f"c{index}",
                scientific_name=f"Class {index}",
                training_count=(5, 30, 60, 90, 150, 400)[index] if counted else None,
            )
            for index in range(CLASSES)
        )
    )
    return write_bundle(
        path,
        name="squares",
        heads=heads,
        model=network(sharpness, features=features),
        classes=classes,
        preprocess=Preprocess(image_size=SIDE),
        files={
            "MODEL_CARD.md": b"# Squares\n\n## Licence\n\nNone.\n",
            "metrics.json": b'{"epochs": 3}',
        },
    )


def make_data(path: Path, *, rows: int = 30, splits: tuple[str, ...] = ("val", "test")) -> Path:
    """Write an ImageFolder of ``rows`` squares a class and split."""
    random = np.random.default_rng(5)
    for split in splits:
        for index in range(CLASSES):
            folder = path / split / f"c{index}"
            folder.mkdir(parents=True)
            for row in range(rows):
                Image.fromarray(square(index, random)).save(folder / f"{row:03}.png")
    return path


def square(label: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """A square about the colour of its class."""
    colour = np.clip(COLOURS[label] + NOISE * random.standard_normal(3), 0, 255)
    return np.broadcast_to(colour.astype(np.uint8), (SIDE, SIDE, 3)).copy()
