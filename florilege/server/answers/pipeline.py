"""The whole pipeline of one request, without HTTP: photos in, prediction set out.

On a GPU the network runs on batches of the photos that are ready, of any requests.
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL.Image import Image

from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import open_occurrences, open_reference, read_record
from florilege.calibration.reference import Reference
from florilege.cores import cores
from florilege.errors import FlorilegeError
from florilege.models import images
from florilege.models.bundle import MODEL, Bundle, open_bundle
from florilege.models.classes import ClassTable
from florilege.models.images import Header, load
from florilege.models.regions import read_lists
from florilege.models.runtime import CPU, CUDA, RuntimeName, open_graph
from florilege.models.session import FixedBatch, Floats, Outputs, Session
from florilege.server.answers.answer import answer
from florilege.server.answers.class_list import TaxonTable
from florilege.server.answers.plan import ClassLists, Plan, Planner
from florilege.server.answers.query import IdentifyQuery
from florilege.server.bounds import PixelBudget, pixels_to_hold
from florilege.server.problems import Code, Problem
from florilege.server.schemas import Answer, Model

log = logging.getLogger("florilege.server")

StageTimes = defaultdict[str, float]  # seconds by stage of one request
_Recall = Callable[[bytes, Callable[[], Outputs]], Outputs]
"""Returns the outputs for a photo; calls the function if they are unknown."""
_PROBLEMS = {
    images.OversizedImage: Code.IMAGE_TOO_LARGE,
    images.UnsupportedImage: Code.UNSUPPORTED_IMAGE_TYPE,
    images.DamagedImage: Code.IMAGE_UNREADABLE,
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One answered request, with what its answer is based on."""

    answer: Answer
    inside: NDArray[np.bool_]  # classes in its set, also beyond max_results; (classes,)
    logits: NDArray[np.float32]  # of the record's head, (photos, classes), for any query
    classes: ClassTable  # of the outputs
    restricted: bool  # whether only some classes were scored


@dataclass(frozen=True, kw_only=True)
class Pipeline:
    """A bundle ready to answer. Any number of threads may call it at once."""

    bundle: Bundle
    planner: Planner  # of what queries ask of the bundle
    session: "Session | _BatchingSession"
    model: Model
    taxa: TaxonTable
    reference: Reference | None = None  # of features, if the record's rejection needs them
    max_pixels: int = images.MAX_PIXELS  # of a photo
    budget: PixelBudget = field(default_factory=PixelBudget)  # limits what is decoded at once

    def __call__(self, photos: Sequence[bytes], query: IdentifyQuery, answer_id: str) -> Outcome:
        """The prediction set of one observation, from its encoded pictures, at least one."""
        plan = self.planner.plan(query)
        return self.decide(self.all_outputs(photos), plan, answer_id)

    @property
    def record(self) -> CalibrationRecord:
        """The calibration that is served."""
        return self.planner.record

    def all_outputs(
        self,
        photos: Sequence[bytes],
        *,
        features: bool = False,
        stages: StageTimes | None = None,
        check: Callable[[], None] = lambda: None,
        recall: _Recall = lambda _, run: run(),
    ) -> list[Outputs]:
        """The `outputs` of each picture.

        ``stages`` gets the time of each stage. ``check`` is called before each photo and while one
        waits to be decoded; it may raise to stop the work. ``recall`` may know the outputs already.
        """
        rows = []
        for number, photo in enumerate(photos, start=1):
            check()
            which = number if len(photos) > 1 else None
            run = partial(self.outputs, photo, which, features=features, stages=stages, check=check)
            rows.append(recall(photo, run))
        return rows

    def with_lists(self, lists: ClassLists) -> "Pipeline":
        """The same, for queries that may name these lists alone."""
        return replace(self, planner=replace(self.planner, lists=lists))

    def close(self) -> None:
        """Stop its threads. No call may be running."""
        if isinstance(self.session, _BatchingSession):
            self.session.close()

    def decide(
        self,
        rows: Sequence[Outputs],
        plan: Plan,
        answer_id: str,
        *,
        stages: StageTimes | None = None,
    ) -> Outcome:
        """The prediction set of one observation, from the `outputs` of its pictures.

        If a reload came since the query was planned, it is planned again.
        """
        if plan.planner is not self.planner:
            plan = self.planner.plan(plan.query)
        started, outputs = perf_counter(), Outputs.joined(rows)
        result, inside = answer(
            outputs,
            plan,
            self.reference,
            taxa=self.taxa,
            model=self.model,
            answer_id=answer_id,
        )
        if stages is not None:
            stages["decide"] += perf_counter() - started
        return Outcome(
            answer=result,
            inside=inside,
            logits=outputs.logits[self.record.head],
            classes=self.bundle.classes,
            restricted=plan.restriction is not None,
        )

    def outputs(
        self,
        photo: bytes | Image,
        number: int | None = None,
        *,
        features: bool = False,
        stages: StageTimes | None = None,
        check: Callable[[], None] = lambda: None,
    ) -> Outputs:
        """Run the network on one picture, encoded or decoded.

        The outputs hold features if the record needs them or ``features`` is set. Raises a
        `Problem` if the picture cannot be used; ``number`` is its position among several.
        """
        started, size, most = perf_counter(), 0, self.max_pixels
        try:
            header = images.read_header(photo) if isinstance(photo, bytes) else photo
            if isinstance(header, images.Header):
                least = self.bundle.preprocess.reduced_side
                size = pixels_to_hold(header, least=least, max_pixels=most)
            features = features or self.reference is not None
            with self.budget.hold(size, check):
                outputs, forward_s = self.session.infer(header, max_pixels=most, features=features)
        except images.ImageError as error:
            raise problem_of(error, number) from error
        if stages is not None:
            stages["decode"] += perf_counter() - started - forward_s
            stages["forward"] += forward_s
        return outputs


