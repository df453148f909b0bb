"""Darwin Core archives and GBIF's simple table become a table of occurrences."""

import csv
import io
import zipfile
from pathlib import Path
from typing import Any

import pytest

from florilege.errors import DataError
from florilege.models.classes import ClassInfo, ClassTable
from florilege.plugins.exchange.occurrence_archive import _import_occurrences
from florilege.tables import read_table

META = """<archive xmlns="http://rs.tdwg.org/dwc/text/" metadata="eml.xml">
  <core encoding="UTF-8" fieldsTerminatedBy="{delimiter}" linesTerminatedBy="\\n"
        fieldsEnclosedBy="{quote}" ignoreHeaderLines="1"
        rowType="http://rs.tdwg.org/dwc/terms/Occurrence">
    <files><location>occurrence.txt</location></files>
    <id index="0"/>
    <field index="1" term="http://rs.tdwg.org/dwc/terms/decimalLatitude"/>
    <field index="2" term="http://rs.tdwg.org/dwc/terms/decimalLongitude"/>
    <field index="3" term="http://rs.tdwg.org/dwc/terms/eventDate"/>
    <field index="4" term="http://rs.tdwg.org/dwc/terms/scientificName"/>
    <field index="5" term="http://rs.gbif.org/terms/1.0/speciesKey"/>
    <field index="6" term="http://rs.tdwg.org/dwc/terms/occurrenceStatus"/>
    <field term="http://rs.tdwg.org/dwc/terms/country" default="FR"/>
  </core>
</archive>"""
HEADER = (
    "gbifID decimalLatitude decimalLongitude eventDate scientificName speciesKey occurrenceStatus"
)
RECORDS = [
    ("1", "43.6", "3.9", "2024-06-03", "Iris lutescens", "100", "PRESENT"),
    ("2", "43.9", "3.1", "2023-06-30T10:00", "Iris lutescens Lam.", "100", ""),
    ("3", "43.6", "3.9", "2024", "Iris lutescens", "100", "PRESENT"),
    ("4", "-0.5", "-70.2", "2024-13-01", "Ceiba", "200", "PRESENT"),
    ("5", "43.6", "3.9", "2024-06-03", "Iris", "100", "absent"),
    ("6", "", "3.9", "2024-06-03", "Iris", "100", "PRESENT"),
    ("7", "43.6", "300", "2024-06-03", "Iris", "100", "PRESENT"),
    ("8", "43.6", "3.9", "2024-06-03", "Plantae", "", "PRESENT"),
]
ROWS = [
    ("cell1_-1_-71", "", "200", "1"),
    ("cell1_43_3", "", "100", "1"),
    ("cell1_43_3", "6", "100", "2"),
]


def text(delimiter: str = "\t") -> str:
    lines = [HEADER.replace(" ", delimiter), *(delimiter.join(record) for record in RECORDS)]
    return "\n".join(lines) + "\n"


def archive(folder: Path, kind: str) -> Path:
    path = folder / f"{kind}.zip"
    if kind == "plain":
        path = folder / "plain.csv"
        path.write_text("\ufeff" + text(), "utf-8")
        return path
    with zipfile.ZipFile(path, "w") as file:
        if kind == "simple":
            file.writestr("0012345.csv", text())
        else:
            delimiter, quote = ("\\t", "") if kind == "tabs" else (",", "&quot;")
            file.writestr("meta.xml", META.format(delimiter=delimiter, quote=quote))
            file.writestr("occurrence.txt", text("\t" if kind == "tabs" else ","))
            file.writestr("eml.xml", "<eml/>")
    return path


def zipped(name: str, content: str) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as file:
        file.writestr(name, content)
    return buffer.getvalue()


@pytest.mark.parametrize("kind", ["tabs", "commas", "simple", "plain"])
def test_records_are_counted_by_cell_month_and_species(tmp_path: Path, kind: str) -> None:
    out, longest_cell = tmp_path / "occurrences.csv", csv.field_size_limit()
    result = _import_occurrences(archive(tmp_path, kind), out)
    assert csv.field_size_limit() == longest_cell
    table = read_table(out)
    assert list(table) == ["region", "month", "class_id", "weight"]
    assert list(zip(*table.values(), strict=True)) == ROWS
    assert result.records == 4
    left_out = {"of an absence": 1, "without a usable place": 2, "without a species": 1}
    assert result.left_out == left_out
    assert (result.species, result.regions, result.species_column) == (2, 2, "speciesKey")


