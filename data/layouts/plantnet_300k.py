"""Pl@ntNet-300K in both its versions: folders of photos and two tables beside them.

Photos are ``<split>/<species>/<photo>.jpg`` in a folder ``images``, in ``images/images``, or beside
the tables. In version 1.1 a species is called by its id and the tables are JSON; in version 2, of
February 2026, species are 0000 to 0999 and the tables CSV, as its README describes them. One table
gives the observation of each photo, so that photos of one plant stay together; the other the names
of the species. Neither holds GBIF keys.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from florilege.data.layouts.folder import is_folder_dataset, list_folder
from florilege.data.layouts.manifest import demand_columns
from florilege.data.layouts.published_lists import read_json, with_class_file
from florilege.data.records import Listing, Records
from florilege.errors import DataError
from florilege.models.classes import ClassInfo, without_author
from florilege.tables import Table, read_table

METADATA: Final = "plantnet300K_metadata.json"
# The second is what old copies have.
NAMES: Final = ("plantnet300K_species_id_2_name.json", "plantnet300K_species_names.json")
PLACE: Final = "Pl@ntNet-300K version 1.1 is at Zenodo, DOI 10.5281/zenodo.5645731"

METADATA_2: Final = "plantnet300K_metadata.csv"
SPECIES_2: Final = "species_metadata.csv"
_PLACE_2: Final = "Pl@ntNet-300K version 2 is at Zenodo, DOI 10.5281/zenodo.10419064"


class _TablePhoto(NamedTuple):
    """What the tables say of one photo."""

    path: str  # split, species and name
    observation: str | None


class _Tables(NamedTuple):
    """What the tables say."""

    photos: Mapping[str, _TablePhoto]  # by name without its ending
    class_infos: Mapping[str, ClassInfo]
    files: tuple[str, ...]
    place: str


def _is_plantnet(root: Path) -> bool:
    """Whether ``root`` holds one of its tables; that of species 2 may be somebody's own."""
    own = any((root / name).is_file() for name in (METADATA, METADATA_2, *NAMES))
    return own or ((root / SPECIES_2).is_file() and not is_folder_dataset(root))


def plantnet_root(path: Path) -> Path | None:
    """The folder with the tables: ``path``, or where it is the folder of photos, one above it.

    Without the tables the photos would lose their observations and names.
    """
    folders = [path]
    for folder in (path.resolve(), path.resolve().parent):
        if folder.name != "images":
            break
        folders.append(folder.parent)
    return next(filter(_is_plantnet, folders), None)


def list_plantnet(root: Path, source: str) -> Listing:
    """List the photos that are there with their observations and species names.

    A photo missing from the tables is ``unlisted`` and counts as an observation of its own; one
    that they name and that is not there is ``missing``. ``classes.csv`` in ``root`` may add GBIF
    keys and more names.

    Raises:
        DataError: There are no photos, a table is missing or damaged: which, and where the data set
            is to be had.
    """
    tables = _read_2(root, source) if _is_version_2(root) else _read_1(root, source)
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
    """What the tables call a photo: its name without folders and ending."""
    return PurePath(name).stem


def _is_version_2(root: Path) -> bool:
    second = (root / METADATA_2).is_file() or (root / SPECIES_2).is_file()
    return second and not (root / METADATA).is_file()


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
    """Refuse a folder that has one of its two tables alone."""
    there = {name: (root / name).is_file() for name in tables}
    if not all(there.values()):
        (has,), (lacks,) = (
            [name for name in there if there[name] is here] for here in (True, False)
        )
        raise DataError(f"{source} has {has} but no {lacks}; {place}")


def _folder(species_id: str) -> str:
    """The folder of a species: its number in four digits."""
    return species_id.strip().zfill(4)


def _by_species(table: Table, column: str) -> dict[str, str]:
    """The cells of a column by the folders of the species."""
    cells = zip(table["species_id"], table[column], strict=True)
    return {_folder(species): cell.strip() for species, cell in cells}


def _distinct_names(short: Mapping[str, str], full: Mapping[str, str]) -> dict[str, str]:
    """Names without authors, or with them where names differ in nothing else."""
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
