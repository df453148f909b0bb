"""Progress of long work: on a terminal a bar with the time left, on stderr; elsewhere nothing.

Of several processes that `torchrun` has started, the first alone shows it.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TimeElapsedColumn,
    TimeRemainingColumn,
)


class Advance(Protocol):
    """Report that some more steps are done, and optionally what to show beside the bar."""

    def __call__(self, steps: int = 1, note: str = "") -> None: ...


@contextmanager
def progress(total: int, description: str) -> Iterator[Advance]:
    """Show a bar of ``total`` steps on stderr while the block runs.

    Example:
        >>> with progress(3, "counting") as advance:
        ...     for _ in range(3):
        ...         advance()
    """
    console = Console(stderr=True)
    shown = console.is_terminal and os.environ.get("RANK", "0") == "0"
    times = TimeElapsedColumn(), "left", TimeRemainingColumn()
    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), *times)
    with Progress(*columns, "{task.fields[note]}", console=console, disable=not shown) as bar:
        task = bar.add_task(description, total=total, note="")

        def advance(steps: int = 1, note: str = "") -> None:
            if note:
                bar.update(task, note=note)
            bar.advance(task, steps)

        yield advance
