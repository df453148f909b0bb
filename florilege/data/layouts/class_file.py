"""Tables of classes, ``classes.csv`` beside the splits of a folder, and of reference pictures.

Each line of the first describes one class: ``class_id`` and any of ``scientific_name``, ``genus``,
``family``, ``gbif``, ``group`` and ``common_name_xx`` (``xx`` is a language), as in a manifest;
``link``, the URL of a page; ``thumbnail``, the path of a picture relative to the table's folder,
with ``thumbnail_author`` and ``thumbnail_licence``. Other columns are ignored.

Each line of the second is a picture, several of a class: ``class_id`` and ``path``, relative to the
table's folder, and any of ``author``, ``licence`` and ``organ``. A manifest is such a table: of one
with the column ``split`` only the training photos count, so that nobody compares a test photo with
itself.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from os import path as os_path
from pathlib import Path, PurePath
from typing import Final, NamedTuple

from florilege.data.dataset import split_name
from florilege.data.layouts.manifest import (
    COMMON_NAME,
    GROUP,
    TAXON,
    class_groups,
    class_infos_of,
    demand_columns,
)
from florilege.data.records import Listing
from florilege.errors import DataError, repeated
from florilege.models.classes import ClassInfo, Thumbnail, plain_id
from florilege.models.reference_pictures import Credit, PictureFile
from florilege.tables import Table, read_table

NAME: Final = "classes.csv"
_LINK_COLUMNS: Final = ("link", "thumbnail", "thumbnail_author", "thumbnail_licence")
_COLUMNS: Final = {"class_id", *TAXON, GROUP, *_LINK_COLUMNS}


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
    pictures = (os_path.relpath(path, root) for path in class_file.thumbnails.values())
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
        for name, info in class_infos_of(str(path), columns, ids).items()
    }
    unknown = [
        name
        for name in table
        if name not in _COLUMNS and not _as_in_manifest(name).startswith(COMMON_NAME)
    ]
    return ClassFile(classes, class_groups(columns, ids), pictures, unknown)


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
    return COMMON_NAME + column.removeprefix(prefix).replace("_", "-")  # pt_BR means pt-BR


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