def test_a_larger_cell_joins_regions(tmp_path: Path) -> None:
    out = tmp_path / "occurrences.csv"
    _import_occurrences(archive(tmp_path, "tabs"), out, degrees=10)
    assert set(read_table(out)["region"]) == {"cell10_40_0", "cell10_-10_-80"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lack the columns 'decimalLatitude'"),
        (b"decimalLatitude\tdecimalLongitude\n1\t2\n", "lack a column for the species"),
        (b"decimalLatitude\tdecimalLongitude\tspecies\n\t\tIris\n", "1 without a usable place"),
        (b"a,b\n1,2\n", "they have 'a', 'b'"),
        (b"\xff\xfe\x00", "the records are not in utf-16"),
        (zipped("meta.xml", "<archive>"), "cannot be read as a Darwin Core archive"),
        (zipped("photo.jpg", ""), "cannot be read as a Darwin Core archive"),
        (zipped("occurrence.parquet/000000", ""), "download Simple or Darwin Core Archive"),
        (b"PAR1\x15\x04\x15\xaf", "is a Parquet file; of the formats of GBIF"),
    ],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "records"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        _import_occurrences(path, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_missing_files_and_cells_without_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        _import_occurrences(tmp_path / "nothing.zip", tmp_path / "out.csv")
    with pytest.raises(DataError, match="to 90 degrees"):
        _import_occurrences(archive(tmp_path, "tabs"), tmp_path / "out.csv", degrees=0)


HEAD = "decimalLatitude,decimalLongitude,eventDate,scientificName,taxonID,occurrenceStatus"
CLASSES = ClassTable(
    (ClassInfo(id="77", scientific_name="Bellis perennis"), ClassInfo(id="Iris lutescens"))
)


def imported(folder: Path, *rows: str, head: str = HEAD, **options: Any) -> tuple[Any, Any]:
    """What an import says, and the rows of its table."""
    (folder / "a.csv").write_text("\n".join([head, *rows]) + "\n")
    result = _import_occurrences(folder / "a.csv", folder / "out.csv", **options)
    return result, list(zip(*read_table(folder / "out.csv").values(), strict=True))


@pytest.mark.parametrize("own_id", ["", "urn:lsid:local:77", "77", "5231190"])
def test_a_number_of_somebody_s_own_does_not_name_the_species(tmp_path: Path, own_id: str) -> None:
    row = f"43.0,3.0,2026-06-10,Bellis perennis L.,{own_id},"
    result, table = imported(tmp_path, row, row)
    assert (result.species_column, table[0][2]) == ("scientificName", "Bellis perennis L.")


def test_a_column_that_few_records_fill_does_not_name_the_species(tmp_path: Path) -> None:
    head = HEAD.replace("taxonID", "speciesKey")
    rows = ["43.0,3.0,2026-06-10,Bellis perennis,,"] * 3
    result, _ = imported(tmp_path, *rows, "43.0,3.0,,Iris,9,", head=head)
    assert result.species_column == "scientificName"
    result, _ = imported(tmp_path, *rows, *["43.0,3.0,,Iris,9,"] * 3, head=head)
    assert result.species_column == "speciesKey"


def test_the_column_that_names_most_classes_is_taken(tmp_path: Path) -> None:
    rows = ["43.0,3.0,2026-06-10,Unknown,77,", "43.0,3.0,2026-06-10,IRIS LUTESCENS Lam.,x,"]
    result, _ = imported(tmp_path, *rows, rows[0], classes=CLASSES)
    assert result.species_column == "taxonID"
    result, _ = imported(tmp_path, *rows, rows[1], classes=CLASSES)
    assert result.species_column == "scientificName"


def test_latitude_0_longitude_0_is_no_place(tmp_path: Path) -> None:
    rows = ["0,0,,Iris,,", "0.0,-0,,Iris,,", "0,3,,Iris,,"]
    result, table = imported(tmp_path, *rows)
    assert [row[0] for row in table] == ["cell1_0_3"]
    assert list(result.left_out.values()) == [2]
    assert "latitude 0, longitude 0" in next(iter(result.left_out))


@pytest.mark.parametrize(
    ("status", "count", "left_out"),
    [
        ("absent", "", 1), ("ABSENT", "3", 1), ("Absence", "", 1), ("none", "", 1), ("0", "", 1),
        ("present", "0", 0), ("", "0", 1), ("", "3", 0), ("", "", 0), ("doubtful", "", 0),
    ],
)  # fmt: skip
def test_absences_are_no_records(tmp_path: Path, status: str, count: str, left_out: int) -> None:
    head = f"{HEAD},individualCount"
    rows = [f"43,3,,Iris,,{status},{count}", "43,3,,Iris,,,"]
    result, _ = imported(tmp_path, *rows, head=head)
    assert result.left_out.get("of an absence", 0) == left_out


@pytest.mark.parametrize(
    ("date", "month"),
    [
        ("2024-06-03", "6"), ("2024-06", "6"), ("2024-06-03T10:00Z", "6"), ("2024", ""),
        ("2024-06-03/2024-06-09", "6"), ("2024-06-03/09", "6"), ("2024-06/2024-06", "6"),
        ("2024-06-30/2024-07-02", ""), ("2024-06-01/2025-06-01", ""), ("2023/2024", ""),
        ("2024-06/08", ""), ("2024-155", ""), ("2024-W23-1", ""), ("June 2024", ""), ("", ""),
        ("2024-00-01", ""), ("2024-009", ""), ("06-12-2024", ""), ("2024-6-3", "6"),
    ],
)  # fmt: skip
def test_a_month_is_that_of_the_date(tmp_path: Path, date: str, month: str) -> None:
    _, table = imported(tmp_path, f"43,3,{date},Iris,,")
    assert [row[1] for row in table] == [month]


def test_a_month_of_its_own_comes_before_the_date(tmp_path: Path) -> None:
    head = f"{HEAD},month"
    for cell, month in (("5", "5"), ("05", "5"), ("5.0", "5"), ("", "6"), ("13", ""), ("May", "")):
        _, table = imported(tmp_path, f"43,3,2024-06-03,Iris,,,{cell}", head=head)
        assert [row[1] for row in table] == [month]


def test_decimal_commas_are_read(tmp_path: Path) -> None:
    _, table = imported(tmp_path, "43,6;3,9;;Iris;;", head=HEAD.replace(",", ";"))
    assert [row[0] for row in table] == ["cell1_43_3"]


def test_a_column_may_be_written_with_blanks_or_underscores(tmp_path: Path) -> None:
    head = "Decimal Latitude,decimal_longitude,Event Date,scientific_name"
    result, table = imported(tmp_path, "43,3,2024-06-03,Iris", head=head)
    assert table == [("cell1_43_3", "6", "Iris", "1")]
    assert result.species_column == "scientificName"
