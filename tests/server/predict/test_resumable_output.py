"""An output that grows: cut anywhere, it ends in the same bytes; changed, it is refused."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from florilege.errors import UsageError
from florilege.server.predict.resumable_output import Growing, Tally

HEAD = b"a,b\n"
ROWS = (
    (b"1,accepted\n", "accepted", 0),
    (b'2,"two\nlines"\n2,suspect\n', "suspect", 0),
    (b"3,\n", None, 1),
    (b"4,rejected\n", "rejected", 2),
)
WHOLE = HEAD + b"".join(rows for rows, _, _ in ROWS)
ASKED = {"k": 3.0, "format": "csv", "lang": None, "observations": len(ROWS)}
TALLY = {"finished": 4, "answered": 3, "suspect": 2, "failed": 3}


def grow(output: Path, *, until: int = len(ROWS), resume: bool = True) -> list[int]:
    """Write rows up to ``until``, which only all of them finish; which of them were written."""
    growing = Growing(output, ASKED, HEAD)
    try:
        begun = growing.begin(resume=resume)
        if growing.complete:
            return []
        for rows, verdict, failed in ROWS[begun:until]:
            growing.add(rows, verdict, failed)
        if until == len(ROWS):
            growing.finish()
    finally:
        growing.close()
    return list(range(begun, until))


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_a_run_that_nobody_interrupts_leaves_the_rows_and_what_came_of_it(tmp_path: Path) -> None:
    output = tmp_path / "sets.csv"
    assert grow(output, resume=False) == [0, 1, 2, 3]
    assert output.read_bytes() == WHOLE
    assert names(tmp_path) == ["sets.csv", "sets.csv.run"]
    asked, tally = map(json.loads, (tmp_path / "sets.csv.run").read_text().splitlines())
    assert (asked, tally) == (ASKED, TALLY)
    assert grow(output) == []  # nothing to resume


def test_a_run_cut_at_any_byte_goes_on_to_the_same_bytes(tmp_path: Path) -> None:
    output, part, journal = (tmp_path / f"s.csv{more}" for more in ("", ".part", ".run"))
    grow(output, until=3)
    rows, lines = part.read_bytes(), journal.read_bytes()
    ends = [end for end, _, _ in map(json.loads, lines.splitlines()[1:])]
    assert ends == [len(HEAD + b"".join(r for r, _, _ in ROWS[:n])) for n in (1, 2, 3)]
    marks = [at for at, byte in enumerate(lines, start=1) if byte == ord("\n")]  # line feeds
    for at in {*marks, *(mark - 1 for mark in marks[1:]), marks[0] + 1}:
        for size in {2, *ends, *(end - 1 for end in ends)}:
            part.write_bytes(rows[:size])
            journal.write_bytes(lines[:at])
            noted = max(0, lines[:at].count(b"\n") - 1)
            kept = min(noted, sum(end <= size for end in ends))
            assert grow(output) == list(range(kept, 4))
            assert output.read_bytes() == WHOLE
            assert json.loads(journal.read_text().splitlines()[1]) == TALLY
            output.unlink()


def test_what_is_longer_than_the_rest_of_the_run_is_cut_off(tmp_path: Path) -> None:
    output, part, journal = (tmp_path / f"s.csv{more}" for more in ("", ".part", ".run"))
    grow(output, until=3)
    part.write_bytes(part.read_bytes()[:-1] + b"x" * 999)
    assert grow(output, until=3) == [2]
    assert part.read_bytes() == WHOLE[: -len(ROWS[3][0])]
    assert journal.read_text().count("\n") == 4
    part.write_bytes(part.read_bytes()[: len(HEAD + ROWS[0][0])])
    assert grow(output, until=1) == []
    assert journal.read_text().count("\n") == 2
    assert grow(output) == [1, 2, 3]
    assert output.read_bytes() == WHOLE


def test_zeros_that_a_stopped_system_left_are_written_again(tmp_path: Path) -> None:
    output, part, journal = (tmp_path / f"s.csv{more}" for more in ("", ".part", ".run"))
    grow(output, until=3)
    part.write_bytes(part.read_bytes()[:-3] + b"\0\0\0")
    journal.write_bytes(journal.read_bytes() + b"\0\0\0\n")
    assert grow(output) == [2, 3]
    assert output.read_bytes() == WHOLE


def test_a_run_stopped_while_it_takes_its_name_is_complete(tmp_path: Path) -> None:
    output, part = tmp_path / "s.csv", tmp_path / "s.csv.part"
    growing = Growing(output, ASKED, HEAD)
    growing.begin(resume=False)
    for rows in ROWS:
        growing.add(*rows)
    growing.close()
    assert grow(output) == []  # everything was written but its name
    assert (output.read_bytes(), part.exists()) == (WHOLE, False)
    grow(tmp_path / "t.csv", until=0)
    lines = [json.dumps(ASKED), *(json.dumps([1, None, 0]) for _ in ROWS)]
    (tmp_path / "s.csv.run").write_text("\n".join([*lines, ""]))  # killed before the last line
    assert grow(output) == []


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
    ("changed", "said"),
    [
        ({"k": 5.0}, r"k was 3\.0 and is 5\.0"),
        ({"k": 5.0, "lang": "fr"}, r'k was 3\.0 and is 5\.0; lang was not given and is "fr"'),
        ({"list": "alps"}, 'list was not given and is "alps"'),
        ({"format": "x" * 99}, r'format was "csv" and is "x{18}\.\.\.x{17}"'),
    ],
)
def test_another_question_is_refused_saying_what_changed(
    changed: dict[str, Any], said: str, tmp_path: Path
) -> None:
    output = tmp_path / "s.csv"
    for until, hint in ((2, r"delete s\.csv\.part to start again"), (4, "replace it")):
        grow(output, until=until)
        growing = Growing(output, ASKED | changed)
        with pytest.raises(UsageError, match=f"cannot be resumed: {said}.* or {hint} without"):
            growing.begin(resume=True)
        growing.close()
    assert output.read_bytes() == WHOLE


def test_resume_without_anything_starts(tmp_path: Path) -> None:
    assert grow(tmp_path / "s.csv", resume=True) == [0, 1, 2, 3]


def test_resume_of_a_file_of_another_origin_is_refused(tmp_path: Path) -> None:
    output = tmp_path / "s.csv"
    output.write_text("by hand")
    with pytest.raises(UsageError, match=r"has no s\.csv\.run beside it"):
        grow(output)
    assert names(tmp_path) == ["s.csv"]
    (tmp_path / "s.csv.run").write_text("by hand\n")
    with pytest.raises(UsageError, match="is not the journal of a run"):
        grow(output)
    assert (tmp_path / "s.csv.run").read_text() == "by hand\n"


@pytest.mark.parametrize(("until", "gone"), [(2, "s.csv.part"), (4, "s.csv")])
def test_resume_without_the_rows_is_refused(until: int, gone: str, tmp_path: Path) -> None:
    output = tmp_path / "s.csv"
    grow(output, until=until)
    (tmp_path / gone).unlink()
    with pytest.raises(UsageError, match=f": {gone} is gone; start again without --resume"):
        grow(output)
    assert grow(output, resume=False) == [0, 1, 2, 3]


def test_a_run_that_finished_nothing_leaves_nothing(tmp_path: Path) -> None:
    grow(tmp_path / "s.csv", until=0)
    assert names(tmp_path) == []


def test_two_runs_do_not_write_one_output(tmp_path: Path) -> None:
    output = tmp_path / "s.csv"
    script = (
        "import sys; from pathlib import Path;"
        "from florilege.server.predict.resumable_output import Growing;"
        "Growing(Path(sys.argv[1]), {'observations': 1})"
    )
    growing = Growing(output, ASKED, HEAD)
    growing.begin(resume=False)
    growing.add(*ROWS[0])
    done = subprocess.run(
        [sys.executable, "-c", script, str(output)], capture_output=True, text=True, check=False
    )
    growing.close()
    assert f"another process is writing {output}: wait" in done.stderr
    assert grow(output) == [1, 2, 3]


def test_what_came_of_a_resumed_run_counts_its_beginning(tmp_path: Path) -> None:
    output = tmp_path / "s.csv"
    grow(output, until=3)
    growing = Growing(output, ASKED, HEAD)
    growing.begin(resume=True)
    growing.close()
    assert growing.tally == Tally(finished=3, answered=2, suspect=1, failed=1)
