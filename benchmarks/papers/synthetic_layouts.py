"""Made-up data sets laid out as those of the papers are published: noise with the right names.

They hold as many photos a class to learn from as asked for, each of a small pool, under many names.
"""

import json
import os
import pickle
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from florilege.plugins.papers.data_sets import METADATA, NAMES

CLASSES: Mapping[str, int] = {
    "cifar-100-python": 100,
    "plantnet_300K": 1081,
    "imagenet": 1000,
    "ImageNet_LT": 1000,
}
"""Of the published data sets, by the name that recipes call them."""

HELD_OUT = 50  # photos of each class of ImageNet


def pool(folder: Path, *, count: int, width: int, height: int) -> list[Path]:
    """Different photos without much detail, as JPEG."""
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    photos = []
    for number in range(count):
        coarse = random.integers(0, 256, (height // 8 + 1, width // 8 + 1, 3), dtype=np.uint8)
        photos.append(folder / f"{number:02d}.jpg")
        image = Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)
        image.save(photos[-1], quality=90)
    return photos


def cifar_100(root: Path, classes: int, _photos: Sequence[Path], each: int = 10) -> Path:
    """Pictures of which one in ten becomes val, at least ten a class; two coarse classes."""
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    random = np.random.default_rng(0)
    names = [f"thing_{index:02d}".encode() for index in range(classes)]
    meta = {b"fine_label_names": names, b"coarse_label_names": [b"some", b"others"]}
    (folder / "meta").write_bytes(pickle.dumps(meta))
    for name, count in (("train", max(10, -(-10 * each // 9))), ("test", 1)):
        fine = list(range(classes)) * count
        entry = {
            b"fine_labels": fine,
            b"coarse_labels": [label % 2 for label in fine],
            b"data": random.integers(0, 256, (len(fine), 3072), dtype=np.uint8),
        }
        (folder / name).write_bytes(pickle.dumps(entry))
    return folder


def plantnet_300k(root: Path, classes: int, photos: Sequence[Path], each: int = 2) -> Path:
    """With one photo a class in val and one in test."""
    ids = [str(1355868 + index) for index in range(classes)]
    _write(root / "images", ids, {"train": each, "val": 1, "test": 1}, photos)
    (root / METADATA).write_text(json.dumps({}))
    (root / NAMES[0]).write_text(json.dumps({each: f"Planta no{each}" for each in ids}))
    return root


def imagenet(root: Path, classes: int, photos: Sequence[Path], each: int = 3) -> Path:
    """With 50 photos a class more, which recipes hold out."""
    _write(root, _wordnet_ids(classes), {"train": each + HELD_OUT, "val": 1}, photos)
    return root


def imagenet_lt(root: Path, classes: int, photos: Sequence[Path], each: int = 2) -> Path:
    """With one photo a class in val and one in test."""
    ids = _wordnet_ids(classes)
    _write(root, ids, {"train": each + 2}, photos)
    lists = root / "ImageNet_LT"
    lists.mkdir()
    parts = {"train": range(2, each + 2), "val": range(1), "test": range(1, 2)}
    for split, numbers in parts.items():
        lines = [f"train/{name}/{x:03d}.jpg {i}" for i, name in enumerate(ids) for x in numbers]
        (lists / f"ImageNet_LT_{split}.txt").write_text("\n".join(lines))
    return lists


COPIES: Mapping[str, Callable[..., Path]] = {
    "cifar-100-python": cifar_100,
    "plantnet_300K": plantnet_300k,
    "imagenet": imagenet,
    "ImageNet_LT": imagenet_lt,
}
"""Each writes into a new folder, for so many classes, and returns what ``--data`` takes.

``each`` is the number of photos of a class to learn from.
"""


def _wordnet_ids(classes: int) -> list[str]:
    return [f"n{1440764 + index:08d}" for index in range(classes)]


def _write(
    root: Path, ids: Sequence[str], counts: Mapping[str, int], photos: Sequence[Path]
) -> None:
    """An ImageFolder of JPEGs, so many of each class by split."""
    number = 0
    for split, count in counts.items():
        for class_id in ids:
            folder = root / split / class_id
            folder.mkdir(parents=True)
            for index in range(count):
                os.link(photos[number % len(photos)], folder / f"{index:03d}.jpg")
                number += 1
