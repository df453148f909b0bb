"""ImageNet-LT and its like: text files ``..._train.txt``, ``..._val.txt``, ``..._test.txt``.

A line ``train/n01440764/n01440764_190.JPEG 0`` gives a photo and its label. Photos lie in the
folder of the lists or in the one above. The lists are those of Liu et al., "Large-scale long-tailed
recognition in an open world", CVPR 2019.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from florilege.data.dataset import SPLITS, FileReader
from florilege.data.layouts.folder import is_folder_dataset
from florilege.data.layouts.imagenet import PLACE, are_wordnet_ids, wordnet_names
from florilege.data.layouts.published_lists import demand_photos, with_class_file
from florilege.data.records import Listing, Records
from florilege.errors import DataError, first

LISTS: Final = (
    f"{PLACE}, the lists of ImageNet-LT in github.com/zhmiao/OpenLongTailRecognition-OLTR"
)
_NAME = re.compile(rf"(?P<prefix>.*?)(?P<split>{'|'.join(SPLITS)})\.txt", re.IGNORECASE)


def find_lists(path: Path) -> dict[str, Path]:
    """The list of each split, empty without any; ``path`` is their folder or one of them.

    A folder with splits of its own is an ImageFolder, whatever lists lie beside them.

    Raises:
        DataError: The folder holds lists of several data sets.
        OSError: The folder cannot be listed.
    """
    if path.is_file() and (found := _NAME.fullmatch(path.name)):
        return _of_prefix(path.parent, found["prefix"])
    if not path.is_dir() or is_folder_dataset(path):
        return {}
    matches = [found for one in path.iterdir() if (found := _NAME.fullmatch(one.name))]
    prefixes = sorted({found["prefix"] for found in matches})
    if len(prefixes) > 1:
        names = sorted(found.string for found in matches)
        raise DataError(
            f"{path} holds lists of several data sets: {first(names)}; name one of them"
        )
    return _of_prefix(path, prefixes[0]) if prefixes else {}


def list_lists(
    lists: Mapping[str, Path], source: str, *, splits: Sequence[str] | None = None
) -> Listing:
    """List the photos that text files name; those of ``splits`` (all by default) must exist.

    The class id of a label is the name of its photos' folder in train, where each label has one
    folder there and each folder one label, as in ImageNet-LT; else the label itself.

    Raises:
        DataError: A list is not made of paths and labels, or photos are missing: which, and where
            ImageNet and its lists are to be had.
    """
    rows = {split: _read(path) for split, path in lists.items()}
    folder = next(iter(lists.values())).parent
    root = _root(folder, rows)
    every = [pair for each in rows.values() for pair in each]
    label_of: dict[str, str] = {}
    contrary = [path for path, label in every if label_of.setdefault(path, label) != label]
    if contrary:
        raise DataError(f"{source}: photos with several labels: {first(contrary)}")
    class_of = _class_ids(rows.get("train") or every, every)
    found = {}
    for split, pairs in rows.items():
        paths = [path for path, _ in pairs]
        ids = [class_of[label] for _, label in pairs]
        found[split] = Records(class_ids=ids, names=paths, read=FileReader(root, paths))
    ids = list(class_of.values())
    wordnet = are_wordnet_ids(ids)
    listing = Listing(
        source=source,
        splits=found,
        known=wordnet_names(ids, folder, root) if wordnet else {},
        published=LISTS if wordnet else None,
    )
    demand_photos(listing, root, splits)
    return with_class_file(listing, folder)


def _of_prefix(folder: Path, prefix: str) -> dict[str, Path]:
    found = {}
    for path in sorted(folder.iterdir()):
        name = _NAME.fullmatch(path.name)
        if name and name["prefix"] == prefix and path.is_file():
            found[name["split"].lower()] = path
    return {split: found[split] for split in SPLITS if split in found}


def _read(path: Path) -> list[tuple[str, str]]:
    """Paths and labels, a pair a line."""
    try:
        lines = path.read_text("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not a text file in UTF-8: {error}") from error
    pairs = []
    for number, line in enumerate(lines, 1):
        parts = line.rsplit(maxsplit=1)
        if len(parts) == 2 and parts[1].isascii() and parts[1].isdigit():
            pairs.append((parts[0].strip(), parts[1]))
        elif parts:
            raise DataError(
                f"{path}, line {number}: a line holds the path of a photo and the number of its "
                f"class, got {line!r}"
            )
    return pairs


def _root(folder: Path, rows: Mapping[str, Sequence[tuple[str, str]]]) -> Path:
    """The folder of the lists or the one above, wherever a photo lies."""
    for root in (folder, folder.resolve().parent):
        if any((root / path).is_file() for pairs in rows.values() for path, _ in pairs):
            return root
    return folder


def _class_ids(
    learnt: Sequence[tuple[str, str]], every: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """The class id of each label: its folder, by the photos learnt from and against no other."""
    together = {(label, Path(path).parent.name) for path, label in learnt}
    folder_of, labels = dict(together), {label for _, label in every}
    folders = set(folder_of.values())
    if len(folders) == len(folder_of) == len(together) == len(labels):
        found = {(label, Path(path).parent.name) for path, label in every}
        if all(folder_of[label] == folder for label, folder in found if folder in folders):
            return folder_of
    return {label: label for label in labels}
