"""The help of each verb at 80 columns: flags that can be copied, words that are whole."""

import re
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from florilege import cli
from florilege.command_line import HELP_ALL, write_overview
from florilege.data.cli import app as data_app
from tests.write_commands import verbs

SKIPPED = ("help", "help_all")
PANELS = "Network", "Limits of a request", "Feedback", "Log"


def every_verb() -> list[tuple[str, Any]]:
    pytest.importorskip("torch")
    return list(verbs(typer.main.get_command(cli.app)))


def help_of(command: Any, name: str, *, whole: bool = True) -> str:
    context = typer.Context(command, info_name=name, terminal_width=80)
    context.meta[HELP_ALL] = whole
    return re.sub("\x1b[^m]*m", "", str(command.get_help(context)))


def test_a_line_names_a_flag_and_none_is_cut_nor_a_word_broken() -> None:
    for name, command in every_verb():
        text = help_of(command, name)
        lines = text.splitlines()
        assert max(map(len, lines)) <= 80, name
        assert "…" not in text
        for flag in command.params:
            if flag.param_type_name == "option" and flag.name not in SKIPPED and not flag.hidden:
                names = [*sorted(flag.opts, key=len), *flag.secondary_opts]
                pattern = r"  " + r"(, | / )".join(map(re.escape, names)) + r"( \S+)?"
                assert [line for line in lines if re.fullmatch(pattern, line)], names
                assert " ".join((flag.help or "").split()) in " ".join(text.split())


def test_values_choices_and_defaults_are_named() -> None:
    text = help_of(dict(every_verb())["florilege serve"], "florilege serve")
    for line in (
        "  --device auto|cpu|cuda",
        "  --threads N",
        "  --upload-deadline-s NUMBER",
        "  --keys-file PATH",
        "  --cors-origin TEXT",
        "  --list [NAME=]FILE",
        "  --watch / --no-watch",
        "      Maximum photos in one request. [default: 5]",
    ):
        assert f"\n{line}\n" in text
    assert "BUNDLE\n" in text
    assert text.index("Options\n") < text.index("Log\n")


def test_help_fits_two_screens_and_names_every_flag() -> None:
    pytest.importorskip("torch")
    for name, command in every_verb():
        text = help_of(command, name, whole=False)
        assert text.count("\n") <= 48, name
        flags = [
            flag
            for flag in command.params
            if flag.param_type_name == "option" and flag.name not in SKIPPED
        ]
        for flag in flags:
            for word in [] if flag.hidden else [*flag.opts, *flag.secondary_opts]:
                assert re.search(rf"(?<![\w-]){word}(?![\w-])", text), (name, word)
        headings = {flag.rich_help_panel for flag in flags} - {None}
        assert bool(headings) == ("--help-all" in text)


def test_flags_for_few_people_are_named_below_headings_and_described_by_help_all() -> None:
    serve = dict(every_verb())["florilege serve"]
    short, whole = (help_of(serve, "florilege serve", whole=each) for each in (False, True))
    assert [title for title in PANELS if f"\n  {title}: --" not in short] == []
    assert "\n  --port N\n      Port to listen on; 0 picks a free one. [default: 8000]\n" in short
    named = "--score-log, --score-log-max-bytes, --watch / --no-watch, --watch-state"
    assert named in " ".join(short.split())
    described = "Folder for the logits of answered photos"
    assert described in whole
    assert described not in short
    result = CliRunner().invoke(cli.app, ["serve", "--help-all"])
    assert (result.exit_code, described in result.output) == (0, True)


def test_choices_that_are_too_long_for_a_line_stand_in_the_text() -> None:
    app = typer.Typer()
    words = (
        "balanced_average_k",
        "balanced_coverage",
        "class_coverage",
        "average_k",
        "coverage",
        "top_k",
    )

    @app.command()
    def verb(rule: Annotated[Literal[words], typer.Option(help="Rule.")] = "coverage") -> None:  # type: ignore[valid-type]
        """Show."""

    command = typer.main.get_command(app)
    cli._prepare_flags(command, "verb")
    text = help_of(command, "verb")
    assert "  --rule RULE\n      Rule. One of balanced_average_k, balanced_coverage, " in text
    assert "[default: coverage]" in text


def test_the_flag_of_the_help_is_left_out_whatever_click_calls_its_parameter() -> None:
    group: Any = typer.main.get_command(data_app)
    context = typer.Context(group)
    (option,) = group.get_params(context)
    option.name = "_click_default_help"  # since 8.5
    formatter = context.make_formatter()
    group.get_params = lambda _: [option]
    write_overview(context, formatter)
    assert "--help" not in formatter.getvalue()
    assert "check" in formatter.getvalue()


@pytest.mark.parametrize(("words", "known"), [([], "fit"), (["data"], "check")])
def test_a_group_lists_its_commands_before_its_options_and_nothing_else(
    words: list[str], known: str
) -> None:
    alone, asked = (CliRunner().invoke(cli.app, [*words, *flag]) for flag in ([], ["--help"]))
    assert (alone.exit_code, asked.exit_code) == (2, 0)
    assert alone.output == asked.output
    text = re.sub("\x1b[^m]*m", "", asked.output)
    assert re.search(rf"^Commands\n(?s:.*)^  {known} +[A-Z]", text, re.MULTILINE)
    assert max(map(len, text.splitlines())) <= 80
    assert not re.search(r"<bool>|env var|[│╭]", text)
    assert ("Options\n" in text) == (words == [])  # and after the commands
    assert text.find("Options\n") == -1 or text.index("Commands\n") < text.index("Options\n")
