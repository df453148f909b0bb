"""An ImageFolder: ``train/<class id>/<photo>``, ``val/...``, ``test/...``.

ImageNet is one whose class folders are WordNet ids. The names of its classes come from one of the
small tables that accompany the photos, if it is beside the splits. Each line describes a class:
``n01440764 tench, Tinca tinca``.
"""

import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

from florilege.data.layouts import update_class_infos, with_class_file
from florilege.data.records import FileReader, Listing, Records, read_lines, split_name
from florilege.errors import DataError
from florilege.models.classes import ClassInfo, plain_id
from florilege.models.images import ENDINGS

# The decoder refuses GIF, BMP and TIFF; `data check` lists these files.
SUFFIXES = ENDINGS | {".gif", ".bmp", ".tif", ".tiff"}
IMAGENET_PLACE: Final = (
    "the photos of ImageNet (ILSVRC 2012) are at image-net.org, after registration"
)
# From the Kaggle challenge, Caffe and ImageNet itself.
_NAME_TABLES: Final = ("LOC_synset_mapping.txt", "synset_words.txt", "words.txt")
_WORDNET_ID = re.compile(r"n\d{8}")
_UNSORTED = re.compile(r"\w+[/\\]ILSVRC2012_val_\d{8}\.JPEG")


def is_folder_dataset(root: Path) -> bool:
    """Whether ``root`` holds a folder named like a split."""
    return root.is_dir() and any(split_name(one.name) and one.is_dir() for one in root.iterdir())


def list_images(root: Path, source: str) -> Listing | None:
    """List an ImageFolder, with ImageNet's class names; None if ``root`` is no ImageFolder.

    Raises:
        DataError: As `list_folder`; or photos of val are outside class folders, as in the archive;
            or a table of names is not in UTF-8.
    """
    if not is_folder_dataset(root):
        return None
    listing = list_folder(root, source)
    ids = {class_id for records in listing.splits.values() for class_id in records.class_ids}
    if not are_wordnet_ids(ids):
        return listing
    if any(map(_UNSORTED.fullmatch, listing.ignored)):
        raise DataError(
            f"{source}: photos of val are outside class folders, as in the archive; move them to "
            "folders such as val/n01440764 (torchvision.datasets.ImageNet does so, and "
            "LOC_val_solution.csv names the class of each)"
        )
    return replace(
        listing,
        class_infos=update_class_infos(wordnet_names(ids, root), listing.class_infos),
        ignored=[name for name in listing.ignored if name not in _NAME_TABLES],
        published=IMAGENET_PLACE,
    )


def list_folder(root: Path, source: str) -> Listing:
    """List an ImageFolder without opening a picture.

    The name of a folder inside a split is the class id (`plain_id`); photos may be in its
    subfolders. Hidden entries are skipped. Files without a picture suffix are listed in
    ``ignored``. Messages call the folder ``source``. ``classes.csv`` beside the splits describes
    the classes.

    Raises:
        DataError: Two folders mean the same split, a name is not in UTF-8, or ``classes.csv`` is
            damaged.
        OSError: A folder cannot be listed.
    """
    ignored: list[str] = []
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
    records = {name: list_classes(path, root, ignored) for name, path in folders.items()}
    return with_class_file(Listing(source=source, splits=records, ignored=ignored), root)


def list_classes(folder: Path, root: Path, ignored: list[str]) -> Records:
    """List class folders, ``<class id>/<photo>``, with paths relative to ``root``.

    Everything else is appended to ``ignored``. Raises `OSError` if a folder cannot be listed.
    """
    class_ids: list[str] = []
    paths: list[str] = []
    above = frozenset(map(os.path.realpath, (root, folder)))
    for entry in _visible(folder):
        if not entry.is_dir() or os.path.realpath(entry.path) in above:
            ignored.append(os.path.relpath(entry.path, root))
            continue
        pictures = list(_pictures(Path(entry.path), root, ignored, above))
        if not pictures:
            ignored.append(os.path.relpath(entry.path, root) + os.sep)
        paths += pictures
        class_ids += [plain_id(entry.name)] * len(pictures)
    return Records(class_ids=class_ids, names=paths, read=FileReader(root, paths))


def _pictures(folder: Path, root: Path, ignored: list[str], above: frozenset[str]) -> Iterator[str]:
    """The photos in a folder; a link to one of those ``above`` would never end."""
    above |= {os.path.realpath(folder)}
    for entry in _visible(folder):
        if entry.is_dir():
            if os.path.realpath(entry.path) in above:
                ignored.append(os.path.relpath(entry.path, root) + os.sep)
            else:
                yield from _pictures(Path(entry.path), root, ignored, above)
        elif Path(entry.name).suffix.lower() in SUFFIXES:
            yield os.path.relpath(entry.path, root)
        else:
            ignored.append(os.path.relpath(entry.path, root))


def _visible(folder: Path) -> list[os.DirEntry[str]]:
    with os.scandir(folder) as entries:
        visible = [entry for entry in entries if not entry.name.startswith(".")]
    for entry in visible:
        try:
            entry.name.encode()
        # Python keeps other bytes as surrogates, which no table, digest or JSON takes.
        except UnicodeEncodeError as error:
            name = ascii(os.fsencode(entry.name))[2:-1]
            raise DataError(
                f"{folder}: the name {name} is not in UTF-8; rename it, or unpack its archive "
                "anew with the encoding of its names, such as unzip -O cp1252"
            ) from error
    # Each disk lists a folder in an order of its own, and the order of rows must not depend on it.
    return sorted(visible, key=lambda entry: entry.name)


def are_wordnet_ids(ids: Iterable[str]) -> bool:
    """Whether there are class ids and all are WordNet ids, as in ImageNet."""
    return bool(ids) and all(map(_WORDNET_ID.fullmatch, ids))


def wordnet_names(ids: Iterable[str], *folders: Path) -> dict[str, ClassInfo]:
    """The classes ``ids`` as the first table in ``folders`` names them; empty without a table.

    A line ``n02012849 crane, bird`` names the class n02012849 "crane" and gives it the English
    names "crane" and "bird". If several classes are called crane, it is "crane (n02012849)".
    Raises `DataError` if the table is not in UTF-8.
    """
    tables = (folder / name for folder in folders for name in _NAME_TABLES)
    table = next(filter(Path.is_file, tables), None)
    names_of, known_ids = dict[str, tuple[str, ...]](), set(ids)
    for line in read_lines(table) if table else ():
        match line.split(maxsplit=1):
            case [class_id, text] if class_id in known_ids:
                names = tuple(filter(None, map(str.strip, text.split(","))))
                names_of[class_id] = names or (class_id,)
    uses = Counter(names[0] for names in names_of.values())
    return {
        class_id: ClassInfo(
            id=class_id,
            scientific_name=names[0] if uses[names[0]] == 1 else f"{names[0]} ({class_id})",
            common_names={"en": names},
        )
        for class_id, names in names_of.items()
    }
