"""Pl@ntNet-300K in both its versions: folders of photos and two tables beside them.

Photos are ``<split>/<species>/<photo>.jpg`` in a folder ``images``, in ``images/images``, or beside
the tables. In version 1.1 a species is called by its id and the tables are JSON; in version 2, of
February 2026, species are 0000 to 0999 and the tables CSV, as its README describes them. One table
gives the observation of each photo, so that photos of one plant stay together; the other the names
of the species. Neither holds GBIF keys.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from florilege.data.layouts.folder import is_folder_dataset, list_folder
from florilege.data.layouts.manifest import demand_columns
from florilege.data.layouts.published_lists import with_class_file
from florilege.data.records import Listing
from florilege.errors import DataError
from florilege.models.classes import ClassInfo
from florilege.models.latin_names import without_author
from florilege.tables import Table, read_table

METADATA: Final = "plantnet300K_metadata.json"
# The second is what old copies have.
NAMES: Final = ("plantnet300K_species_id_2_name.json", "plantnet300K_species_names.json")
PLACE: Final = "Pl@ntNet-300K version 1.1 is at Zenodo, DOI 10.5281/zenodo.5645731"

METADATA_2: Final = "plantnet300K_metadata.csv"
SPECIES_2: Final = "species_metadata.csv"
PLACE_2: Final = "Pl@ntNet-300K version 2 is at Zenodo, DOI 10.5281/zenodo.10419064"


class _Photo(NamedTuple):
    """What the tables say of one photo."""

    path: str  # split, species and name
    observation: str | None


class _Tables(NamedTuple):
    """What the tables say."""

    photos: Mapping[str, _Photo]  # by name without its ending
    known: Mapping[str, ClassInfo]
    files: tuple[str, ...]
    place: str


def is_plantnet(root: Path) -> bool:
    """Whether ``root`` holds one of its tables; that of species 2 may be somebody's own."""
    own = any((root / name).is_file() for name in (METADATA, METADATA_2, *NAMES))
    return own or ((root / SPECIES_2).is_file() and not is_folder_dataset(root))


def plantnet_root(path: Path) -> Path | None:
    """The folder with the tables: ``path``, or where it is the folder of photos, one above it.

    Without the tables the photos would lose their observations and names.
    """
    folders = [path.resolve(), *path.resolve().parents]
    inside = 0
    while folders[inside].name == "images" and inside < 2:
        inside += 1
    return next((each for each in (path, *folders[1 : inside + 1]) if is_plantnet(each)), None)


def list_plantnet(root: Path, source: str) -> Listing:
    """List the photos that are there with their observations and species names.

    A photo missing from the tables is ``unlisted`` and counts as an observation of its own; one
    that they name and that is not there is ``missing``. ``classes.csv`` in ``root`` may add GBIF
    keys and more names.

    Raises:
        DataError: There are no photos, a table is missing or damaged: which, and where the data set
            is to be had.
    """
    second = any((root / name).is_file() for name in (METADATA_2, SPECIES_2))
    first = (root / METADATA).is_file() or not second
    tables = _read_1(root, source) if first else _read_2(root, source)
    places = (root / "images", root / "images" / "images", root)
    folder = next((each for each in places if is_folder_dataset(each)), None)
    if folder is None:
        raise DataError(
            f"{source} has {tables.files[0]} but no folder 'images' with photos in train, val and "
            f"test; {tables.place}"
        )
    listing = list_folder(folder, source)
    photos = tables.photos
    splits = {
        split: replace(each, observations=[_observation(name, photos) for name in each.names])
        for split, each in listing.splits.items()
    }
    there = {PurePath(name).stem for each in splits.values() for name in each.names}
    listing = replace(
        listing,
        splits=splits,
        unlisted=sorted(there - photos.keys()),
        known=tables.known,
        ignored=[name for name in listing.ignored if folder != root or name not in tables.files],
        missing=[photo.path for name, photo in photos.items() if name not in there],
        published=tables.place,
    )
    return with_class_file(listing, root)


def _observation(name: str, photos: Mapping[str, _Photo]) -> str:
    photo = photos.get(PurePath(name).stem)
    return name if photo is None or photo.observation is None else photo.observation


def _read_1(root: Path, source: str) -> _Tables:
    names = next((name for name in NAMES if (root / name).is_file()), NAMES[0])
    _demand(root, source, (METADATA, names), PLACE)
    entries = _read_json(root / METADATA).items()
    photos = {name: _photo_1(name, entry) for name, entry in entries if isinstance(entry, dict)}
    full = {
        class_id: str(name).replace("_", " ").strip()
        for class_id, name in _read_json(root / names).items()
    }
    short = {class_id: without_author(name) for class_id, name in full.items()}
    known = {
        class_id: ClassInfo(id=class_id, scientific_name=name, genus=name.split(" ")[0] or None)
        for class_id, name in _told_apart(short, full).items()
    }
    return _Tables(photos, known, (METADATA, names), PLACE)


def _photo_1(name: str, entry: Mapping[str, Any]) -> _Photo:
    observation = entry.get("obs_id")
    return _Photo(
        path=f"{entry.get('split')}/{entry.get('species_id')}/{name}.jpg",
        observation=None if observation is None else str(observation).strip() or None,
    )


def _read_2(root: Path, source: str) -> _Tables:
    _demand(root, source, (METADATA_2, SPECIES_2), PLACE_2)
    table = _table(root / METADATA_2, ("species_id", "PN_observation_id", "split", "PN_hash"))
    columns = (table[name] for name in ("PN_hash", "species_id", "PN_observation_id", "split"))
    photos = {
        PurePath(name).stem: _Photo(
            f"{split}/{_folder(species)}/{name}.jpg", observation.strip() or None
        )
        for name, species, observation, split in zip(*columns, strict=True)
    }
    table = _table(root / SPECIES_2, ("species_id", "species", "full_species", "genus", "family"))
    ids = [_folder(cell) for cell in table["species_id"]]
    short, full = (_by_id(ids, table[name]) for name in ("species", "full_species"))
    genera, families = (_by_id(ids, table[name]) for name in ("genus", "family"))
    known = {
        class_id: ClassInfo(
            id=class_id,
            scientific_name=name or class_id,
            genus=genera[class_id] or None,
            family=families[class_id] or None,
        )
        for class_id, name in _told_apart(short, full).items()
    }
    return _Tables(photos, known, (METADATA_2, SPECIES_2), PLACE_2)


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


def _by_id(ids: Iterable[str], cells: Iterable[str]) -> dict[str, str]:
    return {class_id: cell.strip() for class_id, cell in zip(ids, cells, strict=True)}


def _told_apart(short: Mapping[str, str], full: Mapping[str, str]) -> dict[str, str]:
    """Names without authors, or with them where names differ in nothing else."""
    uses = Counter(short.values())
    return {
        class_id: name if uses[name] == 1 else full[class_id] for class_id, name in short.items()
    }


def _table(path: Path, columns: tuple[str, ...]) -> Table:
    table = read_table(path)
    demand_columns(str(path), table, columns)
    return table


def _read_json(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path} is not a JSON file: {error}; {PLACE}") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} must hold one JSON object, got {type(content).__name__}")
    return content
