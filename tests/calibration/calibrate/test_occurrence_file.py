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

HEADER = "region,month,class_id,weight"


def test_species_are_named_by_id_key_or_name(tmp_path: Path) -> None:
    path = tmp_path / "occurrences.csv"
    path.write_text(f"{HEADER}\na,,8,1\na,6,100,2\nb,6,Iris lutescens,3\nb,12,7,4.5\nb,1,900,9\n")
    warnings = list[str]()
    occurrences = read_occurrences(path, INFOS, warnings.append)
    assert occurrences.counts("a").tolist() == [2.0, 1.0]
    assert occurrences.counts("b").tolist() == [7.5, 0.0]
    assert occurrences.counts("b", 6).tolist() == [3.0, 0.0]
    assert warnings == [f"1 species of {path} are not among the classes of the model"]


@pytest.mark.parametrize(
    ("header", "row", "message"),
    [
        (HEADER, "a,13,7,1", "row 2: a month must be 1 to 12"),
        (HEADER, "a,June,7,1", "row 2: a month must be"),
        (HEADER, "a,6,7,0", "row 2: the weight must be above 0"),
        (HEADER, "a,6,7,-1", "the weight must be above 0"),
        (HEADER, "a,6,7,nan", "the weight must be above 0"),
        (HEADER, "a,6,7,many", "row 2: could not convert"),
        (HEADER, ",6,7,1", "row 2: the region is empty"),
        (HEADER, "a,6,900,1", "none of its species is a class of the model.*'900'"),
        (HEADER, "", "it has no rows"),
        ("region,class_id,weight", "a,7,1", "column"),
    ],
)
def test_a_row_that_cannot_be_used_is_named(
    tmp_path: Path, header: str, row: str, message: str
) -> None:
    path = tmp_path / "occurrences.csv"
    path.write_text(f"{header}\n{row}\n")
    with pytest.raises(DataError, match=message):
        read_occurrences(path, INFOS, print)
