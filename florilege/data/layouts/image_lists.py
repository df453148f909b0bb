"""Lists of photos beside their folders: the text files of ImageNet-LT, the JSON of iNaturalist.

ImageNet-LT has text files ``..._train.txt``, ``..._val.txt``, ``..._test.txt``. A line
``train/n01440764/n01440764_190.JPEG 0`` gives a photo and its label. Photos are in the folder of
the lists or its parent. The format is that of Liu et al., "Large-scale long-tailed recognition in
an open world", CVPR 2019.

iNaturalist's competitions have ``train.json`` and ``val.json`` in COCO style: ``images`` lists the
photos, ``annotations`` the category of each, ``categories`` the species. The format is that of
github.com/visipedia/inat_comp, from 2017 to 2021. The lists of 2018 and 2019 hide the names of the
species, which are in ``categories.json``. The lists name no observations.
"""

import os
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any, Final

from florilege.data.layouts import with_class_file
from florilege.data.layouts.folder import (
    IMAGENET_PLACE,
    are_wordnet_ids,
    is_folder_dataset,
    wordnet_names,
)
from florilege.data.records import (
    SPLITS,
    FileReader,
    Listing,
    Records,
    read_json,
    read_lines,
    refuse,
)
from florilege.errors import DataError, first, repeated
from florilege.models.classes import ClassInfo, plain_id

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


