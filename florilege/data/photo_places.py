"""Where and when the photos of a manifest were taken."""

from collections.abc import Sequence
from pathlib import Path

from florilege.data.layouts.manifest import is_manifest
from florilege.data.options import parse_options
from florilege.errors import DataError
from florilege.models.occurrences import ALL_MONTHS, Place, cell_name, is_null_island, month_of
from florilege.tables import read_table


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
