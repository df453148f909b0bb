"""Feedback from people: which species a photo really shows, and photos they consent to keep.

It records whether the confirmed class was in the set, so that accuracy can be measured after
deployment (`florilege.calibration.monitoring.audit`). Photos wait in memory for consent; without
it they are never written.
"""

import json
import logging
import sqlite3
from collections.abc import Sequence, Set
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from florilege.errors import UsageError
from florilege.feedback_store import FILE, NOT_AN_ORGANISM, NOT_LISTED, FeedbackStore, Row
from florilege.models.classes import ClassTable
from florilege.models.images import ImageError, plain_jpeg, read_header
from florilege.processes import WorkerGroup
from florilege.processes.shared_state import Peers
from florilege.server.answers.pipeline import Outcome, Pipeline
from florilege.server.bounds import BoundedThread, RecentItems, pixels_to_hold
from florilege.server.problems import Code, Problem
from florilege.server.prometheus import Metrics
from florilege.server.schemas import RequestModel, ResponseModel
from florilege.server.settings import Settings, writable_folder

log = logging.getLogger("florilege.server")

_SPECIAL_CLASSES = (NOT_LISTED, NOT_AN_ORGANISM)  # accepted instead of the id of a class
QUERY = ("images", "rule", "k", "coverage", "guarantee", "list")  # the fields that are stored
MAX_ANSWERS = 10_000
MAX_WAITING = 16  # two seconds each if another process locks the store
_BUSY_RETRY_S = 10  # feedback may wait; a photo's client is asked to come back in a second
MAX_SIDE = 2048  # pixels of the longer side of a photo: more than any of our networks uses
QUALITY = 90


class FeedbackBody(RequestModel):
    """What a photo really shows, according to a person."""

    request_id: str = Field(
        min_length=1, max_length=128, description="The `id` of the answer this is about."
    )
    class_id: str = Field(
        min_length=1,
        max_length=500,
        description="Id of the right class, or `not_listed` (a species that is not in the set and "
        "that cannot be named here), or `not_an_organism` (the photo shows none).",
    )
    note: str | None = Field(None, max_length=500, description="A remark.")
    consent: bool = Field(
        False,
        strict=True,
        description="Whether the person agrees that the photos of the answer are kept to improve "
        "the model, and gives them under the `feedback_licence` of `/v1/model`, CC-BY-4.0 unless "
        "the operator chose another. Without consent no photo is kept; `feedback_photos` of "
        "`/v1/model` tells whether this server keeps any.",
    )


class FeedbackReceipt(ResponseModel):
    """Feedback that is stored."""

    request_id: str
    in_set: bool | None = Field(
        description="Whether the class was in the set of the answer; null for no organism."
    )
    photos: int = Field(
        description="How many photos of the answer are kept: with `consent` all of them, if the "
        "server keeps photos and still has these in memory, else none."
    )


@dataclass(frozen=True)
class _RecentAnswer:
    """What feedback needs of one answer."""

    row: Row  # for the store, without the set
    classes: ClassTable
    bits: NDArray[np.uint8]  # one per class, set for members: small even with many classes

    @property
    def full_row(self) -> Row:
        """For the store, with the ids of the classes in the set, in the order of the model."""
        members = [self.classes.ids[index] for index in np.flatnonzero(np.unpackbits(self.bits))]
        return {**self.row, "members": json.dumps(members)}


class _Recalled(NamedTuple):
    """What a worker remembers of an answer, for the one that was asked."""

    row: Row  # for the store
    class_ids: Set[str]  # of the classes of its model
    photos: Sequence[bytes] | None  # None: dropped, or never held


