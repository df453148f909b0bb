"""Where and when the photos of a manifest were taken."""

from collections.abc import Sequence
from pathlib import Path

from florilege.data.layouts.manifest import is_manifest
from florilege.data.training_split import parse_options
from florilege.errors import DataError
from florilege.models.occurrences import ALL_MONTHS, Place, cell_name, month_of
from florilege.tables import read_table

REGION, MONTH, DATE = "region", "month", "date"
LATITUDE, LONGITUDE = "latitude", "longitude"


def photo_places(
    source: str, names: Sequence[str], cell_degrees: float | None
) -> list[Place | None] | None:
    """The place of each photo, or None where the data name no places.

    A manifest names them in the columns ``region``, or ``latitude`` and ``longitude`` if regions
    are cells of a grid, and ``month`` or ``date`` (``YYYY-MM-DD``). Cells may be empty.

    Args:
        source: Value of ``--data``.
        names: Names of the photos, their paths in the manifest.
        cell_degrees: Side of a cell of the grid; None where regions have names.

    Raises:
        DataError: A month, date or place that is none.
    """
    base, _ = parse_options(source)
    if not base or not is_manifest(path := Path(base)):
        return None
    table = read_table(path)
    by_grid = REGION not in table and cell_degrees is not None
    needed = (LATITUDE, LONGITUDE) if by_grid else (REGION,)
    if any(name not in table for name in needed):
        return None
    columns = [table.get(name, [""] * len(table["path"])) for name in (*needed, MONTH, DATE)]
    places = dict[str, Place | None]()
    for name, *cells in zip(table["path"], *columns, strict=True):
        *place, month, date = map(str.strip, cells)
        try:
            places[name.strip()] = _place(place, month or date, cell_degrees)
        except ValueError as error:
            raise DataError(f"{source}: {name}: {error}") from error
    return [places.get(name) for name in names]


def _place(cells: Sequence[str], date: str, cell_degrees: float | None) -> Place | None:
    """The place that the cells of a row name; None where they are empty."""
    if not all(cells):
        return None
    region = cells[0]
    if len(cells) == 2:
        region = cell_name(float(cells[0]), float(cells[1]), cell_degrees or 1.0)
    return Place(region, month_of(date) if date else ALL_MONTHS)
