"""Both versions of Pl@ntNet-300K: folders of photos and two tables beside them.

Photos are ``<split>/<species>/<photo>.jpg`` in a folder ``images``, in ``images/images``, or beside
the tables. In version 1.1, folders are named by species id and the tables are JSON. In version 2
(February 2026), folders are 0000 to 0999 and the tables are CSV, as its README describes. One table
gives the observation of each photo, so that photos of one plant stay together. The other names the
species. Neither holds GBIF keys.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from florilege.data.layouts.class_file import with_class_file
from florilege.data.layouts.folder import is_folder_dataset, list_folder
from florilege.data.layouts.manifest import demand_columns
from florilege.data.records import Listing, Records, read_json
from florilege.errors import DataError
from florilege.models.classes import ClassInfo, without_author
from florilege.tables import Table, read_table

METADATA: Final = "plantnet300K_metadata.json"
# The second is in old copies.
NAMES: Final = ("plantnet300K_species_id_2_name.json", "plantnet300K_species_names.json")
PLACE: Final = "Pl@ntNet-300K version 1.1 is at Zenodo, DOI 10.5281/zenodo.5645731"

METADATA_2: Final = "plantnet300K_metadata.csv"
SPECIES_2: Final = "species_metadata.csv"
_PLACE_2: Final = "Pl@ntNet-300K version 2 is at Zenodo, DOI 10.5281/zenodo.10419064"


class _TablePhoto(NamedTuple):
    """One photo in the tables."""

    path: str  # split, species and name
    observation: str | None


class _Tables(NamedTuple):
    """The content of both tables."""

    photos: Mapping[str, _TablePhoto]  # by name without suffix
    class_infos: Mapping[str, ClassInfo]
    files: tuple[str, ...]
    place: str


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


def list_plantnet(path: Path, source: str) -> Listing | None:
    """List the existing photos with their observations and species names.

    ``path`` is the folder of the tables, or the photo folder inside it. If there are no tables, the
    result is None. A photo that the tables lack is ``unlisted`` and counts as its own observation.
    A photo that only the tables have is ``missing``. ``classes.csv`` beside the tables may add GBIF
    keys and names.

    Raises:
        DataError: There are no photos, or a table is missing or damaged. The message says which,
            and where to download the data set.
    """
    root = _plantnet_root(path)
    if root is None:
        return None
    tables = _read_tables(root, source)
    places = (root / "images", root / "images" / "images", root)
    folder = next(filter(is_folder_dataset, places), None)
    if folder is None:
        raise DataError(
            f"{source} has {tables.files[0]} but no folder 'images' with photos in train, val and "
            f"test; {tables.place}"
        )
    listing = list_folder(folder, source)
    splits, photos = listing.splits, tables.photos
    names = chain.from_iterable(each.names for each in splits.values())
    stems = set(map(_stem, names))
    listing = replace(
        listing,
        splits={name: _with_observations(each, photos) for name, each in splits.items()},
        unlisted=sorted(stems - photos.keys()),
        class_infos=tables.class_infos,
        ignored=[name for name in listing.ignored if folder != root or name not in tables.files],
        missing=[photo.path for name, photo in photos.items() if name not in stems],
        published=tables.place,
    )
    return with_class_file(listing, root)


def _stem(name: str) -> str:
    """The name of a photo in the tables: without folders and suffix."""
    return PurePath(name).stem


def _read_tables(root: Path, source: str) -> _Tables:
    is_version_2 = (root / METADATA_2).is_file() or (root / SPECIES_2).is_file()
    if is_version_2 and not (root / METADATA).is_file():
        return _read_2(root, source)
    return _read_1(root, source)


def _with_observations(records: Records, photos: Mapping[str, _TablePhoto]) -> Records:
    observations = []
    for name in records.names:
        photo = photos.get(_stem(name))
        observations.append(photo.observation or name if photo else name)
    return replace(records, observations=observations)


def _read_1(root: Path, source: str) -> _Tables:
    names = next((name for name in NAMES if (root / name).is_file()), NAMES[0])
    _demand(root, source, (METADATA, names), PLACE)
    entries = _read_object(root / METADATA).items()
    photos = {name: _photo_1(name, entry) for name, entry in entries if isinstance(entry, dict)}
    full = {
        class_id: str(name).replace("_", " ").strip()
        for class_id, name in _read_object(root / names).items()
    }
    short = {class_id: without_author(name) for class_id, name in full.items()}
    class_infos = {
        class_id: ClassInfo(id=class_id, scientific_name=name, genus=name.split(" ")[0] or None)
        for class_id, name in _distinct_names(short, full).items()
    }
    return _Tables(photos, class_infos, (METADATA, names), PLACE)


def _photo_1(name: str, entry: Mapping[str, Any]) -> _TablePhoto:
    observation = entry.get("obs_id")
    return _TablePhoto(
        path=f"{entry.get('split')}/{entry.get('species_id')}/{name}.jpg",
        observation=None if observation is None else str(observation).strip() or None,
    )


def _read_2(root: Path, source: str) -> _Tables:
    _demand(root, source, (METADATA_2, SPECIES_2), _PLACE_2)
    table = _table(root / METADATA_2, ("species_id", "PN_observation_id", "split", "PN_hash"))
    columns = (table[name] for name in ("PN_hash", "species_id", "PN_observation_id", "split"))
    photos = {
        _stem(name): _TablePhoto(
            f"{split}/{_folder(species)}/{name}.jpg", observation.strip() or None
        )
        for name, species, observation, split in zip(*columns, strict=True)
    }
    names = ("species", "full_species", "genus", "family")
    table = _table(root / SPECIES_2, ("species_id", *names))
    short, full, genera, families = (_by_species(table, name) for name in names)
    class_infos = {
        class_id: ClassInfo(
            id=class_id,
            scientific_name=name or class_id,
            genus=genera[class_id] or None,
            family=families[class_id] or None,
        )
        for class_id, name in _distinct_names(short, full).items()
    }
    return _Tables(photos, class_infos, (METADATA_2, SPECIES_2), _PLACE_2)


def _demand(root: Path, source: str, tables: Iterable[str], place: str) -> None:
    """Refuse a folder that has only one of its two tables."""
    missing = [name for name in tables if not (root / name).is_file()]
    if missing:
        (present,) = set(tables) - set(missing)
        raise DataError(f"{source} has {present} but no {missing[0]}; {place}")


def _folder(species_id: str) -> str:
    """The folder of a species: its number with four digits."""
    return species_id.strip().zfill(4)


def _by_species(table: Table, column: str) -> dict[str, str]:
    """The cells of a column by species folder."""
    cells = zip(table["species_id"], table[column], strict=True)
    return {_folder(species): cell.strip() for species, cell in cells}


def _distinct_names(short: Mapping[str, str], full: Mapping[str, str]) -> dict[str, str]:
    """Names without authors, except where only the authors tell names apart."""
    uses = Counter(short.values())
    return {
        class_id: name if uses[name] == 1 else full[class_id] for class_id, name in short.items()
    }


def _table(path: Path, columns: tuple[str, ...]) -> Table:
    table = read_table(path)
    demand_columns(str(path), table, columns)
    return table


def _read_object(path: Path) -> Mapping[str, Any]:
    content = read_json(path, PLACE)
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold one JSON object, got {type(content).__name__}")
    return content