def problem_of(error: images.ImageError, number: int | None = None) -> Problem:
    """The `Problem` of a picture that cannot be used; ``number`` is its position among several."""
    detail = str(error) if number is None else f"photo {number}: {error}"
    limit = error.limit if isinstance(error, images.OversizedImage) else None
    return Problem(_PROBLEMS[type(error)], detail, limit=limit)


def open_pipeline(
    path: Path,
    *,
    device: str = "auto",
    runtime: RuntimeName | None = None,
    max_pixels: int = images.MAX_PIXELS,
    budget: PixelBudget | None = None,
    lists: Sequence[str] = (),
    batches: bool = False,
) -> Pipeline:
    """Open and verify a bundle, and load its network.

    ``runtime`` is by default the one that the bundle was last calibrated for; ``budget`` limits
    what is decoded at once, and may be that of other pipelines. ``lists`` are
    arguments of `read_lists`. With ``batches`` a GPU runs the network on batches of photos. Raises
    `BundleError` if it is damaged or was never calibrated, `DataError` or `UsageError` if a list or
    the runtime cannot be used.
    """
    bundle = open_bundle(path)
    record = read_record(bundle, runtime)
    if record.measured.decoder != images.DECODER_VERSION:
        log.warning(
            "%s was calibrated with another decoder, which treated colour profiles in another way: "
            "its figures hold less for photos that have one; run `florilege calibrate %s --data "
            "DATA`",
            *(path, path),
        )
    region_lists = read_lists(lists, bundle.classes)
    session = Session(bundle, device=device, runtime=record.measured.served_by)
    reference = open_reference(bundle, record, session.dimensions)
    return Pipeline(
        bundle=bundle,
        planner=Planner(
            record=record,
            lists=ClassLists.of(bundle.classes, record).adding(region_lists),
            occurrences=open_occurrences(bundle, record),
        ),
        session=_in_batches(session) if batches and session.provider == CUDA else session,
        taxa=TaxonTable(bundle.classes),
        reference=reference,
        model=Model.of(
            bundle.manifest, bundle_sha256=bundle.sha256, calibration_id=record.calibration_id
        ),
        max_pixels=max_pixels,
        budget=budget or PixelBudget(),
    )


BATCH_SIZES: Final = (1, 2, 4, 8, 16, 32)  # of batches; a batch is padded to the next size
LARGEST_BATCH: Final = BATCH_SIZES[-1]
_TOLERANCE: Final = 1e-3
"""Maximum difference from the logits of single photos, as a share of the largest."""


@dataclass(frozen=True)
class _DecodedPhoto:
    """A decoded photo, and the future of its row of each output of the graph."""

    pixels: NDArray[np.uint8]
    row: Future[dict[str, Floats]] = field(default_factory=Future)


