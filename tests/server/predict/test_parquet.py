"""Parquet in parts: each readable at once, none lost, joined at the end."""

from contextlib import closing, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn, cast

import pytest

from florilege.errors import UsageError
from florilege.server.predict import parquet
from florilege.server.predict import resumable_output as growing_module
from florilege.server.predict.formats import COLUMNS
from florilege.server.predict.photos import Observation
from florilege.server.predict.prediction import Predicted
from florilege.server.predict.resumable_output import Growing
from florilege.server.problems import Problem

pyarrow_parquet = pytest.importorskip("pyarrow.parquet")


def failed(number: int) -> Predicted:
    problem = cast(Problem, SimpleNamespace(code="broken", detail=f"number {number}"))
    return Predicted(observation=Observation((Path(f"{number}.jpg"),)), problem=problem)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parquet, "OBSERVATIONS_AT_ONCE", 3)


def grow(output: Path, total: int, *, until: int | None = None, resume: bool = True) -> list[int]:
    """Write rows up to ``until``, which only all of them finish; which of them were written."""
    asked = {"observations": total}
    with closing(Growing(output, asked, parts=parquet.Parts(output))) as growing:
        begun = growing.begin(resume=resume)
        if growing.complete:
            return []
        numbers = range(begun, total if until is None else until)
        for number in numbers:
            growing.add(parquet.line(failed(number)).encode(), None, 1)
        if until is None:
            growing.finish()
    return list(numbers)


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("total", [0, 1, 2, 3, 7])
def test_every_row_is_there_whatever_the_number_of_parts(total: int, tmp_path: Path) -> None:
    target = tmp_path / "x.parquet"
    grow(target, total)
    table = pyarrow_parquet.read_table(target)
    assert table.column_names == list(COLUMNS)
    assert table["detail"].to_pylist() == [f"number {number}" for number in range(total)]
    assert table["score"].null_count == total
    assert pyarrow_parquet.ParquetFile(target).num_row_groups == -(-total // 3)
    assert not list(tmp_path.glob("x.parquet.part*"))


def test_finished_parts_can_be_read_while_the_run_goes_on(tmp_path: Path) -> None:
    grow(tmp_path / "x.parquet", 9, until=7)
    table = pyarrow_parquet.read_table(tmp_path / "x.parquet.parts")
    assert table["detail"].to_pylist() == [f"number {number}" for number in range(6)]
    left = (tmp_path / "x.parquet.part").read_bytes()
    assert left == parquet.line(failed(6)).encode()


@pytest.mark.parametrize("until", [1, 3, 5, 6, 8])
@pytest.mark.parametrize(
    "place", [None, "Parts.write", "replaced", "Journal.sync", "Growing._cut", "Parts.join"]
)
def test_a_run_stopped_anywhere_goes_on_to_the_same_bytes(
    until: int, place: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, output = tmp_path / "whole.parquet", tmp_path / "x.parquet"
    grow(whole, 8)
    grow(output, 8, until=until)
    if place is not None:
        where = parquet if place in ("replaced", "Parts.write", "Parts.join") else growing_module
        with monkeypatch.context() as patched:
            patched.setattr(f"{where.__name__}.{place}", stop)
            with suppress(KeyboardInterrupt):  # not every run comes by every place
                grow(output, 8)
    written = grow(output, 8)
    assert output.read_bytes() == whole.read_bytes()
    assert written == list(range(8 - len(written), 8))
    assert not written or written[0] >= until
    assert not list(tmp_path.glob("x.parquet.part*"))


def stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


def test_rows_that_the_disk_lost_are_written_again(tmp_path: Path) -> None:
    whole, output = tmp_path / "whole.parquet", tmp_path / "x.parquet"
    grow(whole, 8)
    grow(output, 8, until=5)
    (tmp_path / "x.parquet.part").write_bytes(b"")
    assert grow(output, 8) == [3, 4, 5, 6, 7]
    assert output.read_bytes() == whole.read_bytes()


def test_a_journal_that_lost_its_end_is_refused(tmp_path: Path) -> None:
    output, journal = tmp_path / "x.parquet", tmp_path / "x.parquet.run"
    grow(output, 8, until=7)
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:6]))
    with pytest.raises(
        UsageError, match=r"x\.parquet\.run has lost its end; delete x\.parquet\.par"
    ):
        grow(output, 8)


def test_parts_of_an_abandoned_run_are_not_taken_for_those_of_a_new_one(tmp_path: Path) -> None:
    output = tmp_path / "x.parquet"
    grow(output, 8, until=7)
    (tmp_path / "x.parquet.part").unlink()  # as the message tells a person to
    grow(output, 2, until=1, resume=False)
    assert not (tmp_path / "x.parquet.parts").exists()
    grow(output, 2)
    assert pyarrow_parquet.read_table(output).num_rows == 2
    assert names(tmp_path) == ["x.parquet", "x.parquet.run"]


def test_a_failure_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "x.parquet"
    target.write_text("old")
    (tmp_path / "lines").write_text(parquet.line(failed(0)))
    monkeypatch.setattr(pyarrow_parquet.ParquetWriter, "write_table", stop)
    with pytest.raises(KeyboardInterrupt):
        parquet.Parts(target).join(tmp_path / "lines", target)
    assert target.read_text() == "old"
    assert names(tmp_path) == ["lines", "x.parquet"]


def test_parquet_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cast(Any, __import__("sys").modules), "pyarrow", None)
    with pytest.raises(Exception, match=r"pip install '\.\[report\]'"):
        parquet.demand_pyarrow()
