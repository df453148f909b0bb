"""A small real data set for the server's tests: a dozen flowers with different colours.

The network is a few ONNX nodes (mean colour, then a linear layer) whose softmax is the posterior
of a nearest-colour model; the calibration is the project's own, on pictures written to a folder.
"""

import io
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from florilege.calibration.calibrate import calibrate_bundle
from florilege.models.bundle import write_bundle
from florilege.models.classes import ClassInfo, ClassTable, Thumbnail
from florilege.models.images import Preprocess
from florilege.models.reference_pictures import pack_thumbnails
from tests.models.pictures import thumbnail

SIDE = 24
SHARPNESS = 22.0
PER_CLASS = 40

# id, scientific name, genus, family, English names, French names, petal colour
FLOWERS = (
    ("1001", "Rosa rubra", "Rosa", "Rosaceae", ("red rose",), ("rose rouge",), (0.78, 0.10, 0.16)),
    ("1002", "Rosa canina", "Rosa", "Rosaceae", ("dog rose",), ("églantier",), (0.93, 0.62, 0.70)),
    ("1003", "Rosa alba", "Rosa", "Rosaceae", ("white rose",), (), (0.95, 0.92, 0.90)),
    ("1004", "Papaver rhoeas", "Papaver", "Papaveraceae", ("poppy",), ("coquelicot",),
     (0.86, 0.14, 0.08)),
    ("1005", "Papaver nudicaule", "Papaver", "Papaveraceae", ("Iceland poppy",), (),
     (0.96, 0.66, 0.16)),
    ("1006", "Viola odorata", "Viola", "Violaceae", ("sweet violet",), ("violette",),
     (0.42, 0.25, 0.66)),
    ("1007", "Viola tricolor", "Viola", "Violaceae", ("heartsease", "wild pansy"), ("pensée",),
     (0.50, 0.36, 0.72)),
    ("1008", "Ranunculus acris", "Ranunculus", "Ranunculaceae", ("meadow buttercup",),
     ("bouton d'or",), (0.94, 0.83, 0.12)),
    ("1009", "Ranunculus repens", "Ranunculus", "Ranunculaceae", ("creeping buttercup",), (),
     (0.90, 0.79, 0.20)),
    ("1010", "Centaurea cyanus", "Centaurea", "Asteraceae", ("cornflower",), ("bleuet",),
     (0.25, 0.35, 0.84)),
    ("1011", "Bellis perennis", "Bellis", "Asteraceae", ("daisy",), ("pâquerette",),
     (0.97, 0.95, 0.84)),
    ("1012", "<i>Ignota</i> & co", None, None, (), (), (0.35, 0.58, 0.28)),
)  # fmt: skip
COLOURS = np.array([flower[-1] for flower in FLOWERS])  # (classes, 3)


def classes() -> ClassTable:
    """The flowers as a class table.

    Of the last one nothing is known but a name that looks like HTML: no genus, link or picture.
    """
    return ClassTable(
        tuple(
            ClassInfo(
                id=id_,
                scientific_name=name,
                genus=genus,
                family=family,
                gbif=f"30{id_}" if genus else None,
                common_names={"en": english, "fr": french} if genus else {},
                training_count=10 * (index + 1),
                link=f"https://www.gbif.org/species/30{id_}" if genus else None,
                thumbnail=Thumbnail(author="A. Botanist", licence="CC BY 4.0") if genus else None,
            )
            for index, (id_, name, genus, family, english, french, _) in enumerate(FLOWERS)
        )
    )


def pixels(colour: np.ndarray, *, side: int = SIDE, seed: int = 0) -> np.ndarray:
    """A patch of one colour with grain, uint8 ``(side, side, 3)``."""
    grain = np.random.default_rng(seed).normal(0.0, 0.03, (side, side, 3))
    return (np.clip(colour + grain, 0.0, 1.0) * 255.0).astype(np.uint8)


def encoded(array: np.ndarray, kind: str = "PNG", **options: object) -> bytes:
    """An array as the bytes of a picture file."""
    buffer = io.BytesIO()
    Image.fromarray(array).save(buffer, kind, **options)
    return buffer.getvalue()


