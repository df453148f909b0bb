"""Tables that spreadsheets open without running what a stranger wrote into a name."""

import csv
import io
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from florilege import tables
from florilege.errors import DataError
from florilege.server.predict import formats
from florilege.tables import read_numbered_table, read_table, spreadsheet_cell, write_table

RUN = [
    "=1+1",
    "+cmd|x!A1",
    "-2+3",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "\n=1",
    "\uff1d1",
    "-",
    "=",
    "-x.jpg",
]
TEXT = st.text(st.sampled_from("=+-@\t\r\n'\uff1da1. "), max_size=6)


@pytest.mark.parametrize("text", RUN)
def test_what_a_spreadsheet_would_run_is_text(text: str) -> None:
    assert spreadsheet_cell(text) == f"'{text}"


@pytest.mark.parametrize(
    "cell",
    ["", "Rosa canina", "a=b", "'", "'tis", -0.5, None, True, "-0.5", "+33", "-1e-05", "-.5"],
)
def test_numbers_and_plain_text_stay(cell: Any) -> None:
    assert spreadsheet_cell(cell) is cell


@given(st.lists(TEXT, min_size=1, max_size=5))
@example(["'=1", "''=1", "'-3", "-3"])
def test_a_table_is_read_as_it_was_written(texts: list[str]) -> None:
    path = Path(__file__).parent / "unused.csv"
    content = io.BytesIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("florilege.tables.write_atomic", lambda _, data: content.write(data))
        write_table(path, {"number": ["1"] * len(texts), "text": texts})
        patch.setattr(Path, "open", lambda *_, **__: reading(content))
        assert list(read_table(path)["text"]) == texts
    rows = list(csv.reader(io.StringIO(content.getvalue().decode(), newline="")))
    dangerous = [cell for _, cell in rows if cell[:1] in ("=", "@", "\t", "\r", "\n", "\uff1d")]
    assert dangerous == []


def reading(content: io.BytesIO) -> io.BufferedReader:
    return io.BufferedReader(io.BytesIO(content.getvalue()))


def test_predictions_and_exchange_tables_are_safe() -> None:
    file, columns = io.BytesIO(), ("path", "scientific_name", "score")
    row = {"path": "=x.jpg", "scientific_name": "@Rosa", "score": -0.25}
    line: Any = {}
    formats.write_csv([line], file, columns, lambda _: [row])
    assert file.getvalue().decode().splitlines()[1] == "'=x.jpg,'@Rosa,-0.25"


def test_text_that_is_repeated_is_held_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "_MOST_TEXTS", 2)
    path, places = tmp_path / "table.csv", ["here, or there", "'=x", "a third", "here, or there"]
    write_table(path, {"place": places, "row": list("1234")})
    table = read_table(path)
    assert table == {"place": places, "row": list("1234")}
    assert table["place"][0] is table["place"][3]


def test_a_fault_is_named_by_its_line_whatever_lies_before_it(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text('\na,b\n\n1,"two\nlines"\n3,4,5\n', "utf-8")
    with pytest.raises(DataError, match=r"these lines do not have the header's 2 cells.*'6'"):
        read_table(path)
    path.write_text('\na,b\n\n1,"two\nlines"\n3,4\n', "utf-8")
    table, lines = read_numbered_table(path)
    assert list(lines) == [5, 6]
    assert list(table["a"]) == ["1", "3"]


@pytest.mark.parametrize("line", ["sep=;", "SEP=;", '"sep=;"', "\nsep=;", "  \nsep=;"])
def test_the_first_line_of_excel_names_the_delimiter(tmp_path: Path, line: str) -> None:
    path = tmp_path / "table.csv"
    path.write_text(f"{line}\r\npath;common,local,name\r\na.jpg;violet\r\n", "utf-8")
    table, lines = read_numbered_table(path)
    assert table == {"path": ["a.jpg"], "common,local,name": ["violet"]}
    assert lines[0] == line.count("\n") + 3


def test_a_tab_may_be_named_too_and_a_column_may_be_called_sep(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("sep=\t\na,b\tc\n1\t2\n", "utf-8")
    assert read_table(path) == {"a,b": ["1"], "c": ["2"]}
    path.write_text("sep=,b\n1,2\n", "utf-8")
    assert read_table(path) == {"sep=": ["1"], "b": ["2"]}
    path.write_text("sep=\n1\n2\n", "utf-8")  # it names none: newer versions of csv refuse "\n"
    assert read_table(path) == {"sep=": ["1", "2"]}


def test_a_first_line_of_blanks_names_no_columns(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    path.write_text("  \n,\na,b\n1,2\n", "utf-8")
    assert read_numbered_table(path) == ({"a": ["1"], "b": ["2"]}, array("q", [4]))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be"])
def test_a_table_may_be_in_utf_16_as_excel_writes_it(tmp_path: Path, encoding: str) -> None:
    path = tmp_path / "table.tsv"
    path.write_bytes("path\tlabel\r\na.jpg\tcafé\r\n".encode(encoding))
    assert read_table(path) == {"path": ["a.jpg"], "label": ["café"]}
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(DataError, match="is not a CSV file"):
        read_table(path)


def test_empty_rows_below_the_last_one_are_none(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("path,class_id\na.jpg,rosa\n,\n , \n,,,\n")
    table, lines = read_numbered_table(tmp_path / "a.csv")
    assert (table, list(lines)) == ({"path": ["a.jpg"], "class_id": ["rosa"]}, [2])


def test_cells_of_parquet_are_the_text_that_people_mean(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    columns = {
        "path": [b"a.jpg", b"\xc3\xa9.jpg", b"\xff"],  # text that is not declared to be
        "gbif": [2882337.0, None, float("nan")],  # whole numbers beside a gap
        "latitude": [43.25, -1.0, None],
    }
    parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert read_table(tmp_path / "a.parquet") == {
        "path": ["a.jpg", "\u00e9.jpg", "\ufffd"],
        "gbif": ["2882337", "", ""],
        "latitude": ["43.25", "-1", ""],
    }


def test_a_parquet_file_with_a_column_twice_is_refused_for_that(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    twice = pyarrow.Table.from_arrays([pyarrow.array(["a"])] * 2, names=["path", "path"])
    parquet.write_table(twice, tmp_path / "a.parquet")
    with pytest.raises(DataError, match="these columns appear twice: 'path'"):
        read_table(tmp_path / "a.parquet")
