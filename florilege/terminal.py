"""Terminal output of all verbs: lines and a bar on stderr for people, tables on stdout.

A bar is shown only on a terminal, under `torchrun` by the first process alone, and disappears when
the work is done; what :func:`say` and ``print`` print meanwhile appears above it.
"""

import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any, Final, Protocol

from rich.console import Console as RichConsole
from rich.console import ConsoleOptions, RenderableType, RenderResult
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from florilege.cores import Item, Result, in_order

STEP: Final = "FLORILEGE_STEP"
"""Environment variable of a command that is a step of a longer one, which says what comes next."""
Titled = tuple[str, Table]  # a table and what stands above it
_CONTROLS: Final = dict.fromkeys(
    {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)}
    - {ord("\n"), ord("\t")},
    "\N{REPLACEMENT CHARACTER}",
)
# What `repr` writes for each: \n, \x1b, \u2028.
_OF_LINES: Final = {code: repr(chr(code))[1:-1] for code in (*_CONTROLS, *b"\t\n", 0x2028, 0x2029)}
_UNBOUNDED = 10_000  # columns, so that tables keep their full width


def printable(text: str) -> str:
    """The text without what commands a terminal, such as the name of a file may contain.

    Control characters can clear a screen or fill the clipboard, others turn the order of letters.
    """
    return text.translate(_CONTROLS)


def in_one_line(text: str) -> str:
    r"""A name, such as that of a file, with its controls and ends of lines escaped.

    Example:
        >>> print(in_one_line("two\nlines.jpg"))
        two\nlines.jpg
    """
    return text.translate(_OF_LINES)


def open_streams() -> None:
    """Open those of stdin, stdout and stderr that are closed, as services are started, on nothing.

    Otherwise the next file that is opened gets the number of one of them, and what a library prints
    lands in it.
    """
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # The lowest number that is free, which is that of the stream.
            number = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "r" if name == "stdin" else "w", closefd=False))


class Console(RichConsole):
    """A console of rich that prints `printable` text; its styles are its own."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """What rich prints; controls of a terminal are segments of their own."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=printable(segment.text))


def say(line: str) -> None:
    """Print a line on stderr, above a progress bar if one is shown."""
    # `typer.echo` and rich would bypass the bar's stderr.
    sys.stderr.write(f"{between_words(line)}\n")


def between_words(text: str) -> str:
    """Printable text; on a terminal, which breaks words, with its lines broken between words."""
    text = printable(text)
    if not sys.stderr.isatty():
        return text
    width = shutil.get_terminal_size().columns
    lines = (
        fill(line, width, break_long_words=False, break_on_hyphens=False)
        for line in text.split("\n")
    )
    return "\n".join(lines)


def show(
    content: object,
    parts: Iterable[str | Titled],
    *,
    as_json: bool,
    notes: Iterable[str] = (),
    then: Iterable[Sequence[str | Path]] = (),
) -> None:
    """Print the result of a verb: one JSON object for programs; lines and tables for people.

    ``notes`` and ``then`` are the results and next commands of :func:`conclude`; with ``as_json``
    none of ``parts``, ``notes`` and ``then`` is read.
    """
    if as_json:
        print_json(content)
        return
    for part in parts:
        if isinstance(part, str):
            print_result(part)
        else:
            print_table(part[1], part[0])
    conclude(*notes, then=[*then])


def print_json(content: object) -> None:
    """Print one JSON object on stdout: floats with all digits.

    Infinite ones, as in the interval of a change on a single photo, are null.
    """
    from pydantic_core import to_jsonable_python  # --help needs none of it

    plain = to_jsonable_python(content, inf_nan_mode="null")
    # Other encodings, as of a pipe on Windows, lack most letters; escaped ones every reader knows.
    is_unicode = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    text = json.dumps(plain, ensure_ascii=not is_unicode, allow_nan=False)
    # Half of a character, as in a file name that is not UTF-8, stays as JSON writes it: \udce9.
    sys.stdout.write(f"{text.encode(errors='backslashreplace').decode()}\n")


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


def is_first() -> bool:
    """Whether this process prints: it is alone, or the first of those that `torchrun` starts."""
    return os.environ.get("RANK", "0") == "0"


def command(*words: str | Path) -> str:
    """A florilege command, quoted for a shell.

    Example:
        >>> command("serve", Path("my bundle"))
        "florilege serve 'my bundle'"
    """
    return shlex.join(["florilege", *map(str, words)])


class LineTable(Table):
    """A table whose rows are one line each, whatever the names in them contain."""

    def add_row(self, *cells: RenderableType | None, **settings: Any) -> None:
        super().add_row(*map(_cell, cells), **settings)


def _cell(content: RenderableType | None) -> RenderableType | None:
    if isinstance(content, Text) and (plain := in_one_line(content.plain)) != content.plain:
        return Text(plain, content.style, overflow=content.overflow)
    return in_one_line(content) if isinstance(content, str) else content


def new_table(headings: Sequence[str], *, words: Sequence[str] = ()) -> Table:
    """A table without lines; columns in ``words`` are left-aligned, the others hold numbers."""
    table = LineTable(box=None, padding=(0, 1, 0, 0), pad_edge=False)
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


class Advance(Protocol):
    """Report that more steps are done, optionally with a note to show beside the bar."""

    def __call__(self, steps: int = 1, note: str = "") -> None: ...


@dataclass(frozen=True)
class _Narrower:
    """Leaves room for the ``^C`` that a terminal appends to the line of the bar.

    Without room, the terminal would start a new line, which would be erased instead of the bar.
    """

    inner: RenderableType
    room = len("^C^C") + 1

    def __rich_console__(self, console: RichConsole, options: ConsoleOptions) -> RenderResult:
        width = max(1, options.max_width - self.room)
        yield from console.render(self.inner, options.update(max_width=width))


class _Bar(Progress):
    def get_renderable(self) -> RenderableType:
        return _Narrower(super().get_renderable())


def _no_bar(steps: int = 1, note: str = "") -> None:
    """Show nothing."""


@contextmanager
def progress(total: int | None, description: str) -> Iterator[Advance]:
    """Show a bar of ``total`` steps, None if unknown, on stderr while the block runs.

    No bar is shown for 0 steps.

    Example:
        >>> with progress(3, "counting") as advance:
        ...     for _ in range(3):
        ...         advance()
    """
    console = Console(stderr=True)
    visible = console.is_terminal and sys.stderr.isatty()  # FORCE_COLOR alone is not a terminal
    if not (visible and total != 0 and is_first()):
        # Not a disabled bar, which in rich before 14.3 ends with an empty line.
        yield _no_bar
        return
    times = TimeElapsedColumn(), "left", TimeRemainingColumn()
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), *times)
    with _Bar(
        *columns,
        "{task.fields[note]}",
        console=console,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # redirected results must not go to the bar's stream
    ) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(steps: int = 1, note: str = "") -> None:
            if note:
                bar.update(task, note=note)
            bar.advance(task, steps)

        yield advance


def with_bar(
    work: Callable[[Item], Result],
    items: Sequence[Item],
    description: str,
    *,
    threads: int | None = None,
) -> Iterator[Result]:
    """`florilege.cores.in_order`, with a bar that advances by each result.

    Example:
        >>> list(with_bar(abs, [-3, 1, -2], "counting"))
        [3, 1, 2]
    """
    results = in_order(work, items, threads=threads)
    with closing(results), progress(len(items), description) as advance:
        for result in results:
            yield result
            advance()
