"""A manifest: one row per picture in a CSV or Parquet file.

The columns ``path`` (relative to the manifest's folder), ``class_id`` and ``split`` are required.
``observation_id`` is optional. Optional columns about the class are ``scientific_name``, ``genus``,
``family``, ``gbif``, ``group`` (label noise stays within it) and ``common_name:xx`` (``xx`` is a
language; ``|`` separates several names). Other columns are ignored.
"""

import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from florilege.data.dataset import SPLITS, FileReader, split_name
from florilege.data.options import parse_options
from florilege.data.records import Listing, Records, demand_photos, refuse
from florilege.errors import DataError, first, repeated, suggestion
from florilege.models.classes import ClassInfo, plain_id
from florilege.models.occurrences import ALL_MONTHS, Place, cell_name, is_null_island, month_of
from florilege.tables import SUFFIXES, Table, read_table

TAXON = ("scientific_name", "genus", "family", "gbif")
COMMON_NAME = "common_name:"
GROUP = "group"


def is_manifest(path: Path) -> bool:
    """Whether this is a file with the suffix of a manifest."""
    return path.is_file() and path.suffix.lower() in SUFFIXES


def list_manifest(path: Path, source: str, splits: Sequence[str] | None) -> Listing | None:
    """List a manifest, or return None for another file; pictures of ``splits`` (or all) must exist.

    Raises `DataError` about missing columns, or the first five cells that are empty, unknown,
    repeated or contradictory, or files that are missing.
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
    listing = Listing(
        source=source,
        splits=records,
        class_infos=class_infos_of(source, table, class_ids),
        groups=class_groups(table, class_ids),
    )
    demand_photos(listing, root, splits)
    return listing


def demand_columns(source: str, table: Table, columns: Sequence[str]) -> None:
    """Refuse a table that lacks one of ``columns`` with a ``DataError``."""
    if missing := [name for name in columns if name not in table]:
        present = ", ".join(table) or "none"
        near = suggestion(missing[0], table)
        raise DataError(f"{source} has no column {first(missing)}; it has: {present}{near}")


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


def class_infos_of(source: str, table: Table, class_ids: Sequence[str]) -> dict[str, ClassInfo]:
    """The taxon columns of each class; a cell may be empty if another row of the class fills it.

    Raises `DataError` if two rows of one class contradict each other.
    """
    columns = [name for name in table if name in TAXON or name.startswith(COMMON_NAME)]
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
        name.removeprefix(COMMON_NAME): tuple(filter(None, map(str.strip, text.split("|"))))
        for name, text in cells.items()
        if name.startswith(COMMON_NAME)
    }
    taxon: dict[str, Any] = {name: cells[name] for name in TAXON if name in cells}
    return ClassInfo(id=class_id, common_names=common, **taxon)


def class_columns(listing: Listing, class_ids: Sequence[str]) -> dict[str, list[str]]:
    """The manifest columns about the classes, one row for each of ``class_ids``.

    Empty columns are left out. `class_infos_of` and `class_groups` read these columns.
    """
    rows = {name: _class_cells(info) for name, info in listing.class_infos.items()}
    names = dict.fromkeys((*TAXON, *sorted({name for row in rows.values() for name in row}), GROUP))
    groups = {name: {GROUP: next(iter(groups), "")} for name, groups in listing.groups.items()}
    cells = [rows.get(name, {}) | groups.get(name, {}) for name in class_ids]
    columns = {name: [row.get(name, "") for row in cells] for name in names}
    return {name: column for name, column in columns.items() if any(column)}


def _class_cells(info: ClassInfo) -> dict[str, str]:
    taxon = {name: getattr(info, name) or "" for name in TAXON}
    names = {COMMON_NAME + code: "|".join(names) for code, names in info.common_names.items()}
    return taxon | names


def class_groups(table: Table, class_ids: Sequence[str]) -> dict[str, list[str]]:
    """The distinct groups of each class in the column ``group``."""
    groups_of = defaultdict[str, dict[str, None]](dict)
    for class_id, text in zip(class_ids, table.get(GROUP, [""] * len(class_ids)), strict=True):
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
