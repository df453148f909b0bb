"""A table of reference pictures: a row for each, several of a class.

The columns ``class_id`` and ``path``, relative to the table's folder, are required; ``author``,
``licence`` and ``organ`` are not. A manifest is such a table: of one with the column ``split`` only
the training photos count, so that nobody compares a test photo with itself.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from florilege.data.dataset import split_name
from florilege.data.layouts.manifest import demand_columns
from florilege.errors import DataError
from florilege.models.classes import plain_id
from florilege.models.reference_pictures import Credit, PictureFile
from florilege.tables import read_table

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
