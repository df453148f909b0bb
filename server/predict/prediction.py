"""Answering many files: in order, on all cores, one failure never stops the others."""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from florilege.cores import cores, in_order
from florilege.errors import UsageError
from florilege.models.images import MAX_BYTES
from florilege.models.session import Outputs
from florilege.progress import progress
from florilege.server.answers.answer import operating_point
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import LocalizedQuery
from florilege.server.predict.photos import Observation, shown
from florilege.server.problems import BodyTooLarge, Problem
from florilege.server.schemas import Answer, Warned
from florilege.server.settings import Settings

PORTION: Final = 16
"""Observations of which a thread looks at all photos before it decides the first set.

The memory of a picture drives code and data of the rest out of the processor's caches: one by one,
deciding a set takes twice as long.
"""
_MOST: int = Settings.model_fields["max_images"].default  # of one observation, as over HTTP


class FileUnreadable(Problem):
    """A file that cannot be opened; only `predict` meets it."""

    status, code, title = 422, "file_unreadable", "The file cannot be read"


@dataclass(frozen=True, kw_only=True)
class Predicted:
    """One observation with its answer, or with what was wrong with its first photo.

    Attributes:
        failed: Photos that cannot be used; the answer is made of the others.
        features: Of each photo if asked for, ``(photos, dimensions)``, NaN for one that failed.
    """

    observation: Observation
    answer: Answer | None = None
    problem: Problem | None = None
    lang: str | None = None  # that of the common names, where one was asked for
    failed: Sequence[tuple[Path, Problem]] = ()
    features: NDArray[np.float32] | None = None


def check_calibrated(pipeline: Pipeline, query: LocalizedQuery) -> None:
    """Raise a ``UsageError`` where ``query`` contradicts itself or has no threshold."""
    try:
        operating_point(pipeline.record, query, 1, pipeline.lists.restriction(query))
    except Problem as error:
        allowed = f"; possible are {_short(error.allowed)}" if error.allowed else ""
        raise UsageError(f"{error.detail}{allowed}") from error


def _short(values: list[Any]) -> str:
    listed = [value if isinstance(value, str) else f"{value:g}" for value in values]
    return ", ".join(listed if len(listed) <= 12 else [*listed[:5], "...", *listed[-3:]])


def predict_all(
    pipeline: Pipeline,
    observations: Sequence[Observation],
    query: LocalizedQuery,
    *,
    threads: int | None = None,
    features: bool = False,
) -> Generator[Predicted]:
    """Answer each observation as the server would, in the order given, showing progress.

    Of an observation with more photos than one request may have, the first ones are answered;
    ``features`` are given of all of them.
    """
    threads = threads or cores()
    size = min(PORTION, max(1, len(observations) // (8 * threads)))  # no thread idle at the end
    portions = (observations[at : at + size] for at in range(0, len(observations), size))
    found = in_order(
        lambda some: predict_some(pipeline, some, query, features), portions, threads=threads
    )
    with closing(found):
        yield from watched((one for portion in found for one in portion), observations)


def watched(
    answers: Generator[Predicted], observations: Sequence[Observation]
) -> Generator[Predicted]:
    """The same, showing progress."""
    total = sum(len(one.photos) for one in observations)
    with closing(answers), progress(total, "predicting") as advance:
        for answer in answers:
            yield answer
            advance(len(answer.observation.photos))


def predict_some(
    pipeline: Pipeline, some: Sequence[Observation], query: LocalizedQuery, features: bool
) -> list[Predicted]:
    """Answer some observations; what is wrong with a photo is part of its answer."""
    seen = [_look(pipeline, one, features) for one in some]
    return [
        _answer(pipeline, one, query, features, *each) for one, each in zip(some, seen, strict=True)
    ]


def _look(
    pipeline: Pipeline, one: Observation, features: bool
) -> tuple[list[Outputs | None], list[tuple[Path, Problem]]]:
    """What the network says about each photo, None for those that fail; and these."""
    seen: list[Outputs | None] = []
    failed: list[tuple[Path, Problem]] = []
    for path in one.photos if features else one.photos[:_MOST]:
        try:
            seen.append(pipeline.outputs(_read(path), features=features))
        except Problem as problem:
            failed.append((path, problem))
            seen.append(None)
    return seen, failed


def _answer(
    pipeline: Pipeline,
    one: Observation,
    query: LocalizedQuery,
    features: bool,
    seen: Sequence[Outputs | None],
    failed: Sequence[tuple[Path, Problem]],
) -> Predicted:
    usable = [outputs for outputs in seen[:_MOST] if outputs is not None]
    found = Predicted(
        observation=one,
        failed=failed,
        lang=query.lang,
        features=_features(pipeline, seen) if features else None,
    )
    if not usable:
        return replace(found, problem=failed[0][1])
    answer = pipeline.decide(usable, query, shown(one.photos[0])).answer
    return replace(found, answer=_warned(answer, one, failed))


def _features(pipeline: Pipeline, seen: Sequence[Outputs | None]) -> NDArray[np.float32]:
    rows = np.full((len(seen), pipeline.session.dimensions or 0), np.nan, dtype=np.float32)
    for row, outputs in zip(rows, seen, strict=True):
        if outputs is not None and outputs.features is not None:
            row[:] = outputs.features[0]
    return rows


def _warned(answer: Answer, one: Observation, failed: Sequence[tuple[Path, Problem]]) -> Answer:
    """The same, saying which photos of the plant the answer does not rest on."""
    warnings = [
        Warned(code="photo_failed", detail=f"{shown(path)}: {problem.detail}")
        for path, problem in failed
        if path in one.photos[:_MOST]
    ]
    if len(one.photos) > _MOST:
        detail = f"the answer is made of the first {_MOST} of {len(one.photos)} photos"
        warnings.append(Warned(code="photos_left_out", detail=detail))
    if not warnings:
        return answer
    return answer.model_copy(update={"warnings": [*answer.warnings, *warnings]})


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
