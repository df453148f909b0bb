"""Darwin Core archives and GBIF's simple table become a table of occurrences."""

import csv
import io
import zipfile
from pathlib import Path

import pytest

from florilege.data.occurrence_archive import import_occurrences
from florilege.errors import DataError
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
    result = import_occurrences(archive(tmp_path, kind), out)
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
    import_occurrences(archive(tmp_path, "tabs"), out, degrees=10)
    assert set(read_table(out)["region"]) == {"cell10_40_0", "cell10_-10_-80"}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "lack the columns 'decimalLatitude'"),
        (b"decimalLatitude\tdecimalLongitude\n1\t2\n", "lack a column for the species"),
        (b"decimalLatitude\tdecimalLongitude\tspecies\n\t\tIris\n", "1 without a usable place"),
        (b"\xff\xfe\x00", "not a Darwin Core archive"),
        (zipped("meta.xml", "<archive>"), "not a Darwin Core archive"),
        (zipped("meta.xml", META.format(delimiter=",", quote="")), "not a Darwin Core archive"),
        (zipped("photo.jpg", ""), "not a Darwin Core archive"),
    ],
)
def test_what_is_no_archive_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "records"
    path.write_bytes(content)
    with pytest.raises(DataError, match=message):
        import_occurrences(path, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()


def test_missing_files_and_cells_without_size_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        import_occurrences(tmp_path / "nothing.zip", tmp_path / "out.csv")
    with pytest.raises(DataError, match="to 90 degrees"):
        import_occurrences(archive(tmp_path, "tabs"), tmp_path / "out.csv", degrees=0)