class Feedback:
    """Takes feedback on recent answers and on those in the store; run `take` in ``thread``.

    The workers of a ``group`` share the limits of what is remembered, and ask each other for the
    answers that they have given.
    """

    def __init__(
        self,
        store: FeedbackStore,
        settings: Settings,
        metrics: Metrics,
        group: WorkerGroup | None = None,
    ) -> None:
        self.store, self.settings = store, settings
        self.thread = BoundedThread(  # so that uploads never wait for a disk
            "feedback",
            limit=MAX_WAITING,
            timeout_s=settings.queue_timeout_s,
            refusal=Code.FEEDBACK_NOT_STORED,
            retry_after=_BUSY_RETRY_S,
        )
        workers = 1 if group is None else group.count
        self.answers: RecentItems[_RecentAnswer] = RecentItems(MAX_ANSWERS // workers)
        self.photos: RecentItems[Sequence[bytes]] = RecentItems(
            settings.feedback_photos_held_bytes // workers, lambda photos: sum(map(len, photos))
        )
        self._peers = None if group is None else Peers(group, self._recall)
        self._counted, self._photos_counted = metrics.feedback, metrics.feedback_photos

    @classmethod
    def open(
        cls, settings: Settings, metrics: Metrics, group: WorkerGroup | None = None
    ) -> "Feedback | None":
        """Open the feedback store; None without one."""
        if settings.feedback_store is None:
            return None
        folder = writable_folder(settings.feedback_store, "--feedback-store")
        try:
            store = FeedbackStore(folder, max_bytes=settings.feedback_max_bytes)
        except (OSError, sqlite3.Error) as error:
            problem = f"{folder / FILE} cannot be opened: {error}"
            raise UsageError(f"--feedback-store: {problem}") from error
        return cls(store, settings, metrics, group)

    def remember(self, outcome: Outcome, photos: Sequence[bytes], key: str | None) -> None:
        """Remember an answer to a key, and hold its photos if people can consent to keep them."""
        answer = outcome.answer
        if self.settings.feedback_photos:
            self.photos.add(answer.id, photos)
        row = {
            "id": answer.id,
            "key": key or "",
            "bundle_sha256": answer.model.bundle_sha256,
            "calibration_id": answer.model.calibration_id,
            **{name: getattr(answer.query, name) for name in QUERY},
            "restricted": outcome.restricted,
            "verdict": answer.rejection.verdict,
        }
        bits = np.packbits(outcome.inside)
        self.answers.add(answer.id, _RecentAnswer(row, outcome.classes, bits))

    def take(
        self,
        body: FeedbackBody,
        *,
        key: str | None,
        idempotency_key: str | None,
        pipeline: Pipeline,
    ) -> FeedbackReceipt:
        """Store feedback, only once for the same Idempotency-Key of the same API key.

        Raises a `Problem` if the answer or the class is unknown, the Idempotency-Key came with
        other feedback before, the store is full, or the disk failed.
        """
        try:
            try:
                return self._take(body, key or "", idempotency_key, pipeline)
            # Another worker has stored the same meanwhile: this time it is found.
            except sqlite3.IntegrityError:
                return self._take(body, key or "", idempotency_key, pipeline)
        except sqlite3.Error as error:
            self._counted.labels("failed").inc()
            log.error("feedback could not be stored: %s", error)
            detail = "the feedback could not be stored; try again later"
            raise Problem(Code.FEEDBACK_NOT_STORED, detail, retry_after=60) from error

    def close(self) -> None:
        self.thread.close()
        if self._peers is not None:
            self._peers.close()
        self.store.close()

    def _take(
        self, body: FeedbackBody, key: str, idempotency_key: str | None, pipeline: Pipeline
    ) -> FeedbackReceipt:
        before = self.store.repeated(key, idempotency_key)
        if before is None:
            return self._store(body, key, idempotency_key, pipeline)
        stored_body = tuple(before[name] for name in ("answer_id", "class_id", "note", "consent"))
        if stored_body != (body.request_id, body.class_id, body.note, body.consent):
            detail = "this Idempotency-Key came with other feedback before"
            raise Problem(Code.IDEMPOTENCY_KEY_REUSED, detail)
        self._counted.labels("repeated").inc()
        return _receipt(before)

    def _store(
        self, body: FeedbackBody, key: str, idempotency_key: str | None, pipeline: Pipeline
    ) -> FeedbackReceipt:
        answer_id, class_id = body.request_id, body.class_id
        recalled = self._recall_of_all(answer_id)
        answer, members = self._answer(body, key, pipeline, recalled)
        stored_photos = self.store.count_photos(answer_id)
        pictures = None if recalled is None else recalled.photos
        photos, outcome = self._photos(body, stored_photos, pictures, pipeline)
        row = {
            "answer_id": answer_id,
            "key": key,
            "idempotency_key": idempotency_key,
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "class_id": class_id,
            "in_set": None if class_id == NOT_AN_ORGANISM else class_id in members,
            "note": body.note,
            "consent": body.consent,
            "licence": self.settings.feedback_licence if body.consent else None,
            "photos": stored_photos + len(photos) if body.consent else 0,
        }
        self.store.add(answer, row, photos)
        if outcome is not None:
            self._photos_counted.labels(outcome).inc()
        hit = "hit" if row["in_set"] else "miss"
        self._counted.labels(class_id if class_id in _SPECIAL_CLASSES else hit).inc()
        return _receipt(row)

    def _recall_of_all(self, answer_id: str) -> _Recalled | None:
        recalled = self._recall(answer_id)
        if recalled is not None or self._peers is None:
            return recalled
        try:
            return self._peers.ask(answer_id)
        except TimeoutError as error:
            if self.store.answer(answer_id) is not None:
                return None
            detail = "a process of the server that may remember the answer does not respond"
            raise Problem(Code.FEEDBACK_NOT_STORED, detail, retry_after=_BUSY_RETRY_S) from error

    def _recall(self, answer_id: str) -> _Recalled | None:
        """What this worker remembers of an answer; another one may ask, in a thread of its own."""
        recent = self.answers.find(answer_id)
        if recent is None:
            return None
        row, ids = recent.full_row, frozenset(recent.classes.ids)
        return _Recalled(row, ids, self.photos.find(answer_id))

    def _answer(
        self, body: FeedbackBody, key: str, pipeline: Pipeline, recalled: _Recalled | None
    ) -> tuple[Row, list[str]]:
        """The row of the answer that ``body`` is about, and the class ids of its set."""
        answer = self.store.answer(body.request_id) if recalled is None else recalled.row
        # The same words for the answer to another key: nobody learns which answers there are.
        if answer is None or answer["key"] != key:
            raise Problem(
                Code.ANSWER_NOT_FOUND,
                f"no answer with the id {body.request_id!r} is remembered; until it restarts, the "
                f"server remembers the last {MAX_ANSWERS}, each for the key that asked",
            )
        members = json.loads(answer["members"])
        classes = pipeline.bundle.classes.index_of if recalled is None else recalled.class_ids
        accepted = (*_SPECIAL_CLASSES, *members)
        if body.class_id not in accepted and body.class_id not in classes:
            raise Problem(
                Code.CLASS_NOT_FOUND,
                f"no class has the id {body.class_id[:80]!r}; /v1/classes lists all; or use "
                f"{_SPECIAL_CLASSES[0]} or {_SPECIAL_CLASSES[1]}",
            )
        return answer, members

    def _photos(
        self,
        body: FeedbackBody,
        stored_photos: int,
        pictures: Sequence[bytes] | None,
        pipeline: Pipeline,
    ) -> tuple[list[bytes], str | None]:
        """The photos to store, and the outcome to count."""
        if not body.consent:
            return [], "withdrawn" if stored_photos else None
        if stored_photos or not self.settings.feedback_photos:
            return [], None
        if pictures is None:
            return [], "forgotten"
        photos, most = [], pipeline.max_pixels
        try:
            for header in map(read_header, pictures):
                # A JPEG is shrunk to no less than twice the side while it is decoded, as `decode`
                # says.
                size = pixels_to_hold(header, least=2 * MAX_SIDE, max_pixels=most)
                with pipeline.budget.hold(size):
                    photo = plain_jpeg(header, side=MAX_SIDE, quality=QUALITY, max_pixels=most)
                photos.append(photo)
        # The answer decoded them, but perhaps at a smaller size than is kept.
        except ImageError:
            return [], "unreadable"
        return photos, "kept"


def _receipt(row: Row) -> FeedbackReceipt:
    return FeedbackReceipt(request_id=row["answer_id"], in_set=row["in_set"], photos=row["photos"])
