"""An output that grows with each answer, and that a later run can go on with.

While ``sets.csv`` is made, ``sets.csv.part`` holds the rows so far and ``sets.csv.run`` is their
journal: a line of JSON with what was asked, then a line for each finished observation (the size of
the part with its rows, the verdict or null, how many photos failed). Rows are written before their
line, so what lies beyond the last line is half written, and cut off. A file that is complete has
its own name; the journal then ends with what came of the run.

A format to which no rows can be added has parts: the rows of so many observations leave
``NAME.part`` for a file in ``NAME.parts``, and the parts are joined at the end.
"""

import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from errno import EACCES, EAGAIN
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from florilege.errors import UsageError
from florilege.files import write_atomic
from florilege.server.predict.parquet import Parts

Asked = Mapping[str, Any]
"""What must be the same for a run to go on: plain values of JSON by name."""


@dataclass
class Tally:
    """What came of the observations so far."""

    finished: int = 0
    answered: int = 0
    suspect: int = 0
    failed: int = 0  # photos

    def count(self, verdict: str | None, failed: int) -> None:
        """Add one observation; ``verdict`` is None where it has no answer."""
        self.finished += 1
        self.answered += verdict is not None
        self.suspect += verdict in ("suspect", "rejected")
        self.failed += failed


class Entry(NamedTuple):
    """A finished observation in the journal."""

    end: int  # size of NAME.part with its rows
    verdict: str | None
    failed: int


class Journal:
    """The file ``NAME.run``, held by one process at a time.

    Attributes:
        asked: Of the run it is about; None for a new journal.
        entries: Those that are whole, each with the size of the journal after it.
        complete: Whether the run came to its end.

    Raises:
        UsageError: Another process holds it, or the file is something else.
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (EACCES, EAGAIN):  # else a disk without locks
                self.close()
                raise UsageError(
                    f"another process is writing {path.with_suffix('')}: wait until it has ended, "
                    "or name another file"
                ) from error
        self.asked: Asked | None = None
        self.entries: list[tuple[Entry, int]] = []
        self.complete = False
        try:
            self._read()
        except ValueError as error:
            self.close()
            raise UsageError(
                f"{path} is not the journal of a run: move it away, or name another output"
            ) from error

    def _read(self) -> None:
        size = 0
        for line in self._file.readall().splitlines(keepends=True):
            if not line.endswith(b"\n"):
                break  # half written
            try:
                found = json.loads(line)
            except ValueError:
                if self.asked is None:
                    raise
                break  # what a stopped system left
            size += len(line)
            if self.asked is None:
                self.asked = dict(found)
            elif isinstance(found, list):
                self.entries.append((Entry(*found), size))
            else:
                self.complete = True

    def start(self, asked: Asked) -> None:
        """Forget everything and begin with what is asked."""
        self.entries, self.complete = [], False
        self._file.seek(0)
        self._file.truncate(0)
        self._append(asked)

    def keep(self, count: int) -> None:
        """Forget all but the first entries."""
        size = self.entries[count - 1][1]
        self._file.truncate(size)
        self._file.seek(size)

    def add(self, entry: Entry) -> None:
        self._append(list(entry))

    def end(self, asked: Asked, tally: Tally) -> None:
        """Replace the entries by what came of them."""
        lines = (json.dumps(found, ensure_ascii=False) for found in (asked, asdict(tally)))
        write_atomic(self.path, "".join(f"{line}\n" for line in lines).encode())

    def _append(self, found: Any) -> None:
        write_all(self._file, f"{json.dumps(found, ensure_ascii=False)}\n".encode())

    def sync(self) -> None:
        """Make what is there survive a power cut."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


