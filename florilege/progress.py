"""A progress bar for long work, on stderr; shown only on a terminal.

The bar disappears when the work is done. Lines printed meanwhile with `florilege.terminal.say` or
``print`` appear above it. Under `torchrun` only the first process shows it.
"""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
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

    Example:
        >>> with progress(3, "counting") as advance:
        ...     for _ in range(3):
        ...         advance()
    """
    console = Console(stderr=True)
    visible = console.is_terminal and sys.stderr.isatty()  # FORCE_COLOR alone is not a terminal
    if not visible or os.environ.get("RANK", "0") != "0":
        yield _no_bar  # a disabled bar of rich before 14.3 ends with an empty line
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
