"""The photos that a command line names, grouped by plant."""

import os
from collections.abc import Iterable, Iterator
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
    name: str | None = None  # its folder or the value of its column; None if ungrouped


def count_photos(observations: Iterable[Observation]) -> int:
    """The number of photos of all observations."""
    return sum(len(observation.photos) for observation in observations)


Group = tuple[Path, str] | None  # a folder or manifest, and the name of the plant there


def display_path(path: Path) -> str:
    """A path as text for people and files; bytes that are not UTF-8 appear as ``\\xe9``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def find_photos(
    words: Iterable[str], stdin: Iterable[str], group_by: str | None = None
) -> tuple[list[Observation], list[Path]]:
    """Expand files, folders (with all below), manifests and ``-`` (one path a line of ``stdin``).

    What ends in ``.csv`` or ``.parquet`` is a manifest: each row names a photo in the column
    ``path``, relative to the manifest's folder. Any other file that is named itself counts as a
    photo, whatever its extension: the bytes decide the type. ``group_by`` makes one observation of
    the photos in the same folder (the value ``folder``), or of the rows of a manifest with the same
    value in this column; a row with an empty cell is an observation of its own. Returns the
    observations in the order of their first photos, those of a folder sorted by path, whether the
    photos exist or not; and the files in folders without an image extension.
    """
    column = None if group_by == FOLDER else group_by
    photos: list[tuple[Path, Group]] = []
    skipped: list[Path] = []
    for path in _paths(words, stdin):
        if path.suffix.lower() in SUFFIXES:
            photos.extend(_rows(path, column))
        elif column is not None:
            raise UsageError(
                f"--group-by {column} is a column of a manifest, but {display_path(path)} is not a "
                "manifest: give a CSV or Parquet file with this column, or group by folder"
            )
        elif os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises for names too long
            pictures, others = _files_below(path)
            photos.extend((picture, None) for picture in pictures)
            skipped.extend(others)
        else:
            photos.append((path, None))
    if group_by == FOLDER:
        photos = [(path, (path.parent, display_path(path.parent))) for path, _ in photos]
    return _grouped(photos), skipped


def _grouped(photos: Iterable[tuple[Path, Group]]) -> list[Observation]:
    groups: dict[tuple[Path | int, str | None], list[Path]] = {}
    for number, (path, group) in enumerate(photos):
        groups.setdefault(group or (number, None), []).append(path)
    return [Observation(tuple(paths), name) for (_, name), paths in groups.items()]


def _rows(manifest: Path, column: str | None) -> Iterator[tuple[Path, Group]]:
    table = read_table(manifest)
    for name in ["path"] if column is None else ["path", column]:
        if name not in table:
            names = ", ".join(table)
            raise DataError(f"{display_path(manifest)} has no column {name!r}; it has: {names}")
    empty = [f"row {row}" for row, path in enumerate(table["path"], 1) if not path.strip()]
    if empty:
        raise DataError(f"{display_path(manifest)}: empty paths: {first(empty)}")
    values = [""] * len(table["path"]) if column is None else table[column]
    for path, value in zip(table["path"], values, strict=True):
        yield manifest.parent / path.strip(), (manifest, value.strip()) if value.strip() else None


def _paths(words: Iterable[str], stdin: Iterable[str]) -> Iterator[Path]:
    for word in words:
        if word == "-":
            yield from (Path(line.rstrip("\r\n")) for line in stdin if line.strip())
        else:
            yield Path(word)


def _files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files below, without hidden ones: those with an image extension, and the others."""
    pictures, others = list[Path](), list[Path]()
    for file in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if file.is_file() and not hidden:
            (pictures if file.suffix.lower() in ENDINGS else others).append(file)
    return pictures, others
