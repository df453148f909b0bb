"""Parquet made of lines: as many row groups as needed, or nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from server.errors import Problem
from server.predict import parquet
from server.predict.files import Predicted
from server.predict.inputs import Observation
from server.predict.tables import COLUMNS

pyarrow_parquet = pytest.importorskip("pyarrow.parquet")


def failed(number: int) -> Predicted:
    problem = cast(Problem, SimpleNamespace(code="broken", detail=f"number {number}"))
    return Predicted(observation=Observation((Path(f"{number}.jpg"),)), problem=problem)


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7])
def test_every_row_is_there_whatever_the_number_of_groups(
    count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parquet, "OBSERVATIONS_AT_ONCE", 3)
    lines, target = tmp_path / "lines", tmp_path / "x.parquet"
    lines.write_text("".join(parquet.line(failed(number)) for number in range(count)))
    parquet.write_parquet(lines, target)
    table = pyarrow_parquet.read_table(target)
    assert table.column_names == list(COLUMNS)
    assert table["detail"].to_pylist() == [f"number {number}" for number in range(count)]
    assert table["score"].null_count == count
    assert pyarrow_parquet.ParquetFile(target).num_row_groups == -(-count // 3)


def test_a_failure_leaves_the_old_file(tmp_path: Path) -> None:
    lines, target = tmp_path / "lines", tmp_path / "x.parquet"
    lines.write_text("no JSON\n")
    target.write_text("old")
    with pytest.raises(ValueError, match="Expecting value"):
        parquet.write_parquet(lines, target)
    assert target.read_text() == "old"
    assert sorted(file.name for file in tmp_path.iterdir()) == ["lines", "x.parquet"]


def test_parquet_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast(Any, __import__("sys").modules), "pyarrow", None)
    with pytest.raises(Exception, match=r"pip install florilege\[report\]"):
        parquet.demand_pyarrow()
