"""What is known about the classes of a folder: the table ``classes.csv`` beside its splits.

One line per class: ``class_id`` and any of ``scientific_name``, ``genus``, ``family``, ``gbif``,
``group`` and ``common_name_xx`` (``xx`` a language), as in a manifest. Other columns are ignored.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from data.layouts.manifest import COMMON_NAME, class_groups, demand_columns, known_classes
from data.layouts.table import Table, read_table
from data.records import first
from models.classes import ClassInfo
from models.errors import DataError

NAME = "classes.csv"


class KnownClasses(NamedTuple):
    """By class id; classes may be missing, or not be those of the folder."""

    known: Mapping[str, ClassInfo]
    groups: Mapping[str, Sequence[str]]


def read_class_file(root: Path) -> KnownClasses | None:
    """Read ``classes.csv`` of a folder; None without one, or where it has no column ``class_id``.

    Raises:
        DataError: As :func:`read_classes`.
    """
    path = root / NAME
    if not path.is_file():
        return None
    table = read_table(path)
    return _read(path, table) if "class_id" in table else None


def read_classes(path: Path) -> KnownClasses:
    """Read a table of classes, in the order of its rows.

    Raises:
        DataError: It is not a table with a column ``class_id``, or has an empty class id or one
            that stands there twice.
    """
    table = read_table(path)
    demand_columns(str(path), table, ["class_id"])
    return _read(path, table)


def _read(path: Path, table: Table) -> KnownClasses:
    ids = [text.strip() for text in table["class_id"]]
    if "" in ids:
        raise DataError(f"{path}: row {ids.index('') + 1} has no class id")
    if twice := [name for name, count in Counter(ids).items() if count > 1]:
        raise DataError(f"{path}: these class ids stand there twice: {first(twice)}")
    columns = {_as_in_manifest(name): cells for name, cells in table.items()}
    return KnownClasses(known_classes(str(path), columns, ids), class_groups(columns, ids))


def _as_in_manifest(column: str) -> str:
    prefix = "common_name_"
    return COMMON_NAME + column.removeprefix(prefix) if column.startswith(prefix) else column
