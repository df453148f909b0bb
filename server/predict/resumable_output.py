"""An output that a later run can continue.

During a run, ``sets.csv.part`` gets a line of JSON for each finished observation, whatever the
format, and ``sets.csv.run`` holds the options of the run. After the last line, the totals are added
to ``sets.csv.run`` and the lines become the output ``sets.csv``. So while ``sets.csv.part`` exists,
the output is not complete.
"""

import fcntl
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from errno import EACCES, EAGAIN
from pathlib import Path
from typing import Any, BinaryIO

from florilege.errors import UsageError
from florilege.files import atomic_writer
from florilege.server.predict.formats import SUSPECT, Line, json_text
from florilege.server.predict.prediction import PHOTO_FAILED
from florilege.server.settings import MAX_IMAGES

Options = Mapping[str, Any]
"""What must not change when a run is resumed: plain JSON values by name."""
Convert = Callable[[Iterator[Line], BinaryIO], None]


@dataclass
class Tally:
    """Counts of the observations so far."""

    finished: int = 0
    answered: int = 0
    suspect: int = 0
    failed: int = 0  # photos

    def count(self, verdict: str | None, failed: int) -> None:
        """Add one observation; ``verdict`` is None if it has no answer."""
        self.finished += 1
        self.answered += verdict is not None
        self.suspect += verdict in SUSPECT
        self.failed += failed


