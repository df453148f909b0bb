"""A resumable output: cut anywhere, it ends in the same bytes; changed, it is refused."""

import json
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from florilege.errors import UsageError
from florilege.server.predict import formats, resumable_output
from florilege.server.predict.formats import json_text
from florilege.server.predict.resumable_output import Convert, ResumableOutput


def line(number: int, verdict: str | None, failed: int) -> str:
    """The line of one observation, with the fields that matter here."""
    error = {"code": "broken", "detail": f"number {number}"}
    return json_text(
        {
            "path": f"{number}.jpg",
            "observation": None,
            "paths": ["x\ny.jpg"] * max(1, failed),
            "rejection": None if verdict is None else {"verdict": verdict},
            "warnings": [{"code": "photo_failed"}] * failed,
            "error": error if verdict is None else None,
        }
    )


OUTCOMES = (("accepted", 0), ("suspect", 0), (None, 1), ("rejected", 2))
LINES = tuple(line(number, *outcome) for number, outcome in enumerate(OUTCOMES, start=1))
WHOLE = "".join(LINES).encode()
OPTIONS = {"k": 3.0, "format": "jsonl", "lang": None, "observations": len(LINES)}
TOTALS = {"finished": 4, "answered": 3, "suspect": 2, "failed": 3}


def copy(lines: Any, file: Any) -> None:
    """A conversion that writes the same lines."""
    file.writelines(json_text(one).encode() for one in lines)


CONVERSIONS = (None, copy)


def grow(
    output: Path,
    *,
    until: int = len(LINES),
    resume: bool = True,
    convert: Convert | None = None,
    options: dict[str, Any] = OPTIONS,
) -> list[int]:
    """Write lines up to ``until``, which only all of them finish; which of them were written."""
    growing = ResumableOutput(output, options, convert)
    try:
        growing.begin(resume=resume)
        if growing.complete:
            return []
        finished = growing.tally.finished
        for text in LINES[finished:until]:
            growing.add(json.loads(text))
            growing.tally.count(json.loads(text))
        if until == len(LINES):
            growing.finish()
    finally:
        growing.close()
    return list(range(finished, until))


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def stop(*_: object) -> NoReturn:
    raise KeyboardInterrupt


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("convert", CONVERSIONS)
def test_an_uninterrupted_run_leaves_the_rows_and_the_totals(
    tmp_path: Path, convert: Convert | None, resume: bool
) -> None:
    output = tmp_path / "sets.csv"
    assert grow(output, resume=resume, convert=convert) == [0, 1, 2, 3]
    assert output.read_bytes() == WHOLE
    assert names(tmp_path) == ["sets.csv", "sets.csv.run"]
    options, totals = map(json.loads, (tmp_path / "sets.csv.run").read_text().splitlines())
    assert (options, totals) == (OPTIONS, TOTALS)
    assert grow(output, convert=convert) == []  # nothing to resume


def test_a_run_cut_at_any_byte_resumes_to_the_same_bytes(tmp_path: Path) -> None:
    output, part, run = (tmp_path / f"s.csv{more}" for more in ("", ".part", ".run"))
    grow(output, until=3)
    rows, options = part.read_bytes(), run.read_bytes()
    ends = [len("".join(LINES[:count]).encode()) for count in (1, 2, 3)]
    for size in {0, 2, *ends, *(end - 1 for end in ends), *(end + 1 for end in ends[:2])}:
        part.write_bytes(rows[:size])
        run.write_bytes(options)
        remaining = sum(end <= size for end in ends)
        assert grow(output) == list(range(remaining, 4))
        assert output.read_bytes() == WHOLE
        assert json.loads(run.read_text().splitlines()[1]) == TOTALS
        output.unlink()


@pytest.mark.parametrize("zeros", [b"\0\0\0", b"\0\0\0\n", b"\0\0\0\n" + LINES[2].encode()])
def test_zeros_left_by_a_system_crash_are_overwritten(tmp_path: Path, zeros: bytes) -> None:
    output, part, run = (tmp_path / f"s.csv{more}" for more in ("", ".part", ".run"))
    grow(output, until=3)
    part.write_bytes("".join(LINES[:2]).encode() + zeros)
    run.write_bytes(run.read_bytes() + b"\0\0\0")
    assert grow(output) == [2, 3]
    assert output.read_bytes() == WHOLE
    assert json.loads(run.read_text().splitlines()[1]) == TOTALS


@pytest.mark.parametrize("convert", CONVERSIONS)
@pytest.mark.parametrize(
    "place", ["ResumableOutput._append", "atomic_writer", "os.fsync", "Path.unlink"]
)
def test_a_run_stopped_at_its_end_is_complete_after_the_next(
    tmp_path: Path, place: str, convert: Convert | None
) -> None:
    output = tmp_path / "s.csv"
    grow(output, until=3)
    with pytest.MonkeyPatch.context() as patched, suppress(KeyboardInterrupt):
        patched.setattr(f"{resumable_output.__name__}.{place}", stop)
        grow(output, convert=convert)  # not every run comes by every place
    assert grow(output, convert=convert) == []
    assert output.read_bytes() == WHOLE
    assert names(tmp_path) == ["s.csv", "s.csv.run"]


