"""A table of occurrences as a file: names of species, and rows that cannot be used."""

from pathlib import Path

import pytest

from florilege.calibration.calibrate.occurrence_file import read_occurrences
from florilege.errors import DataError
from florilege.models.classes import ClassInfo, ClassTable

INFOS = ClassTable(
    (
        ClassInfo(id="7", scientific_name="Iris lutescens", gbif="100"),
        ClassInfo(id="8", scientific_name="Iris foetidissima"),
    )
)


def test_species_are_named_by_id_key_or_name(tmp_path: Path) -> None:
    path = tmp_path / "occurrences.csv"
    path.write_text(
        "region,month,class_id,weight\n"
        "a,,8,1\na,6,100,2\nb,6,Iris lutescens,3\nb,12,7,4.5\nb,1,900,9\n"
    )
    occurrences, warning = read_occurrences(path, INFOS)
    assert occurrences.counts("a").tolist() == [2.0, 1.0]
    assert occurrences.counts("b").tolist() == [7.5, 0.0]
    assert occurrences.counts("b", 6).tolist() == [3.0, 0.0]
    assert warning == f"1 species of {path} are not among the classes of the model"


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,13,7,1", "row 2: a month must be 1 to 12"),
        ("a,June,7,1", "row 2: a month must be"),
        ("a,6,7,0", "row 2: the weight must be above 0"),
        ("a,6,7,-1", "the weight must be above 0"),
        ("a,6,7,nan", "the weight must be above 0"),
        ("a,6,7,many", "row 2: could not convert"),
        (",6,7,1", "row 2: the region is empty"),
        ("a,6,900,1", "none of its species is a class of the model.*'900'"),
        ("", "it has no rows"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, row: str, message: str) -> None:
    path = tmp_path / "occurrences.csv"
    path.write_text(f"region,month,class_id,weight\n{row}\n")
    with pytest.raises(DataError, match=message):
        read_occurrences(path, INFOS)


def test_a_table_without_a_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "occurrences.csv"
    path.write_text("region,class_id,weight\na,7,1\n")
    with pytest.raises(DataError, match="column"):
        read_occurrences(path, INFOS)