class _RunFile:
    """The file ``NAME.run``, locked by one process at a time: a line of options, then totals."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.options: Options | None = None  # None for a new file
        self.totals: Tally | None = None  # None unless the run is finished
        self._size = 0
        self._file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
        try:
            self._lock()
            self._read()
        except UsageError:
            self.close()
            raise

    def _lock(self) -> None:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in (EACCES, EAGAIN):  # otherwise the disk has no locks
                raise UsageError(
                    f"another process is writing {self.path.with_suffix('')}: wait until it has "
                    "ended, or name another file"
                ) from error

    def _read(self) -> None:
        lines = self._file.readall().splitlines(keepends=True)
        lines = [line for line in lines if line.endswith(b"\n")]  # drops an incomplete line
        self._size = sum(map(len, lines))
        try:
            options, *more = [json.loads(line) for line in lines] or [None]
            self.options = None if options is None else dict(options)
            totals = [line for line in more if isinstance(line, dict)]
            self.totals = Tally(**totals[0]) if totals else None
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{self.path} is not the journal of a run: move it away, or name another output"
            ) from error

    def start(self, options: Options) -> None:
        """Replace everything with the options of a new run."""
        self._size, self.totals = 0, None
        self._append(options)

    def finish(self, totals: Tally) -> None:
        """Add the totals."""
        if self.totals is None:
            self._append(asdict(totals))

    def _append(self, line: Mapping[str, Any]) -> None:
        text = f"{json.dumps(line, ensure_ascii=False)}\n".encode()
        self._file.truncate(self._size)
        self._file.seek(self._size)
        write_all(self._file, text)
        os.fsync(self._file.fileno())
        self._size += len(text)

    def close(self) -> None:
        self._file.close()


class ResumableOutput:
    """Writes the answers of a run to ``output``; always `close` it.

    Args:
        output: The file, which appears when it is complete.
        options: The options of this run.
        convert: Writes the lines in another format; None if they are the output.

    Raises:
        UsageError: Another process writes this output.
        OSError: The folder cannot be written.
    """

    def __init__(self, output: Path, options: Options, convert: Convert | None = None) -> None:
        self.output, self.options, self._convert = output, options, convert
        self.part = output.with_name(f"{output.name}.part")
        self.tally = Tally()
        self.complete = False  # whether the output exists
        self._file: BinaryIO | None = None
        self._run = _RunFile(output.with_name(f"{output.name}.run"))

    def begin(self, *, resume: bool) -> None:
        """Start or resume a run; `tally` then counts the finished observations.

        Raises:
            UsageError: There is a run to resume without ``resume``, or it had other options, or its
                answers are missing.
            OSError: The answers cannot be written.
        """
        size = self._read_part()
        if not resume or self._run.options is None:
            self._check_replaceable(resume=resume)
            self.tally = Tally()
            self._file = self.part.open("wb", buffering=0)
            self._run.start(self.options)
            return
        self._check_options(self._run.options)
        if self.part.exists():
            self._file = self.part.open("r+b", buffering=0)
            self._file.truncate(size)
            self._file.seek(size)
        elif self._run.totals is not None and self.output.exists():
            self.complete, self.tally = True, self._run.totals
        else:
            missing = self.part if self._run.totals is None else self.output
            raise UsageError(
                f"{self.output} cannot be resumed: {missing.name} is missing; start again without "
                "--resume"
            )

    def _read_part(self) -> int:
        """Count the finished observations; returns how many bytes they take."""
        size = 0
        if not self.part.exists():
            return size
        with self.part.open("rb") as file:
            for text in file:
                if not text.endswith(b"\n"):
                    break  # an incomplete line
                try:
                    verdict, failed = _outcome(json.loads(text))
                except (ValueError, TypeError, KeyError) as error:
                    if not size:
                        raise UsageError(
                            f"{self.part} holds no answers that this version can continue: delete "
                            "it to start again"
                        ) from error
                    break  # zeros, left by a system crash
                self.tally.count(verdict, failed)
                size += len(text)
        return size

    def _check_replaceable(self, *, resume: bool) -> None:
        if resume:
            rows = self.part if self.tally.finished else self.output
            if rows.exists():
                raise UsageError(
                    f"{rows} has no {self._run.path.name} beside it and cannot be resumed: omit "
                    "--resume to replace it, or name another output"
                )
        elif self.tally.finished and self._run.totals is None:
            raise UsageError(
                f"{self.part} holds {self.tally.finished:,} finished answers of an interrupted "
                "run: add --resume to continue, or delete it to start again"
            )

    def _check_options(self, before: Options) -> None:
        names = dict.fromkeys((*before, *self.options))
        changes = [
            f"{name} was {_short(before.get(name))} and is {_short(self.options.get(name))}"
            for name in names
            if before.get(name) != self.options.get(name)
        ]
        if changes:
            again = (
                f"delete {self.part.name} to start again" if self.part.exists() else "replace it"
            )
            raise UsageError(
                f"{self.output} cannot be resumed: {'; '.join(changes)}. Use the same options, "
                f"name another output, or {again} without --resume"
            )

    def add(self, line: Line) -> None:
        """Write the line of the next observation.

        Raises:
            OSError: It cannot be written; earlier lines are kept.
        """
        assert self._file is not None
        write_all(self._file, json_text(line).encode())

    def finish(self) -> None:
        """Turn the lines into the output.

        Raises:
            OSError: The output cannot be written; all lines are kept.
        """
        assert self._file is not None
        os.fsync(self._file.fileno())
        self._run.finish(self.tally)
        if self._convert is None:
            self.part.replace(self.output)
        else:
            with self.part.open("rb") as lines, atomic_writer(self.output) as file:
                self._convert(map(json.loads, lines), file)
            self.part.unlink()
        self.complete = True

    def close(self) -> None:
        """Close the files; delete them if the run finished nothing."""
        if self._file is not None:
            self._file.close()
        if not self.tally.finished and (self._file is not None or self._run.options is None):
            self.part.unlink(missing_ok=True)
            self._run.path.unlink(missing_ok=True)
        self._run.close()


def _outcome(line: Line) -> tuple[str | None, int]:
    """The verdict, None without an answer, and how many of the photos to answer failed."""
    if line["error"] is not None:
        return None, min(len(line["paths"]), MAX_IMAGES)
    failed = sum(warning["code"] == PHOTO_FAILED for warning in line["warnings"])
    return line["rejection"]["verdict"], failed


def write_all(file: BinaryIO, content: bytes) -> None:
    """Write to an unbuffered file, which may take a part at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _short(value: Any) -> str:
    text = "not given" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:19]}...{text[-18:]}"
