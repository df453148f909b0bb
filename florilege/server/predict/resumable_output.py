"""Outputs that a later run can continue: the answers, and the features of the photos.

During a run, ``sets.csv.part`` gets a line of JSON for each finished observation, whatever the
format, and ``sets.csv.run`` holds the options of the run. After the last line, the totals are added
to ``sets.csv.run`` and the lines become the output ``sets.csv``. So while ``sets.csv.part`` exists,
the output is not complete.
"""

import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from florilege.errors import UsageError
from florilege.files import atomic_writer, lock_file
from florilege.server.predict.formats import SUSPECT, json_text
from florilege.server.predict.prediction import (
    PHOTO_FAILED,
    Line,
    Observation,
    count_photos,
    display_path,
)
from florilege.server.settings import MAX_IMAGES
from florilege.tables import Table, write_table

Options = Mapping[str, Any]  # what must not change: plain JSON values by name
Convert = Callable[[Iterator[Line], BinaryIO], None]
WriteRows = Callable[[NDArray[np.float32]], None]  # of the next observation, (photos, dimensions)


@dataclass
class RunCounts:
    """Counts of the observations so far."""

    finished: int = 0
    answered: int = 0
    suspect: int = 0
    failed: int = 0  # photos; of those to answer, unless features are written of all

    def count(self, line: Line) -> None:
        """Add one observation."""
        if line["error"] is not None:
            self.failed += min(len(line["paths"]), MAX_IMAGES)
        else:
            self.suspect += line["rejection"]["verdict"] in SUSPECT
            self.failed += sum(warning["code"] == PHOTO_FAILED for warning in line["warnings"])
            self.answered += 1
        self.finished += 1


