"""Turn a Darwin Core archive, as GBIF provides it, into a table of occurrences.

The table has a line for each region, month and species with its number of records; a region is a
cell of a grid. ``florilege calibrate --occurrences`` reads it.
"""

import csv
import io
import zipfile
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO
from xml.etree import ElementTree

from florilege.errors import DataError, first
from florilege.models.occurrences import ALL_MONTHS, COLUMNS, MONTHS, cell_name
from florilege.progress import progress
from florilege.tables import write_table

SPECIES = ("speciesKey", "taxonKey", "taxonID", "species", "scientificName")
"""Columns that may name the species, best first."""
PLACE = ("decimalLatitude", "decimalLongitude")
_Lines = tuple[Mapping[int, str], Iterator[list[str]]]  # columns by position, and the cells
_LONGEST_CELL = 2**24
_ROWS_AT_ONCE = 10_000


@dataclass(frozen=True, kw_only=True)
class _ImportedOccurrences:
    records: int  # in the table
    left_out: Mapping[str, int]  # records by reason
    species: int
    regions: int
    species_column: str  # what names them


def import_occurrences(archive: Path, out: Path, *, degrees: float = 1.0) -> _ImportedOccurrences:
    """Count the records of an archive by grid cell, month and species, and write them to ``out``.

    ``archive`` is a Darwin Core archive (a zip with ``meta.xml``), or a zip or text file of one
    table separated by tabs whose first line names the columns, as GBIF's simple download. ``out``,
    ``.csv`` or ``.parquet``, has the columns ``region,month,class_id,weight``; the month is empty
    for records without one. A cell has sides of ``degrees``.

    Raises:
        DataError: The archive is unreadable, lacks a column, or has no usable record.
        OSError: ``out`` cannot be written.
    """
    if not 0.01 <= degrees <= 90:
        raise DataError(f"a grid cell must have 0.01 to 90 degrees, got {degrees:g}")
    counts, left_out, species = _count_records(archive, degrees)
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
    archive: Path, degrees: float
) -> tuple[dict[tuple[str, int, str], int], dict[str, int], str]:
    """Counts of records, counts of those left out by reason, and the column of the species."""
    results = Counter[tuple[str, int, str] | str]()
    with _table(archive) as (columns, lines), progress(None, f"reading {archive.name}") as advance:
        species = _species_column(archive, columns.values())
        rows = (
            {name: line[at].strip() for at, name in columns.items() if at < len(line)}
            for line in lines
        )
        while part := [_record(row, species, degrees) for row in islice(rows, _ROWS_AT_ONCE)]:
            results.update(part)
            advance(len(part))
    counts = {key: count for key, count in results.items() if isinstance(key, tuple)}
    left_out = {key: count for key, count in results.items() if isinstance(key, str)}
    return counts, left_out, species


def _record(row: Mapping[str, str], species: str, degrees: float) -> tuple[str, int, str] | str:
    """Region, month and species of a record, or why it is left out."""
    name = row.get(species) or ""
    if not name:
        return "without a species"
    if row.get("occurrenceStatus", "").upper() == "ABSENT":
        return "of an absence"
    try:
        latitude, longitude = (float(row.get(column) or "nan") for column in PLACE)
        return cell_name(latitude, longitude, degrees), _month(row), name
    except ValueError:
        return "without a usable place"


def _month(row: Mapping[str, str]) -> int:
    """The month of a record, from its month or date; ``ALL_MONTHS`` if it has neither."""
    date = (row.get("eventDate") or "").split("-")
    text = row.get("month") or (date[1] if len(date) > 1 else "")
    return int(text) if text.isdecimal() and 1 <= int(text) <= MONTHS else ALL_MONTHS


def _species_column(archive: Path, names: Collection[str]) -> str:
    """The best column that names the species; a `DataError` if it or the place is missing."""
    if missing := [name for name in PLACE if name not in names]:
        raise DataError(f"{archive}: the records lack the columns {first(missing)}")
    for name in SPECIES:
        if name in names:
            return name
    raise DataError(
        f"{archive}: the records lack a column for the species, one of {first(SPECIES)}"
    )


@contextmanager
def _table(path: Path) -> Iterator[_Lines]:
    """The records of an archive; a `DataError` if it cannot be read."""
    limit = csv.field_size_limit(_LONGEST_CELL)
    try:
        if not zipfile.is_zipfile(path):
            with path.open("rb") as file:
                yield _text_table(file)
            return
        with zipfile.ZipFile(path) as archive:
            if "meta.xml" in archive.namelist():
                yield _core_table(archive)
            else:
                (name,) = (n for n in archive.namelist() if n.lower().endswith((".csv", ".txt")))
                yield _text_table(archive.open(name))
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror or error}") from error
    except (zipfile.BadZipFile, ElementTree.ParseError, ValueError, KeyError, csv.Error) as error:
        raise DataError(
            f"{path} is not a Darwin Core archive or a table of records separated by tabs ({error})"
        ) from error
    finally:
        csv.field_size_limit(limit)


def _text_table(file: IO[bytes]) -> _Lines:
    """Lines separated by tabs, the first with the names of the columns."""
    text = io.TextIOWrapper(file, "utf-8-sig", newline="")
    lines = csv.reader(text, delimiter="\t", quoting=csv.QUOTE_NONE)
    return dict(enumerate(next(lines, []))), lines


def _core_table(archive: zipfile.ZipFile) -> _Lines:
    """The core table that ``meta.xml`` describes."""
    core = ElementTree.fromstring(archive.read("meta.xml")).find("{*}core")
    if core is None:
        raise ValueError("meta.xml names no core table")
    location = core.findtext("{*}files/{*}location", "")
    columns = {
        int(each.attrib["index"]): each.attrib["term"].rpartition("/")[2]
        for each in core.iterfind("{*}field[@index]")
    }
    delimiter = core.get("fieldsTerminatedBy", ",").encode().decode("unicode_escape")
    quote = core.get("fieldsEnclosedBy", '"')
    text = io.TextIOWrapper(archive.open(location), core.get("encoding", "utf-8"), newline="")
    style = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
    lines = csv.reader(text, delimiter=delimiter, **style)
    for _ in range(int(core.get("ignoreHeaderLines", "0"))):
        next(lines, None)
    return columns, lines
