"""Both versions of Pl@ntNet-300K: folders of photos and two tables beside them.

Photos are ``<split>/<species>/<photo>.jpg`` in a folder ``images``, in ``images/images``, or beside
the tables. In version 1.1, folders are named by species id and the tables are JSON. In version 2
(February 2026), folders are 0000 to 0999 and the tables are CSV, as its README describes. One table
gives the observation of each photo, so that photos of one plant stay together. The other names the
species. Neither holds GBIF keys.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, Final

from florilege.data.layouts.folder import is_folder_dataset, list_folder
from florilege.data.layouts.table_files import with_class_file
from florilege.data.records import Listing, Records, read_json
from florilege.data.sources import DataLayout
from florilege.errors import DataError
from florilege.models.classes import ClassInfo, without_author
from florilege.tables import demand_columns, read_table

METADATA: Final = "plantnet300K_metadata.json"
# The second is in old copies.
NAMES: Final = ("plantnet300K_species_id_2_name.json", "plantnet300K_species_names.json")
PLACE: Final = "Pl@ntNet-300K version 1.1 is at Zenodo, DOI 10.5281/zenodo.5645731"

METADATA_2: Final = "plantnet300K_metadata.csv"
SPECIES_2: Final = "species_metadata.csv"
_PLACE_2: Final = "Pl@ntNet-300K version 2 is at Zenodo, DOI 10.5281/zenodo.10419064"

# Photos by name without suffix: path, and observation or "". Species by id: name without authors,
# name with authors, genus, family.
_Tables = tuple[Mapping[str, tuple[str, str]], Mapping[str, Sequence[str]]]


def _is_plantnet(root: Path) -> bool:
    """Whether ``root`` holds a Pl@ntNet table; an ImageFolder may have its own ``SPECIES_2``."""
    has_table = any((root / name).is_file() for name in (METADATA, METADATA_2, *NAMES))
    return has_table or ((root / SPECIES_2).is_file() and not is_folder_dataset(root))


def _plantnet_root(path: Path) -> Path | None:
    """The folder with the tables: ``path``, or one above it if ``path`` is the photo folder."""
    folders = [path]
    for folder in (path.resolve(), path.resolve().parent):
        if folder.name != "images":
            break
        folders.append(folder.parent)
    return next(filter(_is_plantnet, folders), None)


def _list_plantnet(path: Path, source: str) -> Listing | None:
    """List the existing photos with their observations and species names.

    ``path`` is the folder of the tables, or the photo folder inside it. If there are no tables, the
    result is None. A photo that the tables lack is ``unlisted`` and counts as its own observation.
    A photo that only the tables have is ``missing``. ``classes.csv`` beside the tables may add GBIF
    keys and names. Raises `DataError` if there are no photos, or a table is missing or damaged.
    """
    root = _plantnet_root(path)
    if root is None:
        return None
    files, place, read = _version(root, source)
    photos, species = read(root / files[0], root / files[1])
    places = (root / "images", root / "images" / "images", root)
    folder = next(filter(is_folder_dataset, places), None)
    if folder is None:
        raise DataError(
            f"{source} has {files[0]} but no folder 'images' with photos in train, val and test; "
            f"{place}"
        )
    listing = list_folder(folder, source)
    splits = listing.splits
    stems = set(map(_stem, chain.from_iterable(records.names for records in splits.values())))
    listing = replace(
        listing,
        splits={name: _with_observations(records, photos) for name, records in splits.items()},
        unlisted=sorted(stems - photos.keys()),
        class_infos=_class_infos(species),
        ignored=[name for name in listing.ignored if folder != root or name not in files],
        missing=[path for name, (path, _) in photos.items() if name not in stems],
        published=place,
    )
    return with_class_file(listing, root)


def _version(
    root: Path, source: str
) -> tuple[tuple[str, str], str, Callable[[Path, Path], _Tables]]:
    """The tables of the version in ``root``, where to download it, and what reads the tables."""
    names = next((name for name in NAMES if (root / name).is_file()), NAMES[0])
    files, place, read = (METADATA, names), PLACE, _read_1
    is_version_2 = (root / METADATA_2).is_file() or (root / SPECIES_2).is_file()
    if is_version_2 and not (root / METADATA).is_file():
        files, place, read = (METADATA_2, SPECIES_2), _PLACE_2, _read_2
    if missing := [name for name in files if not (root / name).is_file()]:
        (present,) = set(files) - set(missing)
        raise DataError(f"{source} has {present} but no {missing[0]}; {place}")
    return files, place, read


def _stem(name: str) -> str:
    """The name of a photo in the tables: without folders and suffix."""
    return PurePath(name).stem


def _with_observations(records: Records, photos: Mapping[str, tuple[str, str]]) -> Records:
    observations = [photos.get(_stem(name), ("", ""))[1] or name for name in records.names]
    return replace(records, observations=observations)


def _read_1(photo_table: Path, name_table: Path) -> _Tables:
    photos = {}
    for photo, entry in _read_object(photo_table).items():
        if isinstance(entry, dict):
            path = f"{entry.get('split')}/{entry.get('species_id')}/{photo}.jpg"
            observation = entry.get("obs_id")
            photos[photo] = (path, "" if observation is None else str(observation).strip())
    rows = {}
    for class_id, text in _read_object(name_table).items():
        full = str(text).replace("_", " ").strip()
        rows[class_id] = (without_author(full), full, full.split(" ")[0], "")
    return photos, rows


def _read_2(photo_table: Path, name_table: Path) -> _Tables:
    columns = ("PN_hash", "species_id", "PN_observation_id", "split")
    photos = {
        _stem(photo): (f"{split}/{_folder(species)}/{photo}.jpg", observation.strip())
        for photo, species, observation, split in _rows(photo_table, columns)
    }
    names = ("species_id", "species", "full_species", "genus", "family")
    rows = {
        _folder(species): tuple(map(str.strip, cells))
        for species, *cells in _rows(name_table, names)
    }
    return photos, rows


def _folder(species_id: str) -> str:
    """The folder of a species: its number with four digits."""
    return species_id.strip().zfill(4)


def _class_infos(rows: Mapping[str, Sequence[str]]) -> dict[str, ClassInfo]:
    """The species by id, from rows of a name without and with authors, a genus and a family.

    Authors are left out, except where only they tell names apart.
    """
    uses = Counter(short for short, *_ in rows.values())
    return {
        class_id: ClassInfo(
            id=class_id,
            scientific_name=short if uses[short] == 1 else full,
            genus=genus or None,
            family=family or None,
        )
        for class_id, (short, full, genus, family) in rows.items()
    }


def _rows(path: Path, columns: tuple[str, ...]) -> Iterable[tuple[str, ...]]:
    """The cells of these columns, row by row."""
    table = read_table(path)
    demand_columns(str(path), table, columns)
    return zip(*(table[name] for name in columns), strict=True)


def _read_object(path: Path) -> Mapping[str, Any]:
    content = read_json(path, PLACE)
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold one JSON object, got {type(content).__name__}")
    return content


LAYOUT: Final = DataLayout(name="a Pl@ntNet-300K folder", list=_list_plantnet)
