"""A data set of each paper with eleven classes, laid out as it is published, and very small."""

import json
import pickle
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from data.layouts.plantnet import METADATA, NAMES
from tests.data.pictures import write_folder

CLASSES = 11  # K of 10 has to fit


def cifar_100(root: Path) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    names = [f"thing_{index:02d}".encode() for index in range(CLASSES)]
    meta = {b"fine_label_names": names, b"coarse_label_names": [b"some", b"others"]}
    (folder / "meta").write_bytes(pickle.dumps(meta))
    for name, each in (("train", 10), ("test", 1)):
        fine = list(range(CLASSES)) * each
        entry = {
            b"fine_labels": fine,
            b"coarse_labels": [label % 2 for label in fine],
            b"data": random.integers(0, 256, (len(fine), 3072), dtype=np.uint8),
        }
        (folder / name).write_bytes(pickle.dumps(entry))
    return folder


def plantnet_300k(root: Path) -> Path:
    ids = [str(1355868 + index) for index in range(CLASSES)]
    counts = {"train": 2, "val": 1, "test": 1}
    write_folder(
        root / "images", {split: dict.fromkeys(ids, count) for split, count in counts.items()}
    )
    (root / METADATA).write_text(json.dumps({}))
    (root / NAMES[0]).write_text(json.dumps({each: f"Planta no{each}" for each in ids}))
    return root


def imagenet(root: Path) -> Path:
    ids = [f"n{1440764 + index:08d}" for index in range(CLASSES)]
    return write_folder(root, {"train": dict.fromkeys(ids, 53), "val": dict.fromkeys(ids, 1)})


def imagenet_lt(root: Path) -> Path:
    ids = [f"n{1440764 + index:08d}" for index in range(CLASSES)]
    write_folder(root, {"train": dict.fromkeys(ids, 4)})
    lists = root / "ImageNet_LT"
    lists.mkdir()
    for split, photos in {"train": ("000", "001"), "val": ("002",), "test": ("003",)}.items():
        lines = [f"train/{name}/{x}.png {i}" for i, name in enumerate(ids) for x in photos]
        (lists / f"ImageNet_LT_{split}.txt").write_text("\n".join(lines))
    return lists


COPIES: Mapping[str, Callable[[Path], Path]] = {
    "cifar-100-python": cifar_100,
    "plantnet_300K": plantnet_300k,
    "imagenet": imagenet,
    "ImageNet_LT": imagenet_lt,
}
"""By the name that recipes call their data."""
