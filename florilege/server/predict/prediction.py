"""Find many photos and answer them in order, on all cores or with Ray.

One failure never stops the others.

Ray sends the bundle to its workers, on one machine or many, so nobody has to copy it, and replacing
the bundle during the run changes no answer. The workers read the photos: paths must name the same
files everywhere.
"""

import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from florilege.cores import Workers, in_order
from florilege.errors import DataError, UsageError, first, reason_of
from florilege.files import open_written
from florilege.hooks import cluster
from florilege.models.bundle import Packed, unpacked_bundle
from florilege.models.images import ENDINGS, MAX_BYTES
from florilege.models.output_store import OutputStore, photo_id
from florilege.models.runtime import CUDA, RuntimeName
from florilege.models.session import FEATURES, Outputs, Session
from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.server.answers.plan import ClassLists, Plan
from florilege.server.answers.plot import Plot
from florilege.server.answers.query import IdentifyQuery, SurveyQuery
from florilege.server.predict.batch_settings import FOLDER, BatchSettings
from florilege.server.problems import Code, Problem
from florilege.server.schemas import Answer
from florilege.server.settings import MAX_IMAGES
from florilege.tables import READ_SUFFIXES, demand_columns, read_table
from florilege.terminal import progress

Group = tuple[Path, str] | None  # a folder or manifest, and the name of the plant there
PORTION: Final = 16
"""Observations whose photos a thread runs through the network before it draws the first set.

Decoding a picture evicts the code and data of everything else from the CPU caches. If each set were
drawn right after its photo, drawing it would take twice as long.
"""
PHOTO_FAILED: Final = "photo_failed"
"""Code of the warning that a photo of the plant cannot be used."""
BatchQuery = IdentifyQuery | SurveyQuery  # about observations, or about the tiles of each photo
Line = dict[str, Any]  # an answer as over HTTP, with its photos


@dataclass(frozen=True)
class Observation:
    """The photos of one plant, at least one."""

    photos: tuple[Path, ...]
    name: str | None = None  # its folder or the value of its column; None if ungrouped


def count_photos(observations: Iterable[Observation]) -> int:
    """The number of photos of all observations."""
    return sum(len(observation.photos) for observation in observations)


