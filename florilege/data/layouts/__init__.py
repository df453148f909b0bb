"""Supported layouts of labelled photos: here tables, beside it folders and lists.

Tables are CSV or Parquet files.

A manifest has a row for each photo. It needs the columns ``path`` (relative to the manifest's
folder), ``class_id`` and ``split``; ``observation_id`` is optional. Optional columns about the
class are ``scientific_name``, ``genus``, ``family``, ``gbif``, ``group`` (label noise stays within
it) and ``common_name:xx`` (``xx`` is a language; ``|`` separates several names).

``classes.csv``, beside the splits of a folder or given to a command, has a row for each class:
``class_id`` and any of those columns, with ``common_name_xx`` for a language; ``link``, the URL of
a page; ``thumbnail``, the path of a picture relative to the table's folder, with
``thumbnail_author`` and ``thumbnail_licence``.

A table of reference pictures has a row for each of them, several of a class: ``class_id`` and
``path``, relative to the table's folder, and any of ``author``, ``licence`` and ``organ``. A
manifest is such a table: of one with the column ``split`` only the training photos count, so that
nobody compares a test photo with itself.

Other columns are ignored.
"""

import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any, Final, NamedTuple

from florilege.data.options import parse_options
from florilege.data.records import (
    SPLITS,
    FileReader,
    Listing,
    Records,
    refuse,
    split_name,
)
from florilege.errors import DataError, repeated
from florilege.models.classes import ClassInfo, Thumbnail, plain_id
from florilege.models.reference_pictures import Credit, PictureFile
from florilege.models.regions import ALL_MONTHS, Place, cell_name, is_null_island, month_of
from florilege.tables import READ_SUFFIXES, Table, demand_columns, read_table

_TAXON = ("scientific_name", "genus", "family", "gbif")
_COMMON_NAME = "common_name:"
_GROUP = "group"


def is_manifest(path: Path) -> bool:
    """Whether this is a file with the suffix of a manifest."""
    return path.is_file() and path.suffix.lower() in READ_SUFFIXES


def list_manifest(path: Path, source: str) -> Listing | None:
    """List a manifest, or return None for another file.

    Raises `DataError` about missing columns, or the first five cells that are empty, unknown,
    repeated or contradictory.
    """
    if not is_manifest(path):
        return None
    table, root = read_table(path), path.parent
    demand_columns(source, table, ("path", "class_id", "split"))
    paths, class_ids = demand_pictures(source, table)
    rows_of = defaultdict[str | None, list[int]](list)
    for row, cell in enumerate(table["split"]):
        rows_of[split_name(cell)].append(row)
    unknown = [f"{paths[row]}: {table['split'][row]}" for row in rows_of[None]]
    refuse(source, "unknown splits (use train, val or test)", unknown)
    observations = observation_ids(table, paths)
    records = {}
    for name in filter(rows_of.__contains__, SPLITS):
        rows = rows_of[name]
        names = [paths[row] for row in rows]
        records[name] = Records(
            class_ids=[class_ids[row] for row in rows],
            names=names,
            observations=observations and [observations[row] for row in rows],
            read=FileReader(root, names),
        )
    return Listing(
        source=source,
        splits=records,
        class_infos=_class_infos_of(source, table, class_ids),
        groups=_class_groups(table, class_ids),
        root=root,
    )


def demand_pictures(source: str, table: Table) -> tuple[list[str], list[str]]:
    """The paths and class ids of a table.

    Raises `DataError` if a cell is empty, or a path is repeated or holds a null character.
    """
    paths = list(map(str.strip, table["path"]))
    class_ids = list(map(plain_id, table["class_id"]))
    if not paths:
        raise DataError(f"{source} lists no pictures")
    refuse(source, "paths with a null character", [path for path in paths if "\0" in path])
    refuse(source, "empty paths", [f"row {row}" for row, path in enumerate(paths, 1) if not path])
    unlabelled = [path for path, class_id in zip(paths, class_ids, strict=True) if not class_id]
    refuse(source, "empty class ids", unlabelled)
    refuse(source, "paths given twice", repeated(map(os.path.normpath, paths)))
    return paths, class_ids


def observation_ids(table: Table, paths: Sequence[str]) -> list[str] | None:
    """The observation of each picture, or its path if the cell is empty; None without a column."""
    if "observation_id" not in table:
        return None
    cells = zip(table["observation_id"], paths, strict=True)
    return [cell.strip() or path for cell, path in cells]