class ResumableOutput:
    """Writes the answers of a run to ``output``, one process at a time; always `close` it.

    ``convert`` writes the lines in another format; without it they are the output. Every method
    raises ``OSError`` if a file cannot be written; earlier lines are kept.
    """

    def __init__(self, output: Path, options: Options, convert: Convert | None = None) -> None:
        self.output, self.options, self._convert = output, options, convert
        self.part, self.run = (output.with_name(f"{output.name}.{end}") for end in ("part", "run"))
        self.tally = RunCounts()
        self.complete = False  # whether the output exists
        self._lines: BinaryIO | None = None  # of the part
        flags = os.O_RDWR | os.O_CREAT | os.O_APPEND
        self._journal = os.fdopen(os.open(self.run, flags, 0o644), "r+b", buffering=0)
        try:
            if not lock_file(self._journal):
                raise UsageError(
                    f"another process is writing {output}: wait until it has ended, or name "
                    "another file"
                )
            self._before, self._totals = self._read_journal()
        except UsageError:
            self._journal.close()
            raise

    def begin(self, *, resume: bool) -> None:
        """Start or resume a run; `tally` then counts the finished observations.

        Raises `UsageError` if the run cannot be resumed, or must be and ``resume`` is not set.
        """
        size = self._read_part()
        fresh = not resume or self._before is None
        if fresh:
            self._check_replaceable(resume=resume)
            self.tally, size = RunCounts(), 0
        else:
            self._check_options()
            if not self.part.exists():
                missing = self.part if self._totals is None else self.output
                if not self.output.exists() or self._totals is None:
                    raise UsageError(
                        f"{self.output} cannot be resumed: {missing.name} is missing; start again "
                        "without --resume"
                    )
                self.complete = True
                return
        # Unbuffered: a killed process has lost at most the line that it was writing. It is not
        # synced to disk, which would take longer than a photo; after a crash of the system the end
        # is checked.
        self._lines = self.part.open("ab", buffering=0)
        self._lines.truncate(size)
        if fresh:
            self._journal.truncate(0)
            self._append(self.options)

    def add(self, line: Line) -> None:
        assert self._lines is not None
        _write_all(self._lines, json_text(line).encode())

    def finish(self) -> None:
        assert self._lines is not None
        os.fsync(self._lines.fileno())
        # Totals before the output has its name: with them and no part, the run is complete.
        if self._totals is None:
            self._append(asdict(self.tally))
        if self._convert is None:
            self.part.replace(self.output)
        else:
            with self.part.open("rb") as lines, atomic_writer(self.output) as file:
                self._convert(map(json.loads, lines), file)
            self.part.unlink()

    def close(self) -> None:
        """Close the files; delete them if the run finished nothing."""
        if self._lines is not None:
            self._lines.close()
        if not self.tally.finished and (self._lines is not None or self._before is None):
            self.part.unlink(missing_ok=True)
            self.run.unlink(missing_ok=True)
        self._journal.close()

    def _read_journal(self) -> tuple[Options | None, RunCounts | None]:
        """The options of the last run, None without one, and its totals, None until it ends."""
        lines = self._journal.readall().splitlines(keepends=True)
        lines = [line for line in lines if line.endswith(b"\n")]  # drops an incomplete line
        try:
            options, totals = [*map(json.loads, lines), None, None][:2]
            before = None if options is None else dict(options)
            counts = None if totals is None else RunCounts(**totals)
        except (ValueError, TypeError) as error:
            raise UsageError(
                f"{self.run} is not the journal of a run: move it away, or name another output"
            ) from error
        self._journal.truncate(sum(map(len, lines)))
        return before, counts

    def _append(self, line: Options) -> None:
        _write_all(self._journal, f"{json.dumps(line, ensure_ascii=False)}\n".encode())
        os.fsync(self._journal.fileno())

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
                    self.tally.count(json.loads(text))
                except (ValueError, TypeError, KeyError) as error:
                    if not size:
                        raise UsageError(
                            f"{self.part} holds no answers that this version can continue: delete "
                            "it to start again"
                        ) from error
                    break  # zeros, left by a system crash
                size += len(text)
        return size

    def _check_replaceable(self, *, resume: bool) -> None:
        if resume:
            rows = self.part if self.tally.finished else self.output
            if rows.exists():
                raise UsageError(
                    f"{rows} has no {self.run.name} beside it and cannot be resumed: omit --resume "
                    "to replace it, or name another output"
                )
        elif self.tally.finished:
            raise UsageError(
                f"{self.part} holds {self.tally.finished:,} finished answers of an interrupted "
                "run: add --resume to continue, or delete it to start again"
            )

    def _check_options(self) -> None:
        before = self._before or {}
        changes = [
            f"{name} was {_short(before.get(name))} and is {_short(self.options.get(name))}"
            for name in dict.fromkeys((*before, *self.options))
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


@contextmanager
def features_file(
    output: Path,
    observations: Sequence[Observation],
    dimensions: int,
    tally: RunCounts,
    *,
    resumable: bool,
) -> Iterator[WriteRows]:
    """Write a ``.npy`` file while the block runs: little-endian float32, ``(photos, dimensions)``.

    Its header has the final shape from the start. The file grows as ``NAME.part`` and gets its name
    when it is complete, with ``NAME.paths.csv``, which names the photo of each row. An earlier run
    has written the observations that ``tally`` counts. At the end ``tally.failed`` is the number of
    photos whose row is NaN.
    """
    part = output.with_name(f"{output.name}.part")
    photos, rows = count_photos(observations), count_photos(observations[: tally.finished])
    buffer = io.BytesIO()
    header = {"descr": "<f4", "fortran_order": False, "shape": (photos, dimensions)}
    # The same bytes in each run, so that a later one finds where its rows begin.
    np.lib.format.write_array_header_1_0(buffer, header)
    head = buffer.getvalue()
    size = len(head) + 4 * dimensions * rows
    if rows == photos and output.exists() and not part.exists():
        output.replace(part)  # the earlier run was stopped after it had completed this file
    if rows and not (part.exists() and part.stat().st_size >= size):
        raise UsageError(
            f"{output} cannot be resumed: {part.name} is missing or too short; delete the .part of "
            "the answers too, and start again without --resume"
        )
    try:
        if not rows:
            part.write_bytes(head)
        with part.open("ab", buffering=0) as file:
            file.truncate(size)
            yield lambda features: _write_all(file, features.astype("<f4").tobytes())
            os.fsync(file.fileno())
        # A row is NaN as a whole or not at all.
        tally.failed = int(np.isnan(np.load(part, mmap_mode="r")[:, 0]).sum())
        write_table(output.with_name(f"{output.name}.paths.csv"), _paths(observations))
        part.replace(output)
    finally:
        if not (resumable and tally.finished):
            part.unlink(missing_ok=True)


def _paths(observations: Sequence[Observation]) -> Table:
    """The photo of each row."""
    photos = [
        (observation.name or "", path)
        for observation in observations
        for path in observation.photos
    ]
    return {
        "row": [str(row) for row in range(len(photos))],
        "path": [display_path(path) for _, path in photos],
        "observation": [name for name, _ in photos],
    }


def _write_all(file: BinaryIO, content: bytes) -> None:
    """Write to an unbuffered file, which may take a part at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _short(value: Any) -> str:
    text = "not given" if value is None else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:19]}...{text[-18:]}"
