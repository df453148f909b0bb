"""Answering many files: in order, on all cores, one failure never stops the others."""

from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from florilege.cores import in_order
from florilege.models.images import MAX_BYTES
from florilege.models.session import Outputs
from florilege.progress import progress
from florilege.server.answers.pipeline import Pipeline
from florilege.server.answers.query import LocalizedQuery
from florilege.server.predict.photos import Observation, display_path
from florilege.server.problems import BodyTooLarge, Problem
from florilege.server.schemas import Answer, Warned
from florilege.server.settings import MAX_IMAGES

PORTION: Final = 16
"""Observations of which a thread looks at all photos before it decides the first set.

The memory of a picture drives code and data of the rest out of the processor's caches: one by one,
deciding a set takes twice as long.
"""
PHOTO_FAILED: Final = "photo_failed"
"""Code of the warning that a photo of the plant cannot be used."""

Failures = Sequence[tuple[Path, Problem]]


class _FileUnreadable(Problem):
    """A file that cannot be opened; only `predict` meets it."""

    status, code, title = 422, "file_unreadable", "The file cannot be read"


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One observation with its answer, or with what was wrong with its first photo.

    Attributes:
        failed: Photos that cannot be used; the answer is made of the others.
        features: Of each photo if asked for, ``(photos, dimensions)``, NaN for one that failed.
    """

    observation: Observation
    answer: Answer | None = None
    problem: Problem | None = None
    failed: Failures = ()
    features: NDArray[np.float32] | None = None


def predict_all(
    pipeline: Pipeline,
    observations: Sequence[Observation],
    query: LocalizedQuery,
    *,
    threads: int | None = None,
    features: bool = False,
) -> Generator[Prediction]:
    """Answer each observation as the server would, in the order given, showing progress.

    Of an observation with more photos than one request may have, the first ones are answered;
    ``features`` are given of all of them.
    """
    threads = threads or pipeline.session.concurrency
    size = min(PORTION, max(1, len(observations) // (8 * threads)))  # no thread idle at the end
    portions = (observations[at : at + size] for at in range(0, len(observations), size))
    predicted = in_order(
        lambda some: predict_some(pipeline, some, query, features), portions, threads=threads
    )
    with closing(predicted):
        yield from with_progress((one for portion in predicted for one in portion), observations)


def with_progress(
    predictions: Generator[Prediction], observations: Sequence[Observation]
) -> Generator[Prediction]:
    """The same, showing progress."""
    total = sum(len(one.photos) for one in observations)
    with closing(predictions), progress(total, "predicting") as advance:
        for one in predictions:
            yield one
            advance(len(one.observation.photos))


def predict_some(
    pipeline: Pipeline, observations: Sequence[Observation], query: LocalizedQuery, features: bool
) -> list[Prediction]:
    """Answer some observations; what is wrong with a photo is part of its answer."""
    outputs = [_run_network(pipeline, one, features) for one in observations]
    return [
        _predict(pipeline, one, query, features, *each)
        for one, each in zip(observations, outputs, strict=True)
    ]


def _run_network(
    pipeline: Pipeline, one: Observation, features: bool
) -> tuple[list[Outputs | None], Failures]:
    """The outputs for each photo, None for those that fail; and these."""
    outputs: list[Outputs | None] = []
    failed: list[tuple[Path, Problem]] = []
    for path in one.photos if features else one.photos[:MAX_IMAGES]:
        try:
            outputs.append(pipeline.outputs(_read(path), features=features))
        except Problem as problem:
            failed.append((path, problem))
            outputs.append(None)
    return outputs, failed


def _predict(
    pipeline: Pipeline,
    one: Observation,
    query: LocalizedQuery,
    features: bool,
    outputs: Sequence[Outputs | None],
    failed: Failures,
) -> Prediction:
    usable = [each for each in outputs[:MAX_IMAGES] if each is not None]
    answer = None
    if usable:
        answer = pipeline.decide(usable, query, display_path(one.photos[0])).answer
        answer = _with_warnings(answer, one, failed)
    return Prediction(
        observation=one,
        answer=answer,
        problem=None if usable else failed[0][1],
        failed=failed,
        features=_features(pipeline, outputs) if features else None,
    )


def _features(pipeline: Pipeline, outputs: Sequence[Outputs | None]) -> NDArray[np.float32]:
    rows = np.full((len(outputs), pipeline.session.dimensions or 0), np.nan, dtype=np.float32)
    for row, each in zip(rows, outputs, strict=True):
        if each is not None and each.features is not None:
            row[:] = each.features[0]
    return rows


def _with_warnings(answer: Answer, one: Observation, failed: Failures) -> Answer:
    """The same, saying which photos of the plant the answer does not rest on."""
    warnings = [
        Warned(code=PHOTO_FAILED, detail=f"{display_path(path)}: {problem.detail}")
        for path, problem in failed
        if path in one.photos[:MAX_IMAGES]
    ]
    if len(one.photos) > MAX_IMAGES:
        detail = f"the answer is made of the first {MAX_IMAGES} of {len(one.photos)} photos"
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
        raise _FileUnreadable(reason or str(error)) from error
    if len(content) > MAX_BYTES:
        raise BodyTooLarge(f"the file has more than {MAX_BYTES} bytes", limit=MAX_BYTES)
    return content
