"""Output of all verbs: complete on a terminal and plain in a file."""

import io
import json
import shlex
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.text import Text

from florilege.errors import BundleError
from florilege.terminal import (
    Console,
    between_words,
    conclude,
    new_table,
    print_json,
    print_result,
    print_table,
    say,
    warn,
)
from tests.screen import shown_by

NAME = "a\x1b]52;c;cm0=\x07\x9b2J\u202eb\x00\x7f"  # fills the clipboard, clears the screen
LONG = "a folder/" + "with a long name/" * 8


def test_a_verb_ends_with_commands_that_can_be_typed(capsys: pytest.CaptureFixture[str]) -> None:
    conclude("it is there", then=[("serve", Path(LONG)), ("train", "--data", "flora:train=3")])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        "it is there",
        f"next: florilege serve '{Path(LONG)}'",
        "  or: florilege train --data flora:train=3",
    ]


def test_a_command_is_one_line_for_those_who_copy_it() -> None:
    program = f"from florilege.terminal import conclude; conclude(then=[('serve', {LONG!r})])"
    view = shown_by(program)
    assert all(len(line) == 80 for line in view[:-1])  # wrapped by the terminal, not by us
    assert "".join(view).replace(" ", "") == f"next:florilegeserve'{LONG}'".replace(" ", "")


@pytest.mark.parametrize("sentence", ["[/] and [bold] are no markup", LONG * 3])
def test_a_warning_in_a_file_is_one_plain_line(
    sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    warn(sentence)
    assert capsys.readouterr() == ("", f"warning: {sentence}\n")


def test_a_warning_on_a_terminal_is_broken_between_words() -> None:
    words = "nineteen letters or so " * 8
    view = shown_by(f"from florilege.terminal import warn; warn({words!r})")
    assert len(view) == 3
    assert " ".join(view) == f"warning: {words.strip()}"


def test_a_table_is_never_cut_nor_its_title(capsys: pytest.CaptureFixture[str]) -> None:
    table = new_table(("rule", "size"), words=("rule",))
    table.add_row("x" * 90, "3.000")
    table.add_row("y", "10.000")
    print_table(table, f"[b] {LONG}")
    assert capsys.readouterr().out.splitlines() == [
        f"[b] {LONG}",
        "rule" + " " * 89 + "size",
        "x" * 90 + "  3.000",
        "y" + " " * 90 + "10.000",
    ]


def test_lines_on_a_terminal_are_broken_between_words_and_elsewhere_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    text = "error: the ending of " + "word " * 20 + "/a/path-with-hyphens" * 6 + "\nhelp: x"
    assert between_words(text) == text
    monkeypatch.setattr("sys.stderr", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("COLUMNS", "30")
    lines = between_words(text).split("\n")
    assert " ".join(" ".join(lines).split()) == " ".join(text.split())
    assert {*" ".join(lines).split()} == {*text.split()}
    assert all(len(line) <= 30 for line in lines if "/" not in line)
    assert lines[-1] == "help: x"


def test_a_row_is_one_line_whatever_its_names_contain(capsys: pytest.CaptureFixture[str]) -> None:
    table = new_table(("photo", "size"))
    table.add_row("two\nlines\x1b\u2028.jpg", Text("a\tb", "red"))
    print_table(table)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split() for line in lines] == [
        ["photo", "size"],
        ["two\\nlines\\x1b\\u2028.jpg", "a\\tb"],
    ]


STREAMS = """
import os, sys
from florilege.terminal import open_streams
open_streams()
print("nothing"); print("nothing", file=sys.stderr)
assert not sys.stdin.read()
file = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
assert os.system("echo of a library && echo of it >&2") == 0
assert file > 2
"""


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_what_is_printed_to_closed_streams_lands_in_no_file(tmp_path: Path, closed: str) -> None:
    file = tmp_path / "file"
    command = [sys.executable, "-c", STREAMS, str(file)]
    done = subprocess.run(f"{shlex.join(command)} {closed}", shell=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 0
    assert file.read_bytes() == b""


def test_a_verb_with_closed_streams_ends_with_its_own_code() -> None:
    command = [sys.executable, "-m", "florilege", "bundle", "verify", "no such bundle"]
    done = subprocess.run(f"{shlex.join(command)} >&- 2>&-", shell=True, check=False)
    assert done.returncode == BundleError.exit_code


def test_names_command_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    """Such as the names of files and classes; some controls are left out, others replaced."""
    table = new_table(("class",))
    table.add_row(NAME)
    print_table(table, NAME)
    print_result(NAME)
    for write in (say, warn, conclude):
        write(NAME)
    conclude(then=[(NAME,)])
    Console().print(f"[bold]{NAME}[/]")
    text = "".join(capsys.readouterr())
    assert text.count("]52;c;cm0=") == 8
    assert {*text} <= {*map(chr, range(32, 127)), "\n", "\N{REPLACEMENT CHARACTER}"}


def test_a_style_is_no_name(capsys: pytest.CaptureFixture[str]) -> None:
    Console(force_terminal=True, color_system="standard").print("[red]a\x1b[0m[/]", highlight=False)
    assert capsys.readouterr().out == "\x1b[31ma\ufffd[0m\x1b[0m\n"


@pytest.mark.parametrize("encoding", ["utf-8", "cp1252", "ascii"])
def test_every_name_can_be_printed_as_json_in_every_encoding(
    monkeypatch: pytest.MonkeyPatch, encoding: str
) -> None:
    names = {"name": "\u0152illet \u82b1", "path": "caf\udce9.jpg"}
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, encoding, write_through=True))
    print_json(names)
    text = written.getvalue().decode(encoding)
    assert json.loads(text) == names
    assert ("\u82b1" in text) is (encoding == "utf-8")