def display_path(path: Path) -> str:
    """A path as text for people and files; bytes that are not UTF-8 appear as ``\\xe9``."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def find_photos(
    words: Iterable[str], stdin: Iterable[str], group_by: str | None = None
) -> tuple[list[Observation], list[Path]]:
    """Expand files, folders (with all below), manifests and ``-`` (one path a line of ``stdin``).

    What ends in ``.csv``, ``.tsv`` or ``.parquet`` is a manifest: each row names a photo in the
    column ``path``, relative to the manifest's folder. Any other file that is named itself counts
    as a photo, whatever its extension: the bytes decide the type. ``group_by`` makes one
    observation of the photos in the same folder (the value ``folder``), or of the rows of a
    manifest with the same value in this column; a row with an empty cell is an observation of its
    own. Returns the observations in the order of their first photos, those of a folder sorted by
    path, whether the photos exist or not; and the files in folders without an image extension.
    """
    column = None if group_by == FOLDER else group_by
    photos: list[tuple[Path, Group]] = []
    skipped: list[Path] = []
    for path in _paths(words, stdin):
        if path.suffix.lower() in READ_SUFFIXES:
            photos.extend(_rows(path, column))
        elif column is not None:
            raise UsageError(
                f"--group-by {column} is a column of a manifest, but {display_path(path)} is not a "
                "manifest: give a CSV or Parquet file with this column, or group by folder"
            )
        # Not `Path.is_dir`, which raises for a name that is too long; reading it says so.
        elif os.path.isdir(path):  # noqa: PTH112
            pictures, others = _files_below(path)
            photos.extend((picture, None) for picture in pictures)
            skipped.extend(others)
        else:
            photos.append((path, None))
    if group_by == FOLDER:
        photos = [(path, (path.parent, display_path(path.parent))) for path, _ in photos]
    return _grouped(photos), skipped


def _grouped(photos: Iterable[tuple[Path, Group]]) -> list[Observation]:
    groups: dict[tuple[Path | int, str | None], list[Path]] = {}
    for number, (path, group) in enumerate(photos):
        # A photo without a group is alone, and its number is that of no other.
        groups.setdefault(group or (number, None), []).append(path)
    return [Observation(tuple(paths), name) for (_, name), paths in groups.items()]


def _rows(manifest: Path, column: str | None) -> Iterator[tuple[Path, Group]]:
    table = read_table(manifest)
    demand_columns(display_path(manifest), table, list(filter(None, ["path", column])))
    empty = [f"row {row}" for row, path in enumerate(table["path"], 1) if not path.strip()]
    if empty:
        raise DataError(f"{display_path(manifest)}: empty paths: {first(empty)}")
    values = [""] * len(table["path"]) if column is None else table[column]
    for path, value in zip(table["path"], values, strict=True):
        yield manifest.parent / path.strip(), (manifest, value.strip()) if value.strip() else None


def _paths(words: Iterable[str], stdin: Iterable[str]) -> Iterator[Path]:
    for word in words:
        if word == "-":
            # PowerShell begins a list with a byte order mark.
            lines = (line.removeprefix("\ufeff").rstrip("\r\n") for line in stdin)
            yield from map(Path, filter(str.strip, lines))
        else:
            yield Path(word)


def _files_below(folder: Path) -> tuple[list[Path], list[Path]]:
    """The files below, without hidden ones: those with an image extension, and the others."""
    pictures, others = list[Path](), list[Path]()
    for file in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in file.relative_to(folder).parts)
        if file.is_file() and not hidden:
            (pictures if file.suffix.lower() in ENDINGS else others).append(file)
    return pictures, others


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """The line of one observation, and what is written elsewhere."""

    line: Line
    failures: Sequence[str] = ()  # each photo that cannot be used, with the reason
    features: NDArray[np.float32] | None = None  # (photos, dimensions), NaN for one that failed


def predict_all(
    pipeline: Pipeline,
    observations: Sequence[Observation],
    query: BatchQuery,
    batch: BatchSettings,
    *,
    cache: Path | None = None,
) -> Generator[Prediction]:
    """Answer each observation as the server would, in the order given, showing progress.

    If an observation has more photos than one request may have, only the first ones are answered;
    features are given for all of them. ``cache`` is the folder of outputs by photo that is read and
    filled, except for tiles and with Ray.
    """
    features, total = batch.embeddings is not None, count_photos(observations)
    if batch.ray:  # on the same device as this process
        gpu = pipeline.session.provider == CUDA
        device = "cuda" if gpu else "cpu"
        packed, runtime = pipeline.bundle.packed(), pipeline.record.measured.runtime
        lists = pipeline.planner.lists
        open_work = partial(_open_work, packed, lists, device, runtime, query, features)
        workers = Workers(number=batch.ray_workers, threads=batch.threads, gpu=gpu)
        groups = [[observation] for observation in observations]
        portions = cluster("ray").spread(open_work, groups, workers)
    else:
        threads = batch.threads or pipeline.session.concurrency
        size = portion_size(len(observations), threads)
        parts = (observations[at : at + size] for at in range(0, len(observations), size))
        store = None
        if cache is not None and isinstance(query, IdentifyQuery):
            assert isinstance(pipeline.session, Session)  # only a server collects batches
            store = OutputStore.of_network(pipeline.session, cache, total)
        portions = in_order(_Work(pipeline, query, features, store), parts, threads=threads)
    with closing(portions), progress(total, "predicting") as advance:
        for prediction in chain.from_iterable(portions):
            yield prediction
            advance(len(prediction.line["paths"]))


def portion_size(total: int | None, threads: int) -> int:
    """The observations that a thread takes at once, of ``total``, None if nobody knows how many."""
    if total is None:
        return PORTION // 4  # they may be large pictures in memory, and some portions are ahead
    return min(PORTION, max(1, total // (8 * threads)))  # no thread idle at the end


def _open_work(
    packed: Packed,
    lists: ClassLists,
    device: str,
    runtime: RuntimeName,
    query: BatchQuery,
    features: bool,
) -> Callable[[Sequence[Observation]], list[Prediction]]:
    """Open a bundle in a worker, to answer as the process that sends it would."""
    with unpacked_bundle(packed) as folder:
        pipeline = open_pipeline(folder, device=device, runtime=runtime).with_lists(lists)
    return _Work(pipeline, query, features)


@dataclass(frozen=True)
class _Work:
    """Answers the observations of a portion."""

    pipeline: Pipeline
    query: BatchQuery
    features: bool  # whether predictions hold them
    store: OutputStore | None = None

    def __call__(self, observations: Sequence[Observation]) -> list[Prediction]:
        if isinstance(self.query, SurveyQuery):
            return [self._survey(self.query, observation) for observation in observations]
        new = dict[bytes, Outputs]()
        outputs = [self._run_network(observation, new) for observation in observations]
        if self.store is not None and new:
            with suppress(OSError):  # a store that cannot be written costs only time
                logits, features = Outputs.joined(new.values())
                rows = logits if features is None else {**logits, FEATURES: features}
                # Once a portion: each call locks the store and reads its index anew.
                self.store.add([*new], rows)
        pairs = zip(observations, outputs, strict=True)
        return [self._predict(observation, rows) for observation, rows in pairs]

    def _run_network(
        self, observation: Observation, new: dict[bytes, Outputs]
    ) -> list[Outputs | Problem]:
        """The outputs of each photo, or what is wrong with it; ``new`` gets those not in store."""
        outputs: list[Outputs | Problem] = []
        for path in observation.photos if self.features else observation.photos[:MAX_IMAGES]:
            try:
                outputs.append(self._outputs(_read(path), new))
            except Problem as problem:
                outputs.append(problem)
        return outputs

    def _outputs(self, content: bytes, new: dict[bytes, Outputs]) -> Outputs:
        if self.store is None:
            return self.pipeline.outputs(content, features=self.features)
        photo = photo_id(content)
        if (rows := self.store.find(photo)) is not None:
            features = rows.pop(FEATURES, None)
            return Outputs(rows, features)
        # Kept even if this run needs none: the next one may, or an evaluation.
        with_features = self.pipeline.session.dimensions is not None
        new[photo] = self.pipeline.outputs(content, features=with_features)
        return new[photo]

    @cached_property
    def _plan(self) -> Plan:
        query = self.query
        tile_or_photo = query.of_tile() if isinstance(query, SurveyQuery) else query
        return self.pipeline.planner.plan(tile_or_photo)

    def _predict(
        self, observation: Observation, outputs: Sequence[Outputs | Problem]
    ) -> Prediction:
        line = _line(observation)
        paths = line["paths"]
        problems = {at: one for at, one in enumerate(outputs) if isinstance(one, Problem)}
        failures = {at: f"{paths[at]}: {problem.detail}" for at, problem in problems.items()}
        usable = [one for one in outputs[:MAX_IMAGES] if not isinstance(one, Problem)]
        if usable:
            answer = self.pipeline.decide(usable, self._plan, paths[0]).answer
            line |= answer.model_dump(mode="json", by_alias=True)
            line["warnings"] += _warnings(failures, len(paths))
        else:
            line["error"] = _error(problems[0])
        features = self._features(outputs) if self.features else None
        return Prediction(line=line, failures=tuple(failures.values()), features=features)

    def _features(self, outputs: Sequence[Outputs | Problem]) -> NDArray[np.float32]:
        shape = (len(outputs), self.pipeline.session.dimensions or 0)
        rows = np.full(shape, np.nan, dtype=np.float32)
        for row, one in zip(rows, outputs, strict=True):
            if not isinstance(one, Problem) and one.features is not None:
                row[:] = one.features[0]
        return rows

    def _survey(self, query: SurveyQuery, observation: Observation) -> Prediction:
        line = _line(observation)
        try:
            plot = Plot.open(self.pipeline, _read(observation.photos[0]), query, self._plan)
            answers = [plot.answer_tile(box) for box in plot.boxes]
        except Problem as problem:
            line["error"] = _error(problem)
            return Prediction(line=line, failures=[f"{line['path']}: {problem.detail}"])
        answer = plot.answer(answers, line["path"])
        return Prediction(line=line | answer.model_dump(mode="json", by_alias=True))


def _line(observation: Observation) -> Line:
    """The line of an observation without an answer."""
    paths = [display_path(path) for path in observation.photos]
    line = {"path": paths[0], "observation": observation.name, "paths": paths}
    return {**line, **dict.fromkeys(Answer.model_fields), "error": None}


def _warnings(failures: Mapping[int, str], photos: int) -> list[dict[str, str]]:
    """Warnings about the photos of the plant that the answer does not use."""
    failed = [detail for at, detail in failures.items() if at < MAX_IMAGES]
    warnings = [{"code": PHOTO_FAILED, "detail": detail} for detail in failed]
    if photos > MAX_IMAGES:
        detail = f"the answer uses the first {MAX_IMAGES} of {photos} photos"
        warnings.append({"code": "photos_left_out", "detail": detail})
    return warnings


def _error(problem: Problem) -> dict[str, str]:
    return {"code": problem.code, "detail": problem.detail}


def _read(path: Path) -> bytes:
    try:
        with open_written(path) as file:
            content = file.read(MAX_BYTES + 1)  # bounded, since /dev/zero has no end
    except (OSError, ValueError) as error:  # ValueError: a null byte in a list of names
        raise Problem(Code.FILE_UNREADABLE, reason_of(error)) from error
    if len(content) > MAX_BYTES:
        detail = f"the file has more than {MAX_BYTES} bytes"
        raise Problem(Code.BODY_TOO_LARGE, detail, limit=MAX_BYTES)
    return content
