"""Answer many files in order, on all cores or with Ray; one failure never stops the others.

Ray sends the bundle to its workers, on one machine or many, so nobody has to copy it, and replacing
the bundle during the run changes no answer. The workers read the photos: paths must name the same
files everywhere.
"""

from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from florilege.cores import in_order
from florilege.models.bundle.bundle import Packed, unpacked_bundle
from florilege.models.images import MAX_BYTES
from florilege.models.runtime import CUDA, RuntimeName
from florilege.models.session import Outputs
from florilege.progress import progress
from florilege.ray_tasks import Workers, spread
from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.server.answers.query import LocalizedQuery
from florilege.server.answers.restriction import ClassLists
from florilege.server.predict.batch_settings import BatchSettings
from florilege.server.predict.photos import Observation, count_photos, display_path
from florilege.server.problems import Code, Problem
from florilege.server.schemas import Answer, Warned
from florilege.server.settings import MAX_IMAGES

PORTION: Final = 16
"""Observations whose photos a thread runs through the network before it draws the first set.

Decoding a picture evicts the code and data of the rest from the CPU caches: one by one, drawing a
set takes twice as long.
"""
PHOTO_FAILED: Final = "photo_failed"
"""Code of the warning that a photo of the plant cannot be used."""

Failures = Sequence[tuple[Path, Problem]]


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """One observation with its answer, or with the problem of its first photo."""

    observation: Observation
    answer: Answer | None = None
    problem: Problem | None = None
    failed: Failures = ()  # photos that cannot be used; the answer is made of the others
    features: NDArray[np.float32] | None = None  # (photos, dimensions), NaN for one that failed


def predict_all(
    pipeline: Pipeline,
    observations: Sequence[Observation],
    query: LocalizedQuery,
    *,
    threads: int | None = None,
    features: bool = False,
) -> Generator[Prediction]:
    """Answer each observation as the server would, in the order given, showing progress.

    If an observation has more photos than one request may have, only the first ones are answered;
    ``features`` are given for all of them.
    """
    threads = threads or pipeline.session.concurrency
    size = min(PORTION, max(1, len(observations) // (8 * threads)))  # no thread idle at the end
    portions = (observations[at : at + size] for at in range(0, len(observations), size))
    predicted = in_order(
        lambda part: _predict_some(pipeline, part, query, features), portions, threads=threads
    )
    with closing(predicted):
        yield from _with_progress((one for portion in predicted for one in portion), observations)


@dataclass(frozen=True, kw_only=True)
class _WorkerFactory:
    """All that a worker needs to answer as this process would."""

    bundle: Packed
    lists: ClassLists
    device: str
    runtime: RuntimeName
    query: LocalizedQuery
    features: bool

    def __call__(self) -> Callable[[Observation], Prediction]:
        with unpacked_bundle(self.bundle) as folder:
            pipeline = open_pipeline(folder, device=self.device, runtime=self.runtime)
            pipeline = replace(pipeline, lists=self.lists)
        return lambda item: _predict_some(pipeline, [item], self.query, self.features)[0]


def predict_on_ray(
    pipeline: Pipeline,
    observations: Sequence[Observation],
    query: LocalizedQuery,
    batch: BatchSettings,
    *,
    features: bool = False,
) -> Generator[Prediction]:
    """As `predict_all`, with workers that run the network on the same device as this process.

    Raises:
        UsageError: The extra `ray` is not installed, or there is no such cluster.
        FlorilegeError: The workers cannot continue.
    """
    gpu = pipeline.session.provider == CUDA
    factory = _WorkerFactory(
        bundle=pipeline.bundle.packed(),
        lists=pipeline.lists,
        device="cuda" if gpu else "cpu",
        runtime=pipeline.record.measured.runtime,
        query=query,
        features=features,
    )
    workers = Workers(number=batch.ray_workers, threads=batch.threads, gpu=gpu)
    yield from _with_progress(spread(factory, observations, workers), observations)


def _with_progress(
    predictions: Generator[Prediction], observations: Sequence[Observation]
) -> Generator[Prediction]:
    """The same predictions, showing progress."""
    with closing(predictions), progress(count_photos(observations), "predicting") as advance:
        for prediction in predictions:
            yield prediction
            advance(len(prediction.observation.photos))


def _predict_some(
    pipeline: Pipeline, observations: Sequence[Observation], query: LocalizedQuery, features: bool
) -> list[Prediction]:
    """Answer some observations; the problem of a photo is part of its prediction."""
    outputs = [_run_network(pipeline, observation, features) for observation in observations]
    return [
        _predict(pipeline, observation, query, features, *each)
        for observation, each in zip(observations, outputs, strict=True)
    ]


def _run_network(
    pipeline: Pipeline, observation: Observation, features: bool
) -> tuple[list[Outputs | None], Failures]:
    """The outputs for each photo, None for one that fails; and the failures."""
    outputs: list[Outputs | None] = []
    failed: list[tuple[Path, Problem]] = []
    for path in observation.photos if features else observation.photos[:MAX_IMAGES]:
        try:
            outputs.append(pipeline.outputs(_read(path), features=features))
        except Problem as problem:
            failed.append((path, problem))
            outputs.append(None)
    return outputs, failed


def _predict(
    pipeline: Pipeline,
    observation: Observation,
    query: LocalizedQuery,
    features: bool,
    outputs: Sequence[Outputs | None],
    failed: Failures,
) -> Prediction:
    usable = [each for each in outputs[:MAX_IMAGES] if each is not None]
    answer = None
    if usable:
        answer = pipeline.decide(usable, query, display_path(observation.photos[0])).answer
        answer = _with_warnings(answer, observation, failed)
    return Prediction(
        observation=observation,
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


def _with_warnings(answer: Answer, observation: Observation, failed: Failures) -> Answer:
    """Add warnings about the photos of the plant that the answer does not use."""
    warnings = [
        Warned(code=PHOTO_FAILED, detail=f"{display_path(path)}: {problem.detail}")
        for path, problem in failed
        if path in observation.photos[:MAX_IMAGES]
    ]
    if len(observation.photos) > MAX_IMAGES:
        detail = f"the answer uses the first {MAX_IMAGES} of {len(observation.photos)} photos"
        warnings.append(Warned(code="photos_left_out", detail=detail))
    if not warnings:
        return answer
    return answer.model_copy(update={"warnings": [*answer.warnings, *warnings]})


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)  # bounded, since /dev/zero has no end
    except (OSError, ValueError) as error:  # ValueError: a null byte in a list of names
        reason = error.strerror if isinstance(error, OSError) else None
        raise Problem(Code.FILE_UNREADABLE, reason or str(error)) from error
    if len(content) > MAX_BYTES:
        raise Problem(
            Code.BODY_TOO_LARGE, f"the file has more than {MAX_BYTES} bytes", limit=MAX_BYTES
        )
    return content
