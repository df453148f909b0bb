"""Turn a Darwin Core archive, as GBIF provides it, into a table: ``data import-occurrences``.

The table has a line for each region, month and species with its number of records; a region is a
cell of a grid. ``florilege calibrate --occurrences`` reads it.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Annotated, Final

import typer

from florilege.data.cli import AsJson
from florilege.errors import DataError, count_of, first
from florilege.models.bundle import open_bundle
from florilege.models.classes import ClassTable, SpeciesNames
from florilege.models.regions import ALL_MONTHS, COLUMNS, cell_name, is_null_island, month_of
from florilege.plugins.exchange.darwin_core import (
    ArchiveRecords,
    Record,
    open_records,
    plain_term,
)
from florilege.tables import write_table, written_table
from florilege.terminal import progress, show

SPECIES: Final = ("speciesKey", "taxonKey", "species", "scientificName", "taxonID")
"""Columns that may name the species, best first. ``taxonID`` may be a number of somebody's own."""
PLACE: Final = ("decimalLatitude", "decimalLongitude")
_STATUS: Final = ("occurrenceStatus", "individualCount")
_TERMS: Final = (*SPECIES, *PLACE, *_STATUS, "eventDate", "month")
_ABSENT: Final = ("absent", "absence", "none", "no", "0")
_ROWS_AT_ONCE: Final = 10_000


@dataclass(frozen=True, kw_only=True)
class _ImportedOccurrences:
    records: int  # in the table
    left_out: Mapping[str, int]  # records by reason
    species: int
    regions: int
    species_column: str  # what names them


def _import_occurrences(
    archive: Path, out: Path, *, degrees: float = 1.0, classes: ClassTable | None = None
) -> _ImportedOccurrences:
    """Count the records of an archive by grid cell, month and species, and write them to ``out``.

    ``archive`` is a Darwin Core archive (a zip or folder with ``meta.xml``), or a zip, gz or text
    file of one table whose first line names the columns, as GBIF's simple download. ``out``,
    ``.csv`` or ``.parquet``, has the columns ``region,month,class_id,weight``; the month is empty
    for records without one. A cell has sides of ``degrees``.

    The first 10,000 records choose the column that names the species: the one that names most of
    ``classes``, or without them the best of `SPECIES` that at least half of the records fill.

    Raises:
        DataError: The archive is unreadable, lacks a column, or has no usable record.
        OSError: ``out`` cannot be written.
    """
    if not 0.01 <= degrees <= 90:
        raise DataError(f"a grid cell must have 0.01 to 90 degrees, got {degrees:g}")
    counts, left_out, species = _count_records(archive, degrees, classes)
    if not counts:
        reasons = ", ".join(f"{count:,} {reason}" for reason, count in left_out.items())
        raise DataError(f"{archive} holds no usable record; left out: {reasons or 'nothing'}")
    regions, _, names = zip(*counts, strict=True)
    rows = [
        (region, str(month or ""), name, str(counts[region, month, name]))
        for region, month, name in sorted(counts)
    ]
    write_table(out, dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)))
    return _ImportedOccurrences(
        records=sum(counts.values()),
        left_out=left_out,
        species=len(set(names)),
        regions=len(set(regions)),
        species_column=species,
    )


def _count_records(
    archive: Path, degrees: float, classes: ClassTable | None
) -> tuple[dict[tuple[str, int, str], int], dict[str, int], str]:
    """Counts of records, counts of those left out by reason, and the column of the species."""
    results = Counter[tuple[str, int, str] | str]()
    names = None if classes is None else SpeciesNames(classes)
    with (
        open_records(archive, _TERMS) as records,
        progress(None, f"reading {archive.name}") as advance,
    ):
        _demand_columns(archive, records)
        sample = list(islice(records.rows, _ROWS_AT_ONCE))
        species = _species_column(sample, names)
        rows = chain(sample, records.rows)
        while part := [_record(row, species, degrees) for row in islice(rows, _ROWS_AT_ONCE)]:
            results.update(part)
            advance(len(part))
    counts = {key: count for key, count in results.items() if isinstance(key, tuple)}
    left_out = {key: count for key, count in results.items() if isinstance(key, str)}
    return counts, left_out, species