def test_an_interrupted_run_is_not_lost_by_starting_again(tmp_path: Path) -> None:
    output = tmp_path / "s.csv"
    grow(output, until=2)
    with pytest.raises(UsageError, match=r"s\.csv\.part holds 2 finished answers .* --resume"):
        grow(output, resume=False)
    assert grow(output) == [2, 3]
    output.write_text("something older")
    assert grow(output, until=1, resume=False) == [0]  # complete ones are replaced at the end
    assert output.read_text() == "something older"
    assert grow(output) == [1, 2, 3]
    assert output.read_bytes() == WHOLE


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"k": 5.0}, r"k was 3\.0 and is 5\.0"),
        ({"k": 5.0, "lang": "fr"}, r'k was 3\.0 and is 5\.0; lang was not given and is "fr"'),
        ({"list": "alps"}, 'list was not given and is "alps"'),
        ({"format": "x" * 99}, r'format was "jsonl" and is "x{18}\.\.\.x{17}"'),
    ],
)
def test_other_options_are_refused_saying_what_changed(
    changed: dict[str, Any], message: str, tmp_path: Path
) -> None:
    output = tmp_path / "s.csv"
    for until, hint in ((2, r"delete s\.csv\.part to start again"), (4, "replace it")):
        grow(output, until=until)
        with pytest.raises(UsageError, match=f"cannot be resumed: {message}.* or {hint} without"):
            grow(output, options=OPTIONS | changed)
    assert output.read_bytes() == WHOLE


def test_resume_of_a_file_of_another_origin_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "s.csv"
    grow(output, until=2)
    (tmp_path / "s.csv.run").unlink()
    with pytest.raises(UsageError, match="beside"):
        grow(output)
    (tmp_path / "s.csv.part").unlink()
    output.write_text("by hand")
    with pytest.raises(UsageError, match="beside"):
        grow(output)
    assert names(tmp_path) == ["s.csv"]
    for text in ("by hand\n", '{"k": 3}\n{"by": "hand"}\n'):
        (tmp_path / "s.csv.run").write_text(text)
        with pytest.raises(UsageError, match="journal"):
            grow(output)
        assert (tmp_path / "s.csv.run").read_text() == text


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("text", ["path,observation\na.jpg,\n", '["a.jpg",null]\n', "{}\n"])
def test_answers_of_an_earlier_version_are_not_lost(
    tmp_path: Path, text: str, resume: bool
) -> None:
    output, part = tmp_path / "s.csv", tmp_path / "s.csv.part"
    grow(output, until=2)
    part.write_text(text)
    with pytest.raises(UsageError, match="answers"):
        grow(output, resume=resume)
    assert part.read_text() == text
    part.unlink()
    assert grow(output, resume=False) == [0, 1, 2, 3]


@pytest.mark.parametrize(("until", "gone"), [(2, "s.csv.part"), (4, "s.csv")])
def test_resume_without_the_rows_is_refused(until: int, gone: str, tmp_path: Path) -> None:
    output = tmp_path / "s.csv"
    grow(output, until=until)
    (tmp_path / gone).unlink()
    with pytest.raises(UsageError, match=f": {gone} is missing; start again without --resume"):
        grow(output)
    assert grow(output, resume=False) == [0, 1, 2, 3]


def test_a_run_that_finished_nothing_leaves_nothing(tmp_path: Path) -> None:
    grow(tmp_path / "s.csv", until=0)
    assert names(tmp_path) == []


def test_two_runs_do_not_write_one_output(tmp_path: Path) -> None:
    output = tmp_path / "s.csv"
    script = (
        "import sys; from pathlib import Path;"
        "from florilege.server.predict.resumable_output import ResumableOutput;"
        "ResumableOutput(Path(sys.argv[1]), {'observations': 1})"
    )
    growing = ResumableOutput(output, OPTIONS)
    growing.begin(resume=False)
    growing.add(json.loads(LINES[0]))
    growing.tally.count(json.loads(LINES[0]))
    process = subprocess.run(
        [sys.executable, "-c", script, str(output)], capture_output=True, text=True, check=False
    )
    growing.close()
    assert f"another process is writing {output}: wait" in process.stderr
    assert grow(output) == [1, 2, 3]


@pytest.mark.parametrize("total", [0, 1, 2, 3, 7])
def test_parquet_has_every_row_whatever_the_number_of_groups(
    total: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    monkeypatch.setattr(formats, "ROWS_AT_ONCE", 3)
    target = tmp_path / "x.parquet"
    with target.open("wb") as file:
        formats.write_parquet((json.loads(line(each, None, 1)) for each in range(total)), file)
    table = parquet.read_table(target)
    assert table.column_names == list(formats.COLUMNS)
    assert table["detail"].to_pylist() == [f"number {number}" for number in range(total)]
    assert table["score"].null_count == total
    assert parquet.ParquetFile(target).num_row_groups == -(-total // 3)


def test_a_failed_conversion_leaves_the_old_file_and_the_answers(tmp_path: Path) -> None:
    output = tmp_path / "x.csv"
    output.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        grow(output, resume=False, convert=stop)
    assert output.read_text() == "old"
    assert names(tmp_path) == ["x.csv", "x.csv.part", "x.csv.run"]
    with pytest.raises(UsageError, match="holds 4 finished answers"):
        grow(output, resume=False)
    assert grow(output, convert=copy) == []
    assert output.read_bytes() == WHOLE


def test_parquet_without_its_extra_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UsageError, match=r"pip install '\.\[report\]'"):
        formats.demand_pyarrow()
