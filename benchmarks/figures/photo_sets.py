"""The sets of photos that the benchmarks use, from published originals to what ``--data`` takes.

Run ``python -m benchmarks.figures.photo_sets NAME ORIGINAL --out SET`` for caltech101-96,
grocery-plants or cifar-100; without an original it says where to get it. Then name
``SET/photos.csv`` as data, of CIFAR-100 ``SET`` itself.

In place of a name, a folder may hold a packed set: ``images.tar``, ``index.csv`` (columns ``path``,
``fine``, ``coarse`` and ``split``; a path is that of a member) and ``classes.json`` (the names that
``fine`` and ``coarse`` count into).
"""

import json
import shutil
import tarfile
from collections import Counter
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from benchmarks.figures.published_photos import CIFAR, LICENCE, LISTS, ORIGINALS, convert_all
from florilege.data.records import SPLITS, split_name
from florilege.data.sources import open_dataset
from florilege.errors import DataError, FlorilegeError, UsageError
from florilege.tables import Table, read_table, write_table

MANIFEST = "photos.csv"
OUTSIDE = "ood"  # the part that shows none of the classes; a folder beside the splits


def main(
    name: Annotated[str, typer.Argument(help="Name of a set, or folder of a packed one.")],
    original: Annotated[Path | None, typer.Argument(help="What its authors publish.")] = None,
    *,
    out: Annotated[Path, typer.Option(help="Folder to write the photos and photos.csv into.")],
) -> None:
    """Write a set of photos into class folders with a manifest that knows their groups."""
    try:
        typer.echo(make(name, original, out))
    except FlorilegeError as error:
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from error


def make(name: str, original: Path | None, out: Path) -> str:
    """Write the set; gives a line that says what it holds.

    Raises:
        UsageError: There is no set of that name.
        DataError: The original or the packed set cannot be used.
    """
    if name == CIFAR:
        convert_all(name, original, {file: file for file in ("train", "test", "meta")}, out)
        splits = open_dataset(str(out)).splits
        return f"{out}: {', '.join(f'{each} {len(splits[each]):,}' for each in SPLITS)}"
    if name in ORIGINALS:
        table = listed(name, original, out)
    elif (Path(name) / "images.tar").is_file():
        table = manifest(Path(name))
        unpack(Path(name), out)
    else:
        raise UsageError(f"{name} is neither a packed set nor one of {', '.join(ORIGINALS)}")
    write_table(out / MANIFEST, table)
    rows = Counter(table["split"])
    counts = ", ".join(f"{name} {rows[name]:,}" for name in SPLITS)
    groups = f"{len(set(table['class_id']))} classes in {len(set(table['group']))} groups"
    return f"{out / MANIFEST}: {counts}; {groups}"


def listed(name: str, original: Path | None, out: Path) -> Table:
    """Write the photos that the list of a set names; gives the manifest.

    Raises:
        DataError: The original is not there or lacks some of them.
    """
    table = read_table(LISTS / f"{name}.csv")
    targets = {ORIGINALS[name].listed_key(PurePosixPath(path)): path for path in table["path"]}
    convert_all(name, original, {LICENCE: LICENCE, **targets}, out)
    rows = [PurePosixPath(path).parts for path in table["path"]]
    inside = [row for row, (split, *_) in enumerate(rows) if split != OUTSIDE]
    return {
        "path": [table["path"][row] for row in inside],
        "class_id": [rows[row][1] for row in inside],
        "split": [rows[row][0] for row in inside],
        "group": [table["group"][row] for row in inside],
    }


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
    if (folder / LICENCE).is_file():
        shutil.copyfile(folder / LICENCE, out / LICENCE)


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
