"""ImageNet as torchvision reads it: an ImageFolder whose class folders are WordNet ids.

The names of the classes come from one of the small tables that accompany the photos, if it is
beside the splits. Each line describes a class: ``n01440764 tench, Tinca tinca``.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from florilege.data.layouts.folder import list_folder
from florilege.data.layouts.published_lists import read_lines, update_class_infos
from florilege.data.records import Listing
from florilege.errors import DataError
from florilege.models.classes import ClassInfo

PLACE: Final = "the photos of ImageNet (ILSVRC 2012) are at image-net.org, after registration"
# From the Kaggle challenge, Caffe and ImageNet itself.
NAMES: Final = ("LOC_synset_mapping.txt", "synset_words.txt", "words.txt")
_WORDNET_ID = re.compile(r"n\d{8}")
_UNSORTED = re.compile(r"\w+[/\\]ILSVRC2012_val_\d{8}\.JPEG")


def list_images(root: Path, source: str) -> Listing:
    """List an ImageFolder, with ImageNet's class names if its folders are WordNet ids.

    Raises:
        DataError: As `florilege.data.layouts.folder.list_folder`; or photos of val are outside
            class folders, as in the archive; or a table of names is not in UTF-8.
    """
    listing = list_folder(root, source)
    ids = {class_id for each in listing.splits.values() for class_id in each.class_ids}
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
        ignored=[name for name in listing.ignored if name not in NAMES],
        published=PLACE,
    )


def are_wordnet_ids(ids: Iterable[str]) -> bool:
    """Whether there are class ids and all are WordNet ids, as in ImageNet."""
    return bool(ids) and all(map(_WORDNET_ID.fullmatch, ids))


def wordnet_names(ids: Iterable[str], *folders: Path) -> dict[str, ClassInfo]:
    """The classes ``ids`` as the first table in ``folders`` names them; empty without a table.

    Raises:
        DataError: The table is not in UTF-8.

    Example:
        A line ``n02012849 crane, bird`` names the class n02012849 "crane" and gives it the English
        names "crane" and "bird". If several classes are called crane, it is "crane (n02012849)".
    """
    tables = (folder / name for folder in folders for name in NAMES)
    table = next(filter(Path.is_file, tables), None)
    names_of = _read_names(table) if table else {}
    used = {class_id: names_of[class_id] for class_id in ids if class_id in names_of}
    uses = Counter(names[0] for names in used.values())
    return {
        class_id: ClassInfo(
            id=class_id,
            scientific_name=names[0] if uses[names[0]] == 1 else f"{names[0]} ({class_id})",
            common_names={"en": names},
        )
        for class_id, names in used.items()
    }


def _read_names(path: Path) -> Mapping[str, tuple[str, ...]]:
    """The names of each class, at least one."""
    parts = [line.split(maxsplit=1) for line in read_lines(path) if len(line.split()) > 1]
    return {
        class_id: tuple(filter(None, map(str.strip, names.split(",")))) or (class_id,)
        for class_id, names in parts
    }
