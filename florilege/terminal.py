"""What every verb shows: lines on stderr for people, tables on stdout, and where to go next."""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

_UNBOUNDED = 10_000  # columns: a table is as wide as it is


def say(line: str) -> None:
    """Print a line on stderr, above a progress bar if one is shown."""
    sys.stderr.write(f"{line}\n")  # `typer.echo` and rich would write past the bar's own stderr


def print_result(line: str) -> None:
    """Print a result in words on stdout; a terminal breaks it between words, a file not at all."""
    console = Console(highlight=False)
    console.print(Text(line), soft_wrap=not console.is_terminal)


def warn(sentence: str) -> None:
    """Print a warning on stderr; a terminal breaks it between words, a file not at all."""
    _print(Text.assemble(("warning:", "yellow"), f" {sentence}"), whole=False)


def conclude(*results: str, then: Sequence[Sequence[str | Path]] = ()) -> None:
    """End a verb on stderr: where its results are, and the commands that may come next.

    Args:
        results: One line each, such as ``run folder: runs/first``.
        then: Commands without ``florilege``, a word each; paths are quoted where they need it.

    Example:
        >>> import contextlib
        >>> with contextlib.redirect_stderr(sys.stdout):
        ...     conclude("bundle: my bundle", then=[("serve", Path("my bundle"))])
        bundle: my bundle
        next: florilege serve 'my bundle'
    """
    for result in results:
        say(result)
    for label, words in zip(["next:", *["  or:"] * len(then)], then, strict=False):
        _print(Text.assemble((label, "bold"), f" {command(*words)}"), whole=True)


def command(*words: str | Path) -> str:
    """A command of ours as it can be typed.

    Example:
        >>> command("serve", Path("my bundle"))
        "florilege serve 'my bundle'"
    """
    return shlex.join(["florilege", *map(str, words)])


def new_table(headings: Sequence[str], *, words: Sequence[str] = ()) -> Table:
    """A table without lines: ``words`` are the columns to align left, the others hold numbers."""
    table = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="left" if heading in words else "right", no_wrap=True)
    return table


def print_table(table: Table, title: str = "") -> None:
    """Print a title and a table on stdout as wide as they are, so that nothing is cut.

    Tables are made to fit 80 columns; a wider one the terminal breaks.
    """
    console = Console(width=_UNBOUNDED)
    if title:
        console.print(Text(title, "italic"))
    console.print(table)


def _print(text: Text, *, whole: bool) -> None:
    """Print on stderr; ``whole`` leaves breaking to the terminal, so that it can be copied."""
    console = Console(stderr=True)
    with console.capture() as captured:
        console.print(text, soft_wrap=whole or not console.is_terminal)
    say(captured.get().rstrip("\n"))