def list_lists(path: Path, source: str) -> Listing | None:
    """List the photos that text files name.

    ``path`` is the folder of the lists or one of them. If there are none, the result is None. If
    each label of train has one folder and each folder one label, as in ImageNet-LT, the name of the
    folder is the class id; otherwise the label is. Raises `DataError` if lists of several data sets
    are in the folder, or a line is no path and label.
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
        root=root,
    )
    ids = list(class_of.values())
    if are_wordnet_ids(ids):
        infos = wordnet_names(ids, folder, root)
        listing = replace(listing, class_infos=infos, published=LISTS)
    return with_class_file(listing, folder)


def _records(root: Path, pairs: Sequence[tuple[str, str]], class_of: Mapping[str, str]) -> Records:
    paths = [path for path, _ in pairs]
    class_ids = [class_of[label] for _, label in pairs]
    return Records(class_ids=class_ids, names=paths, read=FileReader(root, paths))


def _root(folder: Path, paths: Sequence[str]) -> Path:
    """The folder of the lists or its parent, whichever contains photos."""
    for root in (folder, folder.resolve().parent):
        # Not Path.is_file, which raises for a name that is too long.
        if any(os.path.isfile(root / path) for path in paths):  # noqa: PTH113
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


PLACE: Final = (
    "photos and lists of iNaturalist's competitions are at github.com/visipedia/inat_comp"
)
_CATEGORIES: Final = "categories.json"
# The competition of 2017 also has lists of boxes, such as `train_2017_bboxes.json`.
_JSON_NAME = re.compile(rf"(?P<split>{'|'.join(SPLITS)})(?!\w*bboxes)\w*\.json")
_BEGINNING = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"(info|licenses|images|annotations|categories)"')


def _json_lists(path: Path) -> dict[str, Path]:
    """The list of each split; empty if there are none."""
    own_split = _split_of(path)
    if own_split is None and not path.is_dir():
        return {}
    lists_of = defaultdict[str | None, list[Path]](list)
    for file in sorted((path.parent if own_split else path).iterdir()):
        lists_of[_split_of(file)].append(file)
    if own_split:
        lists_of[own_split] = [path]
    return {split: _only(lists_of[split], split, path) for split in SPLITS if lists_of[split]}


def _only(lists: Sequence[Path], split: str, path: Path) -> Path:
    """The list of a split; a `DataError` if there are several."""
    if len(lists) > 1:
        names = first([path.name for path in lists])
        raise DataError(
            f"{path} holds several lists of {split}: {names}; name one of them, such as {lists[0]}"
        )
    return lists[0]


def _split_of(path: Path) -> str | None:
    """The split of a list, from its name and its first bytes; None for any other file."""
    name = _JSON_NAME.fullmatch(path.name)
    if name is None or not path.is_file():
        return None
    with path.open("rb") as file:
        return name["split"] if _BEGINNING.match(file.read(200)) else None


def list_inaturalist(path: Path, source: str) -> Listing | None:
    """List the photos that JSON lists name.

    ``path`` is the folder of the lists or one of them. If there are none, the result is None.
    The class id is the number of the category. Lists without annotations, such as the published
    test list, are skipped. Classes have no names if the lists hide them and `categories.json` is
    missing.

    Raises:
        DataError: A list is damaged; a photo has no annotation or several different ones; a split
            has several lists; or lists name a category differently.
    """
    lists = _json_lists(path)
    if not lists:
        return None
    root = next(iter(lists.values())).parent
    records, class_infos = _read_lists(lists, root)
    if all(info.scientific_name.isdigit() for info in class_infos.values()):
        # The lists of 2018 and 2019 hide the species behind numbers.
        class_infos = {}
    listing = Listing(
        source=source,
        splits=records,
        class_infos=class_infos,
        ignored=[file.name for split, file in lists.items() if split not in records],
        published=PLACE,
        root=root,
    )
    return with_class_file(listing, root)


def _read_lists(
    lists: Mapping[str, Path], root: Path
) -> tuple[dict[str, Records], dict[str, ClassInfo]]:
    """The photos of each split whose list has annotations, and the species of all."""
    records: dict[str, Records] = {}
    class_infos: dict[str, ClassInfo] = {}
    for split, file in lists.items():
        content = read_json(file, PLACE)
        assert isinstance(content, dict)  # it begins with a brace
        if "annotations" not in content or (split == "test" and not content["annotations"]):
            continue
        records[split], infos = _read_list(content, root, file)
        contradicted = [name for name, info in infos.items() if class_infos.get(name, info) != info]
        fault = "other lists name these categories differently"
        refuse(str(file), fault, contradicted, "; the lists are of different years")
        class_infos |= infos
    return records, class_infos


def _read_list(
    content: Mapping[str, Any], root: Path, path: Path
) -> tuple[Records, dict[str, ClassInfo]]:
    """The photos of a list, and the species of ``categories.json`` or else of the list."""
    try:
        names = root / _CATEGORIES
        categories = read_json(names, PLACE) if names.is_file() else content["categories"]
        class_infos = {str(category["id"]): _class_info(category) for category in categories}
        return _annotated(content, root, path), class_infos
    except (KeyError, TypeError, AttributeError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} is not a list of iNaturalist: {lacks}; {PLACE}") from error


def _annotated(content: Mapping[str, Any], root: Path, path: Path) -> Records:
    category_of: dict[Any, str] = {}
    ambiguous = []
    for annotation in content["annotations"]:
        category = str(annotation["category_id"])
        if category_of.setdefault(annotation["image_id"], category) != category:
            ambiguous.append(str(annotation["image_id"]))
    refuse(str(path), "photos with several categories", ambiguous)
    names = [str(image["file_name"]) for image in content["images"]]
    class_ids = [category_of.get(image["id"], "") for image in content["images"]]
    unlabelled = [name for name, class_id in zip(names, class_ids, strict=True) if not class_id]
    refuse(str(path), "photos without an annotation", unlabelled)
    refuse(str(path), "photos listed twice", repeated(names))
    return Records(class_ids=class_ids, names=names, read=FileReader(root, names))


def _class_info(category: Mapping[str, Any]) -> ClassInfo:
    genus, family, common = (category.get(key) for key in ("genus", "family", "common_name"))
    return ClassInfo(
        id=str(category["id"]),
        scientific_name=str(category["name"]),
        genus=str(genus) if genus else None,
        family=str(family) if family else None,
        common_names={"en": (str(common),)} if common else {},
    )
