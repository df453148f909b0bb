"""Terminal output of all verbs: lines on stderr for people, tables on stdout, next commands."""

import os
import shlex
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from textwrap import fill
from typing import Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

STEP: Final = "FLORILEGE_STEP"
"""Environment variable of a command that is a step of a longer one, which says what comes next."""
_UNBOUNDED = 10_000  # columns, so that tables keep their full width


def say(line: str) -> None:
    """Print a line on stderr, above a progress bar if one is shown."""
    # `typer.echo` and rich would bypass the bar's stderr.
    sys.stderr.write(f"{between_words(line)}\n")


def between_words(text: str) -> str:
    """The text with its lines broken between words if stderr is a terminal, which breaks words."""
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = (
        fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )
    return "\n".join(lines)


def print_result(line: str) -> None:
    """Print a result in words on stdout; lines wrap between words, but only on a terminal."""
    console = Console(highlight=False)
    console.print(Text(line), soft_wrap=not console.is_terminal)


def warn(sentence: str) -> None:
    """Print a warning on stderr; lines wrap between words, but only on a terminal."""
    _print(Text.assemble(("warning:", "yellow"), f" {sentence}"), wrap=True)


def conclude(*results: str, then: Sequence[Sequence[str | Path]] = ()) -> None:
    """End a verb on stderr: list its results and the possible next commands.

    Args:
        results: One line each, such as ``run folder: runs/first``.
        then: Commands as lists of words without ``florilege``; paths are quoted if necessary.

    Example:
        >>> import contextlib
        >>> with contextlib.redirect_stderr(sys.stdout):
        ...     conclude("bundle: my bundle", then=[("serve", Path("my bundle"))])
        bundle: my bundle
        next: florilege serve 'my bundle'
    """
    for result in results:
        say(result)
    if is_step():
        return
    for label, words in zip(["next:", *["  or:"] * len(then)], then, strict=False):
        print_command(label, words)


def print_command(label: str, words: Sequence[str | Path]) -> None:
    """Print a command on stderr, in one line for those who copy it."""
    _print(Text.assemble((label, "bold"), f" {command(*words)}"), wrap=False)


def is_step() -> bool:
    """Whether this process is a step of a longer command, which gives the hints."""
    return bool(os.environ.get(STEP))


def command(*words: str | Path) -> str:
    """A florilege command, quoted for a shell.

    Example:
        >>> command("serve", Path("my bundle"))
        "florilege serve 'my bundle'"
    """
    return shlex.join(["florilege", *map(str, words)])


def new_table(headings: Sequence[str], *, words: Sequence[str] = ()) -> Table:
    """A table without lines; columns in ``words`` are left-aligned, the others hold numbers."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in words else "right", no_wrap=True)
    return table


def print_table(table: Table, title: str = "") -> None:
    """Print a title and a table on stdout at full width, so that nothing is truncated.

    Tables are designed for 80 columns; the terminal wraps wider ones.
    """
    console = Console(width=_UNBOUNDED)
    if title:
        console.print(Text(title, "italic"))
    console.print(table)


def _print(text: Text, *, wrap: bool) -> None:
    """Print on stderr; ``wrap=False`` leaves wrapping to the terminal, for lines to be copied."""
    console = Console(stderr=True)
    with console.capture() as captured:
        console.print(text, soft_wrap=not (wrap and console.is_terminal))
    sys.stderr.write(f"{captured.get().rstrip()}\n")