def _class_infos_of(source: str, table: Table, class_ids: Sequence[str]) -> dict[str, ClassInfo]:
    """The taxon columns of each class; a cell may be empty if another row of the class fills it.

    Raises `DataError` if two rows of one class contradict each other.
    """
    columns = [name for name in table if name in _TAXON or name.startswith(_COMMON_NAME)]
    values: dict[str, dict[str, str]] = {class_id: {} for class_id in class_ids}
    clashes = dict[str, None]()
    for name in columns:
        for class_id, text in zip(class_ids, table[name], strict=True):
            cell = text.strip()
            if cell and values[class_id].setdefault(name, cell) != cell:
                clashes[f"{class_id}: {name}"] = None
    refuse(source, "classes with contradictory columns", list(clashes))
    return {class_id: _class_info(class_id, cells) for class_id, cells in values.items()}


def _class_info(class_id: str, cells: dict[str, str]) -> ClassInfo:
    common = {
        name.removeprefix(_COMMON_NAME): tuple(filter(None, map(str.strip, text.split("|"))))
        for name, text in cells.items()
        if name.startswith(_COMMON_NAME)
    }
    taxon: dict[str, Any] = {name: cells[name] for name in _TAXON if name in cells}
    return ClassInfo(id=class_id, common_names=common, **taxon)


def class_columns(listing: Listing, class_ids: Sequence[str]) -> dict[str, list[str]]:
    """The manifest columns about the classes, one row for each of ``class_ids``.

    Empty columns are left out. `_class_infos_of` and `_class_groups` read these columns.
    """
    rows = {name: _class_cells(info) for name, info in listing.class_infos.items()}
    names = dict.fromkeys(
        (*_TAXON, *sorted({name for row in rows.values() for name in row}), _GROUP)
    )
    groups = {name: {_GROUP: next(iter(groups), "")} for name, groups in listing.groups.items()}
    cells = [rows.get(name, {}) | groups.get(name, {}) for name in class_ids]
    columns = {name: [row.get(name, "") for row in cells] for name in names}
    return {name: column for name, column in columns.items() if any(column)}


def _class_cells(info: ClassInfo) -> dict[str, str]:
    taxon = {name: getattr(info, name) or "" for name in _TAXON}
    names = {_COMMON_NAME + code: "|".join(names) for code, names in info.common_names.items()}
    return taxon | names


def _class_groups(table: Table, class_ids: Sequence[str]) -> dict[str, list[str]]:
    """The distinct groups of each class in the column ``group``."""
    groups_of = defaultdict[str, dict[str, None]](dict)
    for class_id, text in zip(class_ids, table.get(_GROUP, [""] * len(class_ids)), strict=True):
        if group := text.strip():
            groups_of[class_id][group] = None
    return {class_id: list(groups) for class_id, groups in groups_of.items()}


def photo_places(
    source: str, names: Sequence[str], cell_degrees: float | None
) -> list[Place | None] | None:
    """The place of each photo, or None if the data name no places.

    A manifest names them in the columns ``region``, or ``latitude`` and ``longitude`` if regions
    are cells of a grid with sides of ``cell_degrees``, and ``month`` or ``date`` (``YYYY-MM-DD``).
    Cells may be empty; 0, 0 is no place. ``source`` is the value of ``--data``, ``names`` are paths
    in the manifest. Raises `DataError` if a cell holds no month, date or place.
    """
    path = Path(parse_options(source)[0])
    table = read_table(path) if is_manifest(path) else {}
    by_grid = "region" not in table and cell_degrees is not None
    needed = ("latitude", "longitude") if by_grid else ("region",)
    if not table.keys() >= set(needed):
        return None
    empty = [""] * len(table["path"])
    columns = [table.get(name, empty) for name in ("path", *needed, "month", "date")]
    places = {}
    for name, *place, month, date in zip(*columns, strict=True):
        try:
            places[name.strip()] = _place(place, month.strip() or date.strip(), cell_degrees)
        except ValueError as error:
            raise DataError(f"{source}: {name}: {error}") from error
    return [places.get(name) for name in names]


def _place(cells: Sequence[str], date: str, cell_degrees: float | None) -> Place | None:
    """The place that the cells of a row name; None if one is empty or the place is 0, 0."""
    region, *longitude = map(str.strip, cells)
    if not all((region, *longitude)):
        return None
    if longitude:
        degrees = float(region), float(longitude[0])
        if is_null_island(*degrees):
            return None
        region = cell_name(*degrees, cell_degrees or 1.0)
    return Place(region, month_of(date) if date else ALL_MONTHS)


NAME: Final = "classes.csv"
_LINK_COLUMNS: Final = ("link", "thumbnail", "thumbnail_author", "thumbnail_licence")
_COLUMNS: Final = {"class_id", *_TAXON, _GROUP, *_LINK_COLUMNS}


class ClassFile(NamedTuple):
    """The content of the table by class id; its classes may differ from a folder's or bundle's."""

    classes: Mapping[str, ClassInfo]
    groups: Mapping[str, Sequence[str]]
    thumbnails: Mapping[str, Path]  # the picture of each class that has a `Thumbnail`
    ignored: Sequence[str]  # unknown columns