class Growing:
    """The rows of a run on their way to ``output``; `close` it whatever happens.

    Args:
        output: Where the complete rows go.
        asked: What is asked now; ``observations`` is how many there are.
        head: What the rows begin with.
        parts: Where finished rows go, of a format that has parts.

    Raises:
        UsageError: Another process writes this output.
        OSError: The folder cannot be written.
    """

    def __init__(
        self, output: Path, asked: Asked, head: bytes = b"", parts: Parts | None = None
    ) -> None:
        self.output, self.asked, self.head, self.parts = output, asked, head, parts
        self.part = output.with_name(f"{output.name}.part")
        self.tally = Tally()
        self.complete = False  # whether the output is there
        self._size = 0
        self._rows: BinaryIO | None = None
        self._journal = Journal(output.with_name(f"{output.name}.run"))

    def begin(self, *, resume: bool) -> int:
        """Start, or go on with what is there; gives how many observations are finished.

        Raises:
            UsageError: There is something to go on with and ``resume`` is not asked for, or
                something else was asked then, or the rows are gone.
            OSError: The rows cannot be written.
        """
        kept = self._kept(resume=resume)
        for entry, _ in self._journal.entries[:kept]:
            self.tally.count(entry.verdict, entry.failed)
        if self.complete:
            return kept
        if kept:
            moved = kept == self._moved()
            self._rows = self.part.open("r+b", buffering=0)
            self._cut(0 if moved else self._journal.entries[kept - 1][0].end)
            self._journal.keep(kept)
            self._move_full()
        else:
            if self.parts is not None:
                self.parts.remove()
            self._rows = self.part.open("wb", buffering=0)
            write_all(self._rows, self.head)
            self._size = len(self.head)
            self._journal.start(self.asked)
        return kept

    def _kept(self, *, resume: bool) -> int:
        """How many finished observations to go on with."""
        then, found = self._journal.asked, len(self._journal.entries)
        if not resume:
            if found and not self._journal.complete and self.part.exists():
                raise UsageError(
                    f"{self.part} holds {found:,} finished answers of an interrupted run: add "
                    "--resume to go on, or delete it to start again"
                )
            return 0
        if then is None:
            if self.output.exists():
                raise UsageError(
                    f"{self.output} has no {self._journal.path.name} beside it and cannot be "
                    "resumed: leave --resume out to replace it, or name another output"
                )
            return 0
        if changed := _differences(then, self.asked):
            again = (
                f"delete {self.part.name} to start again" if self.part.exists() else "replace it"
            )
            raise UsageError(
                f"{self.output} cannot be resumed: {'; '.join(changed)}. Ask as in that run, name "
                f"another output, or {again} without --resume"
            )
        finished = self._journal.complete or found == self.total
        if finished and self.output.exists() and not self.part.exists():
            self.complete = True
            return found
        if not self.part.exists():
            if finished or found:
                gone = self.output if self._journal.complete else self.part
                raise UsageError(
                    f"{self.output} cannot be resumed: {gone.name} is gone; start again without "
                    "--resume"
                )
            return 0
        if self._moved() > found:
            raise UsageError(
                f"{self.output} cannot be resumed: {self._journal.path.name} has lost its end; "
                f"delete {self.part.name} to start again without --resume"
            )
        return self._whole()

    def _whole(self) -> int:
        """How many entries have their rows; a system that stops may leave too few, or zeros."""
        size, moved = self.part.stat().st_size, self._moved()
        with self.part.open("rb") as file:
            for count in range(len(self._journal.entries), moved, -1):
                end = self._journal.entries[count - 1][0].end
                file.seek(end - 1)
                if end <= size and file.read(1) == b"\n":
                    return count
        return moved

    def _moved(self) -> int:
        """How many observations have their rows in parts."""
        return self.parts.count() * self.parts.length if self.parts is not None else 0

    def _cut(self, size: int) -> None:
        """Forget the rows beyond a size."""
        assert self._rows is not None
        self._rows.truncate(size)
        self._rows.seek(size)
        self._size = size

    def _move_full(self) -> None:
        """Move the rows that fill a part, if they do, to a file of their own."""
        if self.parts is None or not self._size or self.tally.finished % self.parts.length:
            return
        self._journal.sync()  # the rows leave the file that it counts
        self.parts.write(self.part)
        self._cut(0)

    @property
    def total(self) -> int:
        """How many observations there are."""
        number: int = self.asked["observations"]
        return number

    def add(self, rows: bytes, verdict: str | None, failed: int) -> None:
        """Write the rows of the next observation, which end in a line feed.

        Raises:
            OSError: They cannot be written; those before are kept.
        """
        assert self._rows is not None
        write_all(self._rows, rows)
        self._size += len(rows)
        self._journal.add(Entry(self._size, verdict, failed))
        self.tally.count(verdict, failed)
        self._move_full()

    def finish(self) -> None:
        """Make the rows the output, and close the journal.

        Raises:
            OSError: The output cannot be written; all rows are kept.
        """
        if self._rows is not None:
            os.fsync(self._rows.fileno())
            if self.parts is None:
                self.part.replace(self.output)
            else:
                self.parts.join(self.part, self.output)
        self.part.unlink(missing_ok=True)
        self._journal.end(self.asked, self.tally)
        if self.parts is not None:
            self.parts.remove()
        self.complete = True

    def close(self) -> None:
        """Let go of the files; nothing is left of a run that finished nothing."""
        if self._rows is not None:
            self._rows.close()
            if not self.tally.finished:
                self.part.unlink(missing_ok=True)
        ours = self._rows is not None or self._journal.asked is None
        if ours and not self.tally.finished:
            self._journal.path.unlink(missing_ok=True)
        self._journal.close()


def write_all(file: BinaryIO, content: bytes) -> None:
    """Write to an unbuffered file, which may take a part at a time."""
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def _differences(then: Asked, now: Asked) -> list[str]:
    """What is not as it was, by name."""
    names = dict.fromkeys((*then, *now))
    return [
        f"{name} was {_short(then.get(name))} and is {_short(now.get(name))}"
        for name in names
        if then.get(name) != now.get(name)
    ]


def _short(value: Any) -> str:
    text = "not given" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:19]}...{text[-18:]}"
