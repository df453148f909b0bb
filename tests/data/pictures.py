"""Small picture files for the tests of data sets."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from florilege.data.flora import encode_png


def png(seed: int, side: int = 8) -> bytes:
    """A PNG that differs from that of any other seed."""
    picture = np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)
    return encode_png(picture)


def write_manifest(root: Path, text: str, files: int) -> Path:
    """A manifest beside the different pictures ``0.png``, ``1.png`` and so on."""
    for index in range(files):
        (root / f"{index}.png").write_bytes(png(index))
    path = root / "manifest.csv"
    path.write_text(text, encoding="utf-8")
    return path


def write_folder(root: Path, counts: Mapping[str, Mapping[str, int]]) -> Path:
    """An ImageFolder with this many different pictures by split and class."""
    seed = 0
    for split, classes in counts.items():
        for class_id, number in classes.items():
            folder = root / split / class_id
            folder.mkdir(parents=True)
            for index in range(number):
                seed += 1
                (folder / f"{index:03d}.png").write_bytes(png(seed))
    return root
