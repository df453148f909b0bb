"""Lists such as ImageNet-LT's: text files ``..._train.txt``, ``..._val.txt``, ``..._test.txt``.

A line ``train/n01440764/n01440764_190.JPEG 0`` gives a photo and its label. Photos are in the
folder of the lists or its parent. The format is that of Liu et al., "Large-scale long-tailed
recognition in an open world", CVPR 2019.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

from florilege.data.dataset import SPLITS, FileReader
from florilege.data.layouts.class_file import with_class_file
from florilege.data.layouts.folder import (
    IMAGENET_PLACE,
    are_wordnet_ids,
    is_folder_dataset,
    wordnet_names,
)
from florilege.data.records import Listing, Records, demand_photos, read_lines, refuse
from florilege.errors import DataError, first
from florilege.models.classes import plain_id

LISTS: Final = (
    f"{IMAGENET_PLACE}, the lists of ImageNet-LT in github.com/zhmiao/OpenLongTailRecognition-OLTR"
)
_NAME = re.compile(rf"(?P<prefix>.*?)(?P<split>{'|'.join(SPLITS)})\.txt", re.IGNORECASE)


def _find_lists(path: Path) -> dict[str, Path]:
    """The list of each split; empty if there are none.

    A folder that contains split folders is an ImageFolder, even with lists beside them.
    """
    if path.is_file() and (match := _NAME.fullmatch(path.name)):
        return _lists_by_prefix(path.parent)[match["prefix"]]
    if not path.is_dir() or is_folder_dataset(path):
        return {}
    lists_of = _lists_by_prefix(path)
    if len(lists_of) > 1:
        names = sorted(file.name for lists in lists_of.values() for file in lists.values())
        raise DataError(
            f"{path} holds lists of several data sets: {first(names)}; name one of them"
        )
    return next(iter(lists_of.values()), {})


def _lists_by_prefix(folder: Path) -> dict[str, dict[str, Path]]:
    """The lists of each data set in a folder, by the beginning of their names and by split."""
    lists_of = defaultdict[str, dict[str, Path]](dict)
    for split in SPLITS:
        for file in sorted(folder.iterdir()):
            name = _NAME.fullmatch(file.name)
            if name and name["split"].lower() == split and file.is_file():
                lists_of[name["prefix"]][split] = file
    return lists_of


def list_lists(path: Path, source: str, splits: Sequence[str] | None) -> Listing | None:
    """List the photos that text files name; those of ``splits`` (None: all) must exist.

    ``path`` is the folder of the lists or one of them. If there are none, the result is None. If
    each label of train has one folder and each folder one label, as in ImageNet-LT, the name of the
    folder is the class id; otherwise the label is. Raises `DataError` if lists of several data sets
    are in the folder, a line is no path and label, or photos are missing.
    """
    lists = _find_lists(path)
    if not lists:
        return None
    rows = {split: _read(file) for split, file in lists.items()}
    all_rows = list(chain.from_iterable(rows.values()))
    folder = next(iter(lists.values())).parent
    root = _root(folder, [path for path, _ in all_rows])
    label_of: dict[str, str] = {}
    ambiguous = [path for path, label in all_rows if label_of.setdefault(path, label) != label]
    refuse(source, "photos with several labels", ambiguous)
    class_of = _class_ids(rows.get("train") or all_rows, all_rows)
    listing = Listing(
        source=source,
        splits={split: _records(root, pairs, class_of) for split, pairs in rows.items()},
    )
    ids = list(class_of.values())
    if are_wordnet_ids(ids):
        infos = wordnet_names(ids, folder, root)
        listing = replace(listing, class_infos=infos, published=LISTS)
    demand_photos(listing, root, splits)
    return with_class_file(listing, folder)


def _records(root: Path, pairs: Sequence[tuple[str, str]], class_of: Mapping[str, str]) -> Records:
    paths = [path for path, _ in pairs]
    class_ids = [class_of[label] for _, label in pairs]
    return Records(class_ids=class_ids, names=paths, read=FileReader(root, paths))


def _root(folder: Path, paths: Sequence[str]) -> Path:
    """The folder of the lists or its parent, whichever contains photos."""
    for root in (folder, folder.resolve().parent):
        if any((root / path).is_file() for path in paths):
            return root
    return folder


def _read(path: Path) -> list[tuple[str, str]]:
    """The path and label on each line."""
    pairs = []
    for number, line in enumerate(read_lines(path), 1):
        parts = line.rsplit(maxsplit=1)
        if len(parts) == 2 and parts[1].isascii() and parts[1].isdigit():
            pairs.append((parts[0].strip(), parts[1]))
        elif parts:
            raise DataError(
                f"{path}, line {number}: must hold the path of a photo and the number of its "
                f"class, got {line!r}"
            )
    return pairs


def _class_ids(
    train: Sequence[tuple[str, str]], all_rows: Sequence[tuple[str, str]]
) -> dict[str, str]:
    """The class id of each label: its folder in train if no photo contradicts, else the label."""
    train_pairs = {(label, plain_id(Path(path).parent.name)) for path, label in train}
    folder_of, labels = dict(train_pairs), {label for _, label in all_rows}
    folders = set(folder_of.values())
    if len(folders) == len(folder_of) == len(train_pairs) == len(labels):
        pairs = {(label, plain_id(Path(path).parent.name)) for path, label in all_rows}
        if all(folder_of[label] == folder for label, folder in pairs if folder in folders):
            return folder_of
    return {label: label for label in labels}
