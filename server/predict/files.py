"""Answering many files: in order, on all cores, one failure never stops the others."""

import os
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.cores import in_order
from models.errors import UsageError
from models.images import MAX_BYTES
from models.progress import progress
from server.answers.answer import operating_point
from server.answers.ask import Ask
from server.answers.pipeline import Pipeline
from server.errors import BodyTooLarge, Problem
from server.schemas import Answer


class FileUnreadable(Problem):
    """A file that cannot be opened; only `predict` meets it."""

    status, code, title = 422, "file_unreadable", "The file cannot be read"


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One file with its answer, or with what was wrong with it."""

    path: Path
    answer: Answer | None = None
    problem: Problem | None = None
    lang: str | None = None  # that of the common names, where one was asked for


def predict_all(
    pipeline: Pipeline, photos: Sequence[Path], ask: Ask, *, threads: int | None = None
) -> Iterator[Predicted]:
    """Answer each file as the server would, in the order given, showing progress.

    Raises:
        UsageError: ``ask`` contradicts itself, or the bundle is not calibrated for it; found before
            the first file.
    """
    try:
        operating_point(pipeline.record, ask, 1, pipeline.lists.restriction(ask))
    except Problem as error:
        allowed = f"; possible are {_short(error.allowed)}" if error.allowed else ""
        raise UsageError(f"{error.detail}{allowed}") from error
    return _predicted(pipeline, photos, ask, threads)


def _short(values: list[Any]) -> str:
    listed = [value if isinstance(value, str) else f"{value:g}" for value in values]
    return ", ".join(listed if len(listed) <= 12 else [*listed[:5], "...", *listed[-3:]])


def _predicted(
    pipeline: Pipeline, photos: Sequence[Path], ask: Ask, threads: int | None
) -> Iterator[Predicted]:
    answers = in_order(lambda photo: _predict(pipeline, photo, ask), photos, threads=threads)
    with closing(answers), progress(len(photos), "predicting") as advance:
        for answer in answers:
            yield answer
            advance()


def shown(path: Path) -> str:
    """A path as text for people and files; bytes that are not UTF-8 appear as ``\\xe9``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _predict(pipeline: Pipeline, path: Path, ask: Ask) -> Predicted:
    try:
        answer = pipeline([_read(path)], ask, shown(path)).answer
        return Predicted(path=path, answer=answer, lang=ask.lang)
    except Problem as problem:
        return Predicted(path=path, problem=problem)


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)  # no more, since /dev/zero has no end
    except (OSError, ValueError) as error:  # ValueError: a null byte in a list of names
        reason = error.strerror if isinstance(error, OSError) else None
        raise FileUnreadable(reason or str(error)) from error
    if len(content) > MAX_BYTES:
        raise BodyTooLarge(f"the file has more than {MAX_BYTES} bytes", limit=MAX_BYTES)
    return content