def _demand_columns(archive: Path, records: ArchiveRecords) -> None:
    """Refuse records that lack the place or the species; the message names what they have."""
    has = f"they have {first(records.columns, 20)}" if records.columns else "they have no columns"
    columns = {plain_term(name.rpartition(":")[2]) for name in records.columns}
    if missing := [name for name in PLACE if plain_term(name) not in columns]:
        raise DataError(f"{archive}: the records lack the columns {first(missing)}; {has}")
    if columns.isdisjoint(map(plain_term, SPECIES)):
        raise DataError(
            f"{archive}: the records lack a column for the species, one of {first(SPECIES)}; {has}"
        )


def _species_column(sample: Sequence[Record], names: SpeciesNames | None) -> str:
    """The column that names the species of most records of a sample."""

    def count(column: str) -> int:
        cells = (row[column] for row in sample if column in row)
        return sum(names is None or names.index(cell) is not None for cell in cells)

    counts = {column: count(column) for column in SPECIES}
    if names is None:
        half = sum(any(column in row for column in SPECIES) for row in sample) / 2
        counts = {column: int(filled >= max(half, 1)) for column, filled in counts.items()}
    return max(SPECIES, key=lambda column: counts[column])  # the first of equals


def _record(row: Record, species: str, degrees: float) -> tuple[str, int, str] | str:
    """Region, month and species of a record, or why it is left out."""
    name = row.get(species)
    if not name:
        return "without a species"
    if _is_absence(row):
        return "of an absence"
    try:
        # Tables of many countries write 43,6; a coordinate has no thousands.
        latitude, longitude = (float(row.get(name, "nan").replace(",", ".")) for name in PLACE)
        region = cell_name(latitude, longitude, degrees)
    except ValueError:
        return "without a usable place"
    if is_null_island(latitude, longitude):
        return "at latitude 0, longitude 0, which devices without a position write"
    return region, _month(row), name


def _is_absence(row: Record) -> bool:
    """Whether a record says that the species was not there, by its status or else its count."""
    if status := row.get("occurrenceStatus"):
        return status.lower() in _ABSENT
    return row.get("individualCount") == "0"


def _month(row: Record) -> int:
    """The month of a record, from its month or date; ``ALL_MONTHS`` if it has not just one."""
    first_day, _, last_day = row.get("eventDate", "").partition("/")
    begin, end = first_day.split("-"), last_day.split("-")
    # The end of an interval may be a day alone, as in 2026-06-03/05, or a month, as in 2026-06/08.
    one_month = end == [""] or (len(begin) > 2 and len(end) == 1) or begin[:2] == end[:2]
    with suppress(ValueError):
        return month_of(row.get("month") or (first_day if one_month and len(begin) > 1 else ""))
    return ALL_MONTHS


app = typer.Typer()


@app.command("import-occurrences")
def _import_occurrences_command(
    archive: Annotated[
        Path, typer.Argument(metavar="ARCHIVE", help="Darwin Core archive or table of records.")
    ],
    out: Annotated[Path, typer.Option(help="Table to write, .csv or .parquet.")],
    cell: Annotated[float, typer.Option(help="Side of a grid cell in degrees.")] = 1.0,
    bundle: Annotated[
        Path | None,
        typer.Option(help="Take the column of species that names most classes of this bundle."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Count the records of an archive by grid cell, month and species.

    ``florilege calibrate --occurrences`` takes the table.
    """
    with written_table(out):
        classes = None if bundle is None else open_bundle(bundle).classes
        imported = _import_occurrences(archive, out, degrees=cell, classes=classes)
    lines = [
        f"{out}: {count_of(imported.records, 'record')} of {imported.species:,} species "
        f"({imported.species_column}) in {count_of(imported.regions, 'cell')}",
        *(f"left out: {count:,} {reason}" for reason, count in imported.left_out.items()),
    ]
    show(
        {"occurrences": str(out), **asdict(imported)},
        lines,
        as_json=as_json,
        then=[("calibrate", "BUNDLE", "--data", "DATA", "--occurrences", out)],
    )
