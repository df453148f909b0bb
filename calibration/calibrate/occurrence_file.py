"""Read a table of occurrences for the classes of a model."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from florilege.data.layouts.manifest import demand_columns
from florilege.errors import DataError, first
from florilege.models.classes import ClassTable
from florilege.models.occurrences import ALL_MONTHS, COLUMNS, Occurrences, month_of
from florilege.tables import read_table


def read_occurrences(path: Path, classes: ClassTable, say: Callable[[str], None]) -> Occurrences:
    """Read ``region,month,class_id,weight``; ``say`` is called about species the model lacks.

    A species is named by the class id, the GBIF key or the scientific name.

    Raises:
        DataError: The file is unreadable, a month or weight is none, or no species is a class.
    """
    table = read_table(path)
    demand_columns(str(path), table, COLUMNS)
    index_of = _index_of(classes)
    unknown = [name for name in dict.fromkeys(table["class_id"]) if name not in index_of]
    rows = []
    for number, cells in enumerate(zip(*(table[name] for name in COLUMNS), strict=True), 2):
        try:
            region, month, weight = _checked(cells)
        except ValueError as error:
            raise DataError(f"{path}, row {number}: {error}") from error
        if cells[2] in index_of:
            rows.append((region, month, index_of[cells[2]], weight))
    if not rows:
        raise DataError(
            f"{path}: none of its species is a class of the model, by id, GBIF key or scientific "
            f"name: {first(unknown) or 'it has no rows'}"
        )
    if unknown:
        say(f"{len(unknown):,} species of {path} are not among the classes of the model")
    return Occurrences.of(*zip(*rows, strict=True), classes=len(classes))


def _index_of(classes: ClassTable) -> dict[str, int]:
    """Output indices by every name of a class."""
    by_name = {info.scientific_name: at for at, info in enumerate(classes)}
    by_key = {info.gbif: at for at, info in enumerate(classes) if info.gbif}
    return by_name | by_key | dict(classes.index_of)


def _checked(cells: Sequence[str]) -> tuple[str, int, float]:
    """Region, month and weight of a row."""
    region, month, _, weight = (cell.strip() for cell in cells)
    if not region:
        raise ValueError("the region is empty")
    if not 0 < float(weight) < np.inf:
        raise ValueError(f"the weight must be above 0, got {weight}")
    return region, month_of(month) if month else ALL_MONTHS, float(weight)
