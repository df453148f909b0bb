"""Which photos the words of a command line mean."""

import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from models.images.sniff import ENDINGS


def find_photos(words: Iterable[str], stdin: Iterable[str]) -> tuple[list[Path], list[Path]]:
    """Expand files, folders (with all folders below) and ``-`` (one path a line of ``stdin``).

    A file named outright is always taken, whatever its ending: the type is told by the bytes.

    Returns:
        The photos in the order given, each folder's sorted by path, whether they exist or not; and
        the files inside folders that are not named like pictures.
    """
    photos: list[Path] = []
    skipped: list[Path] = []
    for path in _paths(words, stdin):
        if not os.path.isdir(path):  # noqa: PTH112  # Path.is_dir raises for names too long
            photos.append(path)
            continue
        for file in _files_below(path):
            (photos if file.suffix.lower() in ENDINGS else skipped).append(file)
    return photos, skipped


def _paths(words: Iterable[str], stdin: Iterable[str]) -> Iterator[Path]:
    for word in words:
        if word == "-":
            yield from (Path(line.rstrip("\r\n")) for line in stdin if line.strip())
        else:
            yield Path(word)


def _files_below(folder: Path) -> list[Path]:
    """All files below, without hidden ones."""
    found = (file for file in folder.rglob("*") if file.is_file())
    return sorted(
        file for file in found if not any(p.startswith(".") for p in file.relative_to(folder).parts)
    )