def with_class_file(listing: Listing, root: Path) -> Listing:
    """Add ``classes.csv`` of ``root`` to a listing; the table overrides the listing.

    A file without the column ``class_id`` is something else. Errors are those of `read_classes`.
    """
    path = root / NAME
    if not path.is_file() or "class_id" not in (table := read_table(path)):
        return listing
    class_file = _read(path, table)
    # Folders of thumbnails are no stray folders either.
    pictures = (os.path.relpath(path, root) for path in class_file.thumbnails.values())
    used = {NAME, *(PurePath(path).parts[0] for path in pictures)}
    return replace(
        listing,
        class_infos=update_class_infos(listing.class_infos, class_file.classes),
        groups={**listing.groups, **class_file.groups},
        thumbnails=class_file.thumbnails,
        ignored=[name for name in listing.ignored if name not in used],
    )


def update_class_infos(
    old: Mapping[str, ClassInfo], new: Mapping[str, ClassInfo]
) -> dict[str, ClassInfo]:
    """The classes of both; for a class in both, ``new`` completes and corrects ``old``."""
    updated = {name: old[name].updated(info) for name, info in new.items() if name in old}
    return {**old, **new, **updated}


def read_classes(path: Path) -> ClassFile:
    """Read a table of classes, without opening the pictures it names.

    Raises:
        DataError: There is no column ``class_id`` or no row; or class ids are empty or repeated,
            or links are not URLs. The message lists each of them.
    """
    table = read_table(path)
    demand_columns(str(path), table, ["class_id"])
    return _read(path, table)


def _read(path: Path, table: Table) -> ClassFile:
    ids = list(map(plain_id, table["class_id"]))
    columns = {_as_in_manifest(name): cells for name, cells in table.items()}
    links, paths, authors, licences = (_cells(table, name, ids) for name in _LINK_COLUMNS)
    _refuse_faults(path, ids, links)
    pictures = {name: path.parent / cell for name, cell in paths.items() if cell}
    thumbnails = {
        name: Thumbnail(author=authors[name], licence=licences[name]) for name in pictures
    }
    classes = {
        name: replace(info, link=links[name], thumbnail=thumbnails.get(name))
        for name, info in _class_infos_of(str(path), columns, ids).items()
    }
    unknown = [
        name
        for name in table
        if name not in _COLUMNS and not _as_in_manifest(name).startswith(_COMMON_NAME)
    ]
    return ClassFile(classes, _class_groups(columns, ids), pictures, unknown)


def _refuse_faults(path: Path, ids: Sequence[str], links: Mapping[str, str | None]) -> None:
    """Refuse a table with faults; the message lists each on its own line."""
    if not ids:
        raise DataError(f"{path} names no class: add one line per class below the header")
    faults = [
        *(f"row {row}: no class id" for row, name in enumerate(ids, 1) if not name),
        *(f"{name}: {ids.count(name)} rows instead of one" for name in repeated(filter(None, ids))),
        *(
            f"{name}: the link {link} does not begin with https:// or http://"
            for name, link in links.items()
            if link and not link.lower().startswith(("https://", "http://"))
        ),
    ]
    if faults:
        raise DataError(f"{path} has faults:\n  " + "\n  ".join(faults))


def _cells(table: Table, column: str, ids: Sequence[str]) -> dict[str, str | None]:
    """The cell of each class in a column; None if the cell is empty or the column missing."""
    cells = table.get(column, [""] * len(ids))
    return {name: cell.strip() or None for name, cell in zip(ids, cells, strict=True)}


def _as_in_manifest(column: str) -> str:
    prefix = "common_name_"
    if not column.startswith(prefix):
        return column
    return _COMMON_NAME + column.removeprefix(prefix).replace("_", "-")  # pt_BR means pt-BR


_CREDITS: Final = ("author", "licence", "organ")


def read_pictures(path: Path) -> Mapping[str, Sequence[PictureFile]]:
    """The pictures of each class by its id, in the order of the table, without opening them.

    Raises:
        DataError: A column is missing, or no row names a picture to use.
    """
    table = read_table(path)
    demand_columns(str(path), table, ["class_id", "path"])
    rows = len(table["path"])
    splits = table.get("split", ["train"] * rows)
    columns = [table.get(name, [""] * rows) for name in _CREDITS]
    pictures = dict[str, list[PictureFile]]()
    for name, file, split, *cells in zip(
        table["class_id"], table["path"], splits, *columns, strict=True
    ):
        if file and split_name(split) == "train":
            credit = Credit(*(cell.strip() or None for cell in cells))
            picture = PictureFile(path=path.parent / file, credit=credit)
            pictures.setdefault(plain_id(name), []).append(picture)
    if not pictures:
        raise DataError(f"{path} names no picture: add a row with class_id and path for each")
    return pictures
