"""Progress goes to stderr, only on a terminal, and disappears at the end."""

import io
import sys
from pathlib import Path

import pytest

from florilege.progress import progress
from tests.screen import shown_by

LONG = """
import sys, time
from florilege.terminal import progress
from florilege.terminal import say, warn
with progress(400, "counting") as advance:
    for number in range(4):
        advance(100, f"epoch {number} loss 0.123")
        time.sleep(0.15)
        LINE
print("done")
"""
LINES = {
    "say(f'line {number}')": [f"line {number}" for number in range(4)],
    "warn(f'line {number}')": [f"warning: line {number}" for number in range(4)],
    "print(f'line {number}')": [f"line {number}" for number in range(4)],
}


def test_nothing_is_printed_where_nobody_watches(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # as on some machines for CI
    with progress(3, "counting") as advance:
        for _ in range(3):
            advance()
        advance(0, note="done")
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("columns", [40, 80, 120])
@pytest.mark.parametrize("line", LINES)
def test_lines_printed_meanwhile_are_all_that_remains(line: str, columns: int) -> None:
    assert shown_by(LONG.replace("LINE", line), columns=columns) == [*LINES[line], "done"]


def test_a_terminal_sees_steps_time_and_note_meanwhile() -> None:
    program = LONG.replace("LINE", "if number == 2: import os; os._exit(0)")
    (bar,) = shown_by(program, columns=100)
    assert bar.startswith("counting ")
    assert "300/400" in bar
    assert " left 0:00:0" in bar
    assert bar.endswith("epoch 2 loss 0.123")


def test_results_for_a_file_do_not_go_where_the_bar_is(tmp_path: Path) -> None:
    with (tmp_path / "out").open("wb") as file:
        view = shown_by(LONG.replace("LINE", "print('a line', number)"), stdout=file.fileno())
    assert view == []
    assert (tmp_path / "out").read_text() == "a line 0\na line 1\na line 2\na line 3\ndone\n"


def test_an_error_leaves_itself_alone() -> None:
    view = shown_by(LONG.replace("LINE", "raise SystemExit('broken')"))
    assert view == ["broken"]


def test_ctrl_c_leaves_nothing_of_the_bar() -> None:
    program = LONG.replace("LINE", "time.sleep(20)")
    view = shown_by(f"try:{program.replace(chr(10), chr(10) + ' ')}\nexcept KeyboardInterrupt:\n"
                     " print('stopped')", interrupt_at="100/400")  # fmt: skip
    assert view == ["stopped"]


def test_of_several_processes_the_first_alone_shows_a_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("FORCE_COLOR", "1")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        with progress(1, f"work of {rank}") as advance:
            advance()
    assert "work of 0" in terminal.getvalue()
    assert "work of 1" not in terminal.getvalue()
