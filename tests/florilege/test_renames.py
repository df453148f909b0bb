"""Old names on the command line work like the new ones, and print a hint."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner

from florilege import cli
from florilege.command_line import RENAMED


def command_of(words: str) -> Any:
    """The command of words such as ``bundle set-names``."""
    command = typer.main.get_command(cli.app)
    context = typer.Context(command)
    for word in words.split():
        command = command.resolve_command(context, [word])[1]  # type: ignore[attr-defined]  # a group
    return command


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_each_old_word_leads_to_one_that_is_there(old: str, new: str) -> None:
    command, _, word = new.rpartition(" ")
    if not word.startswith("--"):
        assert command_of(new) is not None
        return
    flags = {flag for parameter in command_of(command).params for flag in parameter.opts}
    assert word in flags
    assert old.rpartition(" ")[2] not in flags


def refusal(*words: str, **variables: str) -> tuple[Sequence[str], Sequence[str]]:
    """The warnings and errors of a command that is used wrongly."""
    result = CliRunner().invoke(cli.app, words, env=variables)
    assert result.exit_code == 2
    lines = result.stderr.splitlines()
    hints = [line for line in lines if line.startswith("warning: ")]
    return hints, [line for line in lines if line not in hints]


NEEDS_PHOTOS = ["error: --baseline needs photos: name them with --data"]
EVALUATE = ("evaluate", "B", "--feedback-store", "S")  # only a gate


@pytest.mark.parametrize("value", [["--against", "OLD"], ["--against=OLD"]])
def test_an_old_flag_works_with_one_hint(value: Sequence[str]) -> None:
    hints = ["warning: 'evaluate --against' is now called 'evaluate --baseline'"]
    assert refusal(*EVALUATE, *value) == (hints, NEEDS_PHOTOS)
    assert refusal(*EVALUATE, "--baseline", "OLD") == ([], NEEDS_PHOTOS)


def test_an_old_variable_works_with_one_hint_and_the_new_one_wins() -> None:
    old = {"FLORILEGE_EVALUATE_AGAINST": "OLD"}
    hint = "warning: FLORILEGE_EVALUATE_AGAINST is now called FLORILEGE_EVALUATE_BASELINE"
    assert refusal(*EVALUATE, **old) == ([hint], NEEDS_PHOTOS)
    both = old | {"FLORILEGE_EVALUATE_BASELINE": "NEW"}
    assert refusal(*EVALUATE, **both) == ([], NEEDS_PHOTOS)


def test_an_old_line_of_a_file_works_with_one_hint(tmp_path: Path) -> None:
    file = tmp_path / "evaluate.yaml"
    file.write_text("against: OLD\n")
    hints = ["warning: against is now called baseline"]
    assert refusal(*EVALUATE, "--config", str(file)) == (hints, NEEDS_PHOTOS)


def test_an_old_command_works_with_one_hint() -> None:
    result = CliRunner().invoke(cli.app, ["--traceback", "bundle", "names", "--help"])
    assert result.exit_code == 0
    assert result.stderr == "warning: 'bundle names' is now called 'bundle set-names'\n"
    assert "CLASSES_CSV" in result.stdout


def test_an_old_word_elsewhere_is_a_value() -> None:
    hints, errors = refusal("evaluate", "--", "B", "--against")
    assert hints == []
    assert "unexpected extra argument" in errors[0]
    result = CliRunner().invoke(cli.app, ["bundle", "inspect", "names"])
    assert "\nerror: no such bundle: names" in result.stderr


def test_the_help_has_the_new_words_alone() -> None:
    for words, new in (("evaluate", "--baseline"), ("bundle", "set-names")):
        text = CliRunner().invoke(cli.app, [words, "--help"]).stdout
        assert new in text
        assert "--against" not in text
        assert "│ names " not in text