def photo(index: int, *, blur: float = 0.0, other: int = 0, side: int = SIDE) -> bytes:
    """A PNG of flower ``index``, its colour moved by ``blur`` towards flower ``other``."""
    colour = (1 - blur) * COLOURS[index] + blur * COLOURS[other]
    return encoded(pixels(colour, side=side, seed=index))


DULL = encoded(pixels(np.array([0.72, 0.42, 0.38])))
"""A photo far from every flower: suspect, and with an empty set if sets may be empty."""


def network() -> bytes:
    """The graph: two heads, `sccp` sharp and `multi_label` on its own scale, and features."""
    weights = (2.0 * SHARPNESS * COLOURS.T).astype(np.float32)  # (3, classes)
    bias = (-SHARPNESS * (COLOURS**2).sum(axis=1)).astype(np.float32)
    constants = {
        "weights": weights,
        "bias": bias,
        "axes": np.array([1, 2]),
        "white": np.float32(255.0),
        "half": np.float32(0.4),
        "shift": np.float32(-12.0),
        "grey": np.float32(0.5),
    }
    nodes = [
        helper.make_node("Cast", ["image"], ["float"], to=TensorProto.FLOAT),
        helper.make_node("ReduceMean", ["float", "axes"], ["mean"], keepdims=0),
        helper.make_node("Div", ["mean", "white"], ["colour"]),
        helper.make_node("MatMul", ["colour", "weights"], ["product"]),
        helper.make_node("Add", ["product", "bias"], ["sccp_logits"]),
        helper.make_node("Mul", ["sccp_logits", "half"], ["softer"]),
        helper.make_node("Add", ["softer", "shift"], ["multi_label_logits"]),
        helper.make_node("Sub", ["colour", "grey"], ["features"]),
    ]
    shape: list[str | int | None] = ["batch", len(FLOWERS)]
    image: list[str | int | None] = ["batch", SIDE, SIDE, 3]
    graph = helper.make_graph(
        nodes,
        "garden",
        [helper.make_tensor_value_info("image", TensorProto.UINT8, image)],
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name in ("multi_label_logits", "sccp_logits")
        ]
        + [helper.make_tensor_value_info("features", TensorProto.FLOAT, ["batch", 3])],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    onnx.checker.check_model(model)
    content: bytes = model.SerializeToString()
    return content


def thumbnails() -> dict[str, bytes]:
    """The reference picture of each flower that has one, by class id."""
    view = enumerate(classes())
    return {item.id: thumbnail(photo(index)) for index, item in view if item.thumbnail}


def plant(folder: Path) -> Path:
    """Write an uncalibrated bundle."""
    write_bundle(
        folder,
        name="garden",
        version="2026.11",
        heads={"multi_label": "multi_label_logits", "sccp": "sccp_logits"},
        model=network(),
        classes=classes(),
        preprocess=Preprocess(image_size=SIDE),
        files={"thumbnails.zip": pack_thumbnails(classes(), thumbnails())},
    )
    return folder


@cache
def scattered(seed: int) -> tuple[tuple[bytes, ...], ...]:
    """PNGs of each flower, their colours scattered so that neighbours overlap."""
    generator = np.random.default_rng(seed)

    def png(colour: np.ndarray) -> bytes:
        colour = colour + generator.normal(0.0, 0.15, 3)
        return encoded(pixels(colour, seed=int(generator.integers(2**31))))

    return tuple(tuple(png(colour) for _ in range(PER_CLASS)) for colour in COLOURS)


def validation_folder(folder: Path, *, split: str = "val", seed: int = 7) -> Path:
    """Write one split of an ImageFolder."""
    for flower, pictures in zip(FLOWERS, scattered(seed), strict=True):
        target = folder / split / flower[0]
        target.mkdir(parents=True)
        for number, picture in enumerate(pictures):
            (target / f"{number:03}.png").write_bytes(picture)
    return folder


def grow(folder: Path, **options: Any) -> Path:
    """Write a bundle below ``folder`` and calibrate it; returns its path."""
    bundle = plant(folder / "bundle")
    data = str(validation_folder(folder / "photos"))
    calibrate_bundle(bundle, data, "val", device="cpu", **options)
    return bundle
