"""iNaturalist's competition data: lists ``train.json`` and ``val.json`` in the manner of COCO.

``images`` give the photos, ``annotations`` the category of each, ``categories`` what is known of
the species. The form is that of github.com/visipedia/inat_comp, from 2017 to 2021. The lists of
2018 and 2019 hide the names of the species, which ``categories.json`` tells. The lists name no
observations.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from florilege.data.dataset import SPLITS, FileReader
from florilege.data.layouts.published_lists import demand_photos, with_class_file
from florilege.data.records import Listing, Records
from florilege.errors import DataError, first
from florilege.models.classes import ClassInfo

PLACE: Final = (
    "photos and lists of iNaturalist's competitions are at github.com/visipedia/inat_comp"
)
CATEGORIES: Final = "categories.json"
_NAME = re.compile(rf"(?P<split>{'|'.join(SPLITS)})(?!\w*bboxes)\w*\.json")
_BEGINNING = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"(info|licenses|images|annotations|categories)"')


def find_inaturalist(path: Path) -> dict[str, Path]:
    """The list of each split, empty without any; ``path`` is their folder or one of them.

    Raises:
        DataError: There are several of one split, such as ``train.json`` and ``train_mini.json``.
        OSError: The folder cannot be listed.
    """
    named = _split_of(path)
    if named is None and not path.is_dir():
        return {}
    found = defaultdict[str, list[Path]](list)
    for other in sorted((path.parent if named else path).iterdir()):
        split = _split_of(other)
        if split and split != named:
            found[split].append(other)
    for split, several in found.items():
        if len(several) > 1:
            names = first([each.name for each in several])
            raise DataError(
                f"{path} holds several lists of {split}: {names}; name one of them, such as "
                f"{several[0]}"
            )
    chosen = {split: several[0] for split, several in found.items()}
    if named:
        chosen[named] = path
    return {split: chosen[split] for split in SPLITS if split in chosen}


def list_inaturalist(
    lists: Mapping[str, Path], source: str, *, splits: Sequence[str] | None = None
) -> Listing:
    """List the photos that JSON lists name; those of ``splits`` (all by default) must exist.

    The class id is the number of the category. A list without annotations, as that of test is
    published, is passed over. Names that a list hides are left out where `categories.json` is not
    beside it.

    Raises:
        DataError: A list is damaged or not of this form; a photo has no annotation or several that
            differ; lists name a category differently; or photos are missing: which, and where they
            are to be had.
    """
    root = next(iter(lists.values())).parent
    found: dict[str, Records] = {}
    known: dict[str, ClassInfo] = {}
    names = root / CATEGORIES
    for split, path in lists.items():
        content = _read(path)
        assert isinstance(content, dict)  # it begins with a brace
        if "annotations" not in content or (split == "test" and not content["annotations"]):
            continue
        try:
            found[split] = _records(content, root, path)
            told = _told(_read(names) if names.is_file() else content["categories"])
        except (KeyError, TypeError, AttributeError) as error:
            lacks = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            raise DataError(f"{path} is not a list of iNaturalist: {lacks}; {PLACE}") from error
        other = [name for name, info in told.items() if known.setdefault(name, info) != info]
        if other:
            raise DataError(
                f"{path}: other lists name these categories differently: {first(other)}; the lists "
                "are of different years"
            )
    listing = Listing(
        source=source,
        splits=found,
        known={} if _hidden(known) else known,
        ignored=[path.name for split, path in lists.items() if split not in found],
        published=PLACE,
    )
    demand_photos(listing, root, splits)
    return with_class_file(listing, root)


def _split_of(path: Path) -> str | None:
    """The split a list is of, by its name and its first bytes; None for any other file."""
    name = _NAME.fullmatch(path.name)
    if name is None or not path.is_file():
        return None
    with path.open("rb") as file:
        return name["split"] if _BEGINNING.match(file.read(200)) else None


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a JSON file: {error}; {PLACE}") from error


def _records(content: Mapping[str, Any], root: Path, path: Path) -> Records:
    category_of: dict[Any, str] = {}
    contrary = []
    for each in content["annotations"]:
        category = str(each["category_id"])
        if category_of.setdefault(each["image_id"], category) != category:
            contrary.append(str(each["image_id"]))
    _refuse(path, "photos with several categories", contrary)
    photos = [(str(each["file_name"]), category_of.get(each["id"])) for each in content["images"]]
    _refuse(
        path,
        "photos without an annotation",
        [name for name, class_id in photos if class_id is None],
    )
    names = [name for name, _ in photos]
    _refuse(
        path, "photos listed twice", [name for name, uses in Counter(names).items() if uses > 1]
    )
    return Records(
        class_ids=[class_id for _, class_id in photos if class_id is not None],
        names=names,
        read=FileReader(root, names),
    )


def _told(categories: Iterable[Mapping[str, Any]]) -> dict[str, ClassInfo]:
    return {str(each["id"]): _class_info(each) for each in categories}


def _hidden(known: Mapping[str, ClassInfo]) -> bool:
    """Whether the names are those of 2018 and 2019: numbers in place of species."""
    return bool(known) and all(each.scientific_name.isdigit() for each in known.values())


def _class_info(category: Mapping[str, Any]) -> ClassInfo:
    genus, family, common = (category.get(key) for key in ("genus", "family", "common_name"))
    return ClassInfo(
        id=str(category["id"]),
        scientific_name=str(category["name"]),
        genus=str(genus) if genus else None,
        family=str(family) if family else None,
        common_names={"en": (str(common),)} if common else {},
    )


def _refuse(path: Path, what: str, found: Sequence[str]) -> None:
    if found:
        raise DataError(f"{path}: {what}: {first(found)}")
