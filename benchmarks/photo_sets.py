"""A set of licensed photos from the form in which it is handed on to one that ``--data`` takes.

Run ``python -m benchmarks.photo_sets FOLDER --out SET``, then name ``SET/photos.csv`` as data. The
folder holds ``images.tar``, ``index.csv`` (columns ``path``, ``fine``, ``coarse`` and ``split``; a
path is that of a member) and ``classes.json`` (the names that ``fine`` and ``coarse`` count into).
With ``--redraws N``, ``SET/photos-1.csv`` to ``SET/photos-N.csv`` cut the same photos otherwise.
"""

import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Annotated

import numpy as np
import typer

from florilege.data.dataset import SPLITS, split_name
from florilege.errors import DataError
from florilege.tables import Table, read_table, write_table

MANIFEST = "photos.csv"
OUTSIDE = "ood"  # the part that shows none of the classes; a folder beside the splits


def main(
    folder: Annotated[Path, typer.Argument(help="With images.tar, index.csv and classes.json.")],
    out: Annotated[Path, typer.Option(help="Folder to write the photos and photos.csv into.")],
    redraws: Annotated[int, typer.Option(help="How many manifests cut the photos anew.")] = 0,
) -> None:
    """Unpack a set of photos into class folders with a manifest that knows their groups."""
    table = manifest(folder)
    unpack(folder, out)
    write_table(out / MANIFEST, table)
    for seed in range(1, redraws + 1):
        write_table(out / f"photos-{seed}.csv", redrawn(table, seed))
    rows = Counter(table["split"])
    counts = ", ".join(f"{name} {rows[name]:,}" for name in SPLITS)
    groups = f"{len(set(table['class_id']))} classes in {len(set(table['group']))} groups"
    typer.echo(f"{out / MANIFEST}: {counts}; {groups}")


def manifest(folder: Path) -> Table:
    """The manifest of the photos of known classes: path, class, split, and coarse name as group.

    Raises:
        DataError: A split that is neither known nor ``ood``.
    """
    names = json.loads((folder / "classes.json").read_bytes())
    index = read_table(folder / "index.csv")
    columns: dict[str, list[str]] = {"path": [], "class_id": [], "split": [], "group": []}
    for path, fine, coarse, split in zip(
        index["path"], index["fine"], index["coarse"], index["split"], strict=True
    ):
        if split == OUTSIDE:
            continue
        name = split_name(split)
        if name is None:
            raise DataError(f"{folder / 'index.csv'}: {path} is of an unknown split {split!r}")
        row = (place(path), names["fine"][int(fine)], names["coarse"][int(coarse)], name)
        for column, cell in zip(("path", "class_id", "group", "split"), row, strict=True):
            columns[column].append(cell)
    return columns


def redrawn(table: Table, seed: int) -> Table:
    """The manifest with the splits dealt out anew; each keeps its number of photos of a class."""
    random, classes = np.random.default_rng(seed), np.array(table["class_id"])
    splits = np.array(table["split"])
    for name in dict.fromkeys(table["class_id"]):
        rows = np.flatnonzero(classes == name)
        splits[rows] = splits[random.permutation(rows)]
    return {**table, "split": splits.tolist()}


def unpack(folder: Path, out: Path) -> None:
    """Write every photo of the index, and the licence where there is one, below ``out``.

    Raises:
        DataError: The archive lacks a photo of the index.
    """
    with tarfile.open(folder / "images.tar") as archive:
        members = {member.name: member for member in archive if member.isfile()}
        for path in read_table(folder / "index.csv")["path"]:
            photo = archive.extractfile(members[path]) if path in members else None
            if photo is None:
                raise DataError(f"{folder / 'images.tar'} has no photo {path}")
            target = out / place(path)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(photo.read())
    if (folder / "LICENSE").is_file():
        shutil.copyfile(folder / "LICENSE", out / "LICENSE")


def place(path: str) -> str:
    """Where a member goes below the folder written: its split by the name that the project uses.

    Raises:
        DataError: The path leads out of the folder.

    Example:
        >>> place("cal/Leek/Leek_001.jpg"), place("ood/Milk_004.jpg")
        ('val/Leek/Leek_001.jpg', 'ood/Milk_004.jpg')
    """
    split, *rest = PurePosixPath(path).parts
    if split == "/" or ".." in (split, *rest):
        raise DataError(f"{path!r} leads out of the folder of photos")
    return str(PurePosixPath(split_name(split) or split, *rest))


if __name__ == "__main__":
    typer.run(main)
