"""A manifest: one line per picture in a CSV or Parquet file.

Columns ``path`` (relative to the manifest's folder), ``class_id`` and ``split``; optional
``observation_id``; and about the class ``scientific_name``, ``genus``, ``family``, ``gbif``,
``group`` (within which label noise stays) and ``common_name:xx`` (``xx`` a language; several names
separated by ``|``). Others are ignored.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

from florilege.data.dataset import SPLITS, FileReader, split_name
from florilege.data.records import Listing, Records
from florilege.errors import DataError, first
from florilege.models.classes import ClassInfo
from florilege.suggestions import meant
from florilege.tables import SUFFIXES, Table, read_table

REQUIRED = ("path", "class_id", "split")
TAXON = ("scientific_name", "genus", "family", "gbif")
COMMON_NAME = "common_name:"
GROUP = "group"


def is_manifest(path: Path) -> bool:
    """Whether this is a file with a manifest's suffix."""
    return path.is_file() and path.suffix.lower() in SUFFIXES


def list_manifest(path: Path, source: str, *, splits: Sequence[str] | None = None) -> Listing:
    """List a manifest; the pictures of ``splits`` (all by default) must exist.

    Raises:
        DataError: It is not readable or lacks a column; or there are empty class ids or paths,
            unknown splits, paths given twice, contradictory taxa or missing files, of which the
            message names the first five.
    """
    table, root = read_table(path), path.parent
    demand_columns(source, table, REQUIRED)
    paths, class_ids = demand_pictures(source, table)
    names = [split_name(cell) for cell in table["split"]]
    cells = zip(paths, table["split"], names, strict=True)
    unknown = [f"{path}: {cell}" for path, cell, name in cells if name is None]
    _refuse(source, "unknown splits (train, val and test are known)", unknown)
    observations = observation_ids(table, paths)
    found = {}
    for split in SPLITS:
        if rows := [row for row, name in enumerate(names) if name == split]:
            chosen = [paths[row] for row in rows]
            found[split] = Records(
                class_ids=[class_ids[row] for row in rows],
                names=chosen,
                observations=observations and [observations[row] for row in rows],
                read=FileReader(root, chosen),
            )
    for split, records in found.items():
        if splits is None or split in splits:
            missing = [name for name in records.names if not (root / name).is_file()]
            _refuse(source, f"missing files (paths are relative to {root})", missing)
    return Listing(
        source=source,
        splits=found,
        known=known_classes(source, table, class_ids),
        groups=class_groups(table, class_ids),
    )


def demand_columns(source: str, table: Table, columns: Sequence[str]) -> None:
    """Refuse a table that lacks one of ``columns`` with a ``DataError``."""
    if missing := [name for name in columns if name not in table]:
        there = ", ".join(table) or "none"
        near = meant(missing[0], table)
        raise DataError(f"{source} has no column {first(missing)}; it has: {there}{near}")


def demand_pictures(source: str, table: Table) -> tuple[list[str], list[str]]:
    """The paths and class ids of a table.

    Raises:
        DataError: Empty cells, or a path given twice or with a null character.
    """
    paths = [text.strip() for text in table["path"]]
    class_ids = [text.strip() for text in table["class_id"]]
    if not paths:
        raise DataError(f"{source} lists no pictures")
    _refuse(source, "paths with a null character", [text for text in paths if "\0" in text])
    _refuse(source, "empty paths", [f"row {row}" for row, text in enumerate(paths, 1) if not text])
    bare = [path for path, class_id in zip(paths, class_ids, strict=True) if not class_id]
    _refuse(source, "empty class ids", bare)
    counts = Counter(os.path.normpath(text) for text in paths)
    _refuse(source, "paths given twice", [text for text, count in counts.items() if count > 1])
    return paths, class_ids


def observation_ids(table: Table, paths: Sequence[str]) -> list[str] | None:
    """The observation of each picture, or its path where the cell is empty; None without any."""
    if "observation_id" not in table:
        return None
    cells = zip(table["observation_id"], paths, strict=True)
    return [cell.strip() or path for cell, path in cells]


def known_classes(source: str, table: Table, class_ids: Sequence[str]) -> dict[str, ClassInfo]:
    """What the taxon columns say of each class; a cell may be empty where another row has it.

    Raises:
        DataError: Two rows of one class say different things.
    """
    columns = [name for name in table if name in TAXON or name.startswith(COMMON_NAME)]
    values: dict[str, dict[str, str]] = {class_id: {} for class_id in class_ids}
    clashes = dict[str, None]()
    for name in columns:
        for class_id, text in zip(class_ids, table[name], strict=True):
            cell = text.strip()
            if cell and values[class_id].setdefault(name, cell) != cell:
                clashes[f"{class_id}: {name}"] = None
    _refuse(source, "classes with contradictory columns", list(clashes))
    return {class_id: _class_info(class_id, cells) for class_id, cells in values.items()}


def class_columns(listing: Listing, class_ids: Sequence[str]) -> dict[str, list[str]]:
    """The columns of a manifest about the classes, a row for each of ``class_ids``.

    Those alone that say something of some class; `known_classes` and `class_groups` read them.
    """
    classes = [listing.known.get(name) for name in class_ids]
    languages = {language for info in listing.known.values() for language in info.common_names}
    columns = {name: [info and getattr(info, name) for info in classes] for name in TAXON}
    for language in sorted(languages):
        names = [info.common_names.get(language, ()) if info else () for info in classes]
        columns[COMMON_NAME + language] = ["|".join(each) for each in names]
    columns[GROUP] = [next(iter(listing.groups.get(name, ())), None) for name in class_ids]
    return {name: [cell or "" for cell in cells] for name, cells in columns.items() if any(cells)}


def class_groups(table: Table, class_ids: Sequence[str]) -> dict[str, list[str]]:
    """The groups that the rows of each class name in the column ``group``, each once."""
    if GROUP not in table:
        return {}
    named = defaultdict[str, dict[str, None]](dict)
    for class_id, text in zip(class_ids, table[GROUP], strict=True):
        if group := text.strip():
            named[class_id][group] = None
    return {class_id: list(groups) for class_id, groups in named.items()}


def _class_info(class_id: str, cells: dict[str, str]) -> ClassInfo:
    common = {
        name.removeprefix(COMMON_NAME): tuple(
            part.strip() for part in text.split("|") if part.strip()
        )
        for name, text in cells.items()
        if name.startswith(COMMON_NAME)
    }
    return ClassInfo(
        id=class_id,
        scientific_name=cells.get("scientific_name", class_id),
        genus=cells.get("genus"),
        family=cells.get("family"),
        gbif=cells.get("gbif"),
        common_names=common,
    )


def _refuse(source: str, what: str, found: Sequence[str]) -> None:
    if found:
        raise DataError(f"{source}: {what}: {first(found)}")
