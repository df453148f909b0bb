"""iNaturalist's competition data: lists ``train.json`` and ``val.json`` in COCO style.

``images`` lists the photos, ``annotations`` the category of each, ``categories`` the species. The
format is that of github.com/visipedia/inat_comp, from 2017 to 2021. The lists of 2018 and 2019 hide
the names of the species, which are in ``categories.json``. The lists name no observations.
"""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from florilege.data.dataset import SPLITS, FileReader
from florilege.data.layouts.class_file import with_class_file
from florilege.data.records import Listing, Records, demand_photos, read_json, refuse
from florilege.errors import DataError, first, repeated
from florilege.models.classes import ClassInfo

PLACE: Final = (
    "photos and lists of iNaturalist's competitions are at github.com/visipedia/inat_comp"
)
_CATEGORIES: Final = "categories.json"
_NAME = re.compile(rf"(?P<split>{'|'.join(SPLITS)})(?!\w*bboxes)\w*\.json")
_BEGINNING = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"(info|licenses|images|annotations|categories)"')


def _find_lists(path: Path) -> dict[str, Path]:
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
    name = _NAME.fullmatch(path.name)
    if name is None or not path.is_file():
        return None
    with path.open("rb") as file:
        return name["split"] if _BEGINNING.match(file.read(200)) else None


def list_inaturalist(path: Path, source: str, splits: Sequence[str] | None) -> Listing | None:
    """List the photos that JSON lists name; those of ``splits`` (None: all) must exist.

    ``path`` is the folder of the lists or one of them. If there are none, the result is None.
    The class id is the number of the category. Lists without annotations, such as the published
    test list, are skipped. Classes have no names if the lists hide them and `categories.json` is
    missing.

    Raises:
        DataError: A list is damaged; a photo has no annotation or several different ones; a split
            has several lists; lists name a category differently; or photos are missing.
    """
    lists = _find_lists(path)
    if not lists:
        return None
    root = next(iter(lists.values())).parent
    records, class_infos = _read_lists(lists, root)
    if all(info.scientific_name.isdigit() for info in class_infos.values()):
        class_infos = {}  # numbers hide the species, as in 2018 and 2019
    listing = Listing(
        source=source,
        splits=records,
        class_infos=class_infos,
        ignored=[file.name for split, file in lists.items() if split not in records],
        published=PLACE,
    )
    demand_photos(listing, root, splits)
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
        return _records(content, root, path), class_infos
    except (KeyError, TypeError, AttributeError) as error:
        lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{path} is not a list of iNaturalist: {lacks}; {PLACE}") from error


def _records(content: Mapping[str, Any], root: Path, path: Path) -> Records:
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
