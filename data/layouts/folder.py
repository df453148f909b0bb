"""An ImageFolder: ``train/<class id>/<photo>``, ``val/...``, ``test/...``."""

import os
from collections.abc import Iterator
from pathlib import Path

from florilege.data.dataset import FileReader, split_name
from florilege.data.layouts.published_lists import with_class_file
from florilege.data.records import Listing, Records
from florilege.errors import DataError
from florilege.models.images.sniff import ENDINGS

# The decoder refuses the last four; `data check` then lists these files.
SUFFIXES = ENDINGS | {".gif", ".bmp", ".tif", ".tiff"}


def is_folder_dataset(root: Path) -> bool:
    """Whether ``root`` holds a folder named like a split."""
    return root.is_dir() and any(split_name(one.name) and one.is_dir() for one in root.iterdir())


def list_folder(root: Path, source: str) -> Listing:
    """List an ImageFolder without opening a picture.

    The name of a folder inside a split is the class id; photos may be in its subfolders. Hidden
    entries are skipped. Files without a picture suffix are listed in ``ignored``. Messages call
    the folder ``source``. ``classes.csv`` beside the splits describes the classes.

    Raises:
        DataError: Two folders mean the same split, or ``classes.csv`` is damaged.
        OSError: A folder cannot be listed.
    """
    ignored: list[str] = []
    folders = _split_folders(root, source, ignored)
    records = {name: _records(root, path, ignored) for name, path in folders.items()}
    return with_class_file(Listing(source=source, splits=records, ignored=ignored), root)


def list_classes(root: Path) -> Records:
    """List a folder of class folders without splits: ``<class id>/<photo>``.

    Raises:
        DataError: The folder cannot be listed.
    """
    try:
        return _records(root, root, [])
    except OSError as error:
        raise DataError(f"{root} cannot be listed: {error}") from error


def _split_folders(root: Path, source: str, ignored: list[str]) -> dict[str, Path]:
    folders: dict[str, Path] = {}
    for entry in _visible(root):
        name = split_name(entry.name)
        if name is None or not entry.is_dir():
            ignored.append(entry.name)
        elif name in folders:
            raise DataError(
                f"{source}: folders {folders[name].name!r} and {entry.name!r} both mean the split "
                f"{name!r}; keep one of them"
            )
        else:
            folders[name] = Path(entry.path)
    return folders


def _records(root: Path, split: Path, ignored: list[str]) -> Records:
    class_ids: list[str] = []
    paths: list[str] = []
    for entry in _visible(split):
        if not entry.is_dir():
            ignored.append(os.path.relpath(entry.path, root))
            continue
        pictures = list(_pictures(Path(entry.path), root, ignored))
        if not pictures:
            ignored.append(os.path.relpath(entry.path, root) + os.sep)
        paths += pictures
        class_ids += [entry.name] * len(pictures)
    return Records(class_ids=class_ids, names=paths, read=FileReader(root, paths))


def _pictures(folder: Path, root: Path, ignored: list[str]) -> Iterator[str]:
    for entry in _visible(folder):
        if entry.is_dir():
            yield from _pictures(Path(entry.path), root, ignored)
        elif Path(entry.name).suffix.lower() in SUFFIXES:
            yield os.path.relpath(entry.path, root)
        else:
            ignored.append(os.path.relpath(entry.path, root))


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    return sorted(visible, key=lambda entry: entry.name)
