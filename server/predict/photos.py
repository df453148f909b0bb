"""Which photos the words of a command line mean, and which of them show the same plant."""

import os
from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from florilege.errors import DataError, UsageError, first
from florilege.models.images.sniff import ENDINGS
from florilege.server.predict.batch_settings import FOLDER
from florilege.tables import SUFFIXES, read_table


@dataclass(frozen=True)
class Observation:
    """The photos of one plant, at least one."""

    photos: tuple[Path, ...]
    name: str | None = None  # its folder or the value of its column; None where nothing is grouped


@dataclass(frozen=True)
class _Photo:
    """A photo and, where a column groups, the key and the value there."""

    path: Path
    key: Hashable = None
    name: str | None = None


def display_path(path: Path) -> str:
    """A path as text for people and files; bytes that are not UTF-8 appear as ``\\xe9``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def find_photos(
    words: Iterable[str], stdin: Iterable[str], group_by: str | None = None
) -> tuple[list[Observation], list[Path]]:
    """Expand files, folders (with all below), manifests and ``-`` (one path a line of ``stdin``).

    What ends in ``.csv`` or ``.parquet`` is a manifest: each row names a photo in the column
    ``path``, relative to the manifest's folder. Any other file named outright is taken for a
    photo, whatever its ending: the bytes decide the type. ``group_by`` makes one observation
    of the photos in the same folder (the word ``folder``), or of the rows of a manifest that have
    the same value in this column; a row whose cell is empty stays alone.

    Returns:
        The photos in the order given, each folder's sorted by path, whether they exist or not, an
        observation standing where its first photo does; and the files inside folders that are not
        named like pictures.

    Raises:
        DataError: A manifest that cannot be read, or lacks a column or a path.
        UsageError: A column is to group photos that are in no manifest.
    """
    column = None if group_by == FOLDER else group_by
    photos: list[_Photo] = []
    skipped: list[Path] = []
    for path in _paths(words, stdin):
        if path.suffix.lower() in SUFFIXES:
            photos.extend(_rows(path, column))
        elif column is not None:
            raise UsageError(
                f"--group-by {column} is a column of a manifest, and {display_path(path)} is none: "
                "give a CSV or Parquet file with it, or group by folder"
            )
        elif os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises for names too long
            pictures, others = _files_below(path)
            photos.extend(map(_Photo, pictures))
            skipped.extend(others)
        else:
            photos.append(_Photo(path))
    if group_by == FOLDER:
        folders = [each.path.parent for each in photos]
        photos = [
            _Photo(each.path, folder, display_path(folder))
            for each, folder in zip(photos, folders, strict=True)
        ]
    return _grouped(photos), skipped


def _grouped(photos: Iterable[_Photo]) -> list[Observation]:
    groups: dict[Hashable, list[_Photo]] = {}
    for number, photo in enumerate(photos):
        groups.setdefault(number if photo.key is None else photo.key, []).append(photo)
    return [
        Observation(tuple(each.path for each in group), group[0].name) for group in groups.values()
    ]


def _rows(manifest: Path, column: str | None) -> Iterator[_Photo]:
    """The photos of a manifest."""
    table = read_table(manifest)
    _check_columns(manifest, table, ["path"] if column is None else ["path", column])
    empty = [f"row {row}" for row, path in enumerate(table["path"], 1) if not path.strip()]
    if empty:
        raise DataError(f"{display_path(manifest)}: empty paths: {first(empty)}")
    groups = [""] * len(table["path"]) if column is None else table[column]
    for path, group in zip(table["path"], groups, strict=True):
        value = group.strip() or None
        yield _Photo(manifest.parent / path.strip(), value and (manifest, value), value)


def _check_columns(manifest: Path, table: Iterable[str], required: Iterable[str]) -> None:
    columns = list(table)
    for name in required:
        if name not in columns:
            names = ", ".join(columns) or "none"
            raise DataError(f"{display_path(manifest)} has no column {name!r}; it has: {names}")


def _paths(words: Iterable[str], stdin: Iterable[str]) -> Iterator[Path]:
    for word in words:
        if word == "-":
            yield from (Path(line.rstrip("\r\n")) for line in stdin if line.strip())
        else:
            yield Path(word)


def _files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files below, without hidden ones: those named like pictures, and the others."""
    pictures, others = list[Path](), list[Path]()
    for file in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if file.is_file() and not hidden:
            (pictures if file.suffix.lower() in ENDINGS else others).append(file)
    return pictures, others