class _BatchingSession:
    """Runs the network on batches of the photos that are ready; any thread may call it.

    Photos that are decoded while a batch runs form the next one. So no photo waits for a batch to
    fill, and batches grow with the load. On a CPU photos are not batched: batches gain at most 8 %
    there, and one slow photo would delay the others.

    If ``replayed``, each batch size is captured once and replayed, as a CUDA graph. Opening fails
    if the runtime or the GPU fails, or if the logits of batches differ from those of single photos.
    """

    def __init__(self, session: Session, *, replayed: bool) -> None:
        self.session, self.provider = session, session.provider
        self.dimensions, self.concurrency = session.dimensions, cores() + LARGEST_BATCH
        self._decoding = ThreadPoolExecutor(cores(), "decode")  # in the order of arrival
        self._decoded = SimpleQueue[_DecodedPhoto]()
        # One thread opens and runs it all: a captured graph belongs to the thread that captured it.
        self._network = ThreadPoolExecutor(1, "network")
        self._batches = self._network.submit(_open_batches, session, replayed).result()

    def infer(
        self, photo: Header | Image, *, max_pixels: int, features: bool = False
    ) -> tuple[Outputs, float]:
        """As `Session.infer`; the seconds count until the photo's batch is done."""
        preprocess = self.session.bundle.preprocess
        pixels = self._decoding.submit(load, photo, preprocess, max_pixels=max_pixels).result()
        started, waiting = perf_counter(), _DecodedPhoto(pixels)
        self._decoded.put(waiting)
        self._network.submit(self._run_batch)
        try:
            row = waiting.row.result()
        finally:
            # It may hold an exception, whose traceback holds this frame: a cycle that keeps the
            # picture.
            del waiting
        return self.session.check_outputs(row, 1, features=features), perf_counter() - started

    def close(self) -> None:
        """Stop its threads. No call may be running."""
        self._decoding.shutdown()
        self._network.shutdown()

    def _run_batch(self) -> None:
        """Run the photos that are ready, if an earlier batch has left any."""
        # No other thread takes any, so as many are here as `qsize` says.
        group = [self._decoded.get() for _ in range(min(self._decoded.qsize(), LARGEST_BATCH))]
        if not group:
            return
        try:
            smallest = next(batch for batch in self._batches if batch.size >= len(group))
            outputs = smallest.run([waiting.pixels for waiting in group])
        except Exception as error:  # whatever fails, the next batch may succeed
            _fail(group, error)
        else:
            for number, waiting in enumerate(group):
                row = {name: rows[number : number + 1] for name, rows in outputs.items()}
                waiting.row.set_result(row)
        finally:
            # The traceback of an error holds this frame, and with it the pictures.
            group.clear()


def _fail(group: list[_DecodedPhoto], error: Exception) -> None:
    """Fail a group outside `_run_batch`, whose variables the traceback keeps alive."""
    for waiting in group:
        waiting.row.set_exception(error)


def _in_batches(session: Session) -> Session | _BatchingSession:
    """A session that runs batches, replayed if possible; ``session`` itself if batches fail."""
    for replayed in (True, False):
        try:
            return _BatchingSession(session, replayed=replayed)
        except Exception as error:  # the runtime's own, of no common class
            kind = "replayed batches" if replayed else "batches"
            log.warning("%s cannot be used on %s: %s", kind, session.provider, error)
    return session


def _open_batches(session: Session, replayed: bool) -> list[FixedBatch]:
    """Open a batch of each size, and check that it agrees with single photos."""
    graph = open_graph(
        session.bundle.read(MODEL),
        providers=[*dict.fromkeys((session.provider, CPU))],
        replayed=replayed,
    )
    batches = [FixedBatch(session, graph, size) for size in BATCH_SIZES]
    for batch in batches:
        for seed in range(2):  # the second is a replay
            _compare(session, batch, seed)
    return batches


def _compare(session: Session, batch: FixedBatch, seed: int) -> None:
    side, random = session.bundle.preprocess.image_size, np.random.default_rng(seed)
    pictures = random.integers(0, 256, (batch.size, side, side, 3), dtype=np.uint8)
    outputs = batch.run(list(pictures))
    singles = [session.logits(picture[np.newaxis]) for picture in pictures]
    for head, output in session.heads.items():
        expected = np.concatenate([single[head] for single in singles])
        difference = float(np.abs(outputs[output] - expected).max())
        # `not <=`, which NaN fails too.
        if not difference <= _TOLERANCE * float(np.abs(expected).max()):
            raise FlorilegeError(
                f"batches of {batch.size} give logits of head {head} up to {difference:g} away "
                "from those of single photos"
            )
