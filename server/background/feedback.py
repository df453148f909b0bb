"""Feedback of people: which species it really was.

What is kept of it says whether the confirmed class was in the set, which is how accuracy can be
measured after deployment (`florilege.calibration.monitoring.audit`).
"""

import threading
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from florilege.models.classes import ClassTable
from florilege.server.answers.pipeline import Outcome
from florilege.server.background.feedback_photos import FeedbackPhotos
from florilege.server.background.feedback_store import FeedbackStore
from florilege.server.errors import (
    AnswerNotFound,
    ClassNotFound,
    FeedbackNotStored,
    IdempotencyKeyReused,
)
from florilege.server.inference.decoding_budget import PixelBudget
from florilege.server.prometheus import Metrics
from florilege.server.schemas import FeedbackBody, FeedbackReceipt, Model, Query, Verdict

Kept = TypeVar("Kept")
Name = TypeVar("Name", bound=Hashable)
Repeat = tuple[str | None, str]
"""Name of the key that asks, and its Idempotency-Key."""

NOT_AN_ORGANISM = "not_an_organism"
WORDS = ("not_listed", NOT_AN_ORGANISM)
"""What may be said instead of the id of a class."""
MOST_ANSWERS = 10_000
MOST_KEYS = 10_000


class Latest(Generic[Name, Kept]):
    """The last ``most`` things by name; of a name used twice, the later one. For any thread."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._by_name: OrderedDict[Name, Kept] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, name: Name, thing: Kept) -> None:
        """Remember one, and forget the oldest where there are too many."""
        with self._lock:
            self._by_name[name] = thing
            self._by_name.move_to_end(name)
            if len(self._by_name) > self.most:
                self._by_name.popitem(last=False)

    def find(self, name: Name) -> Kept | None:
        """The thing of this name, or None where it is not known or forgotten."""
        with self._lock:
            return self._by_name.get(name)


@dataclass(frozen=True)
class Remembered:
    """One answer, as far as feedback needs it."""

    key: str | None  # name of the key that asked; None where no key is needed
    model: Model
    query: Query  # without `only`, which may be long
    restricted: bool
    verdict: Verdict
    classes: ClassTable
    bits: NDArray[np.uint8]  # one a class, set for the members: small where classes are many

    @classmethod
    def of(cls, outcome: Outcome, key: str | None) -> "Remembered":
        answer = outcome.answer
        query = answer.query.model_copy(update={"only": None})
        verdict, bits = answer.rejection.verdict, np.packbits(outcome.inside)
        return cls(key, answer.model, query, outcome.restricted, verdict, outcome.classes, bits)

    @property
    def members(self) -> list[str]:
        """Ids of the classes in the set, in the order of the model."""
        return [self.classes.ids[index] for index in np.flatnonzero(np.unpackbits(self.bits))]


class Feedback:
    """Takes feedback on the last answers; threads may call it at once.

    Attributes:
        thread: What the server calls it in, so that uploads never wait for a disk.
    """

    def __init__(
        self, store: FeedbackStore, metrics: Metrics, photos: FeedbackPhotos | None = None
    ) -> None:
        self.store, self.photos = store, photos
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="feedback")
        self.answers: Latest[str, Remembered] = Latest(MOST_ANSWERS)
        self._counted = metrics.feedback
        self._repeats: Latest[Repeat, tuple[FeedbackBody, FeedbackReceipt]] = Latest(MOST_KEYS)
        self._lock = threading.Lock()

    def remember(self, outcome: Outcome, photos: Sequence[bytes], key: str | None) -> None:
        """Remember an answer, and hold its photos where people may have them kept.

        ``key`` is the name of the key that asked.
        """
        answer_id = outcome.answer.id
        if self.photos is not None:
            self.photos.remember(answer_id, photos)
        self.answers.keep(answer_id, Remembered.of(outcome, key))

    def take(
        self,
        given: FeedbackBody,
        *,
        key: str | None,
        idempotency_key: str | None,
        budget: PixelBudget,
    ) -> FeedbackReceipt:
        """Store what a person said; with the same Idempotency-Key of the same key only once.

        ``budget`` is that of the pixels decoded at once, for photos to be kept.

        Raises:
            AnswerNotFound: No answer of this id to this key among the last.
            ClassNotFound: No class of this id.
            IdempotencyKeyReused: The key came with other feedback before.
            FeedbackNotStored: The disk failed.
        """
        answer = self.answers.find(given.request_id)
        if answer is None or answer.key != key:
            raise AnswerNotFound(
                f"no answer with the id {given.request_id!r} is remembered; the last "
                f"{self.answers.most} are, until the server restarts, each for the key that asked"
            )
        row = self._row(given, answer)
        repeat = None if idempotency_key is None else (key, idempotency_key)
        with self._lock:
            if (known := self._repeated(given, repeat)) is not None:
                self._counted.labels("repeated").inc()
                return known
            try:
                row["photos"] = self._photos_of(given, budget)
                self.store.append(row)
            except OSError as error:
                self._counted.labels("failed").inc()
                raise FeedbackNotStored(
                    "the feedback could not be stored; try again later", retry_after=60
                ) from error
            receipt = FeedbackReceipt(
                request_id=given.request_id, in_set=row["in_set"], photos=len(row["photos"])
            )
            if repeat is not None:
                self._repeats.keep(repeat, (given, receipt))
        hit = "hit" if receipt.in_set else "miss"  # a species that is not listed is neither
        self._counted.labels(given.class_id if given.class_id in WORDS else hit).inc()
        return receipt

    def _row(self, given: FeedbackBody, answer: Remembered) -> dict[str, Any]:
        inside, said, query = answer.members, given.class_id, answer.query
        if said not in WORDS and said not in answer.classes.index_of:
            raise ClassNotFound(
                f"no class has the id {said[:80]!r}; /v1/classes lists all; also possible are "
                f"{WORDS[0]} and {WORDS[1]}"
            )
        return {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "request_id": given.request_id,
            "class_id": None if said == NOT_AN_ORGANISM else said,
            "said": said,
            "in_set": None if said == NOT_AN_ORGANISM else said in inside,
            "set": inside,
            "rule": query.rule,
            "k": query.k,
            "coverage": query.coverage,
            "guarantee": query.guarantee,
            "images": query.images,
            "list": query.list,
            "restricted": answer.restricted,
            "verdict": answer.verdict,
            "calibration_id": answer.model.calibration_id,
            "bundle_sha256": answer.model.bundle_sha256,
            "note": given.note,
            "consent": given.consent,
        }

    def _photos_of(self, given: FeedbackBody, budget: PixelBudget) -> list[str]:
        """The files of the photos that may be kept; the last word on an answer decides."""
        if self.photos is None:
            return []
        if given.consent:
            return self.photos.keep(given.request_id, budget)
        self.photos.drop(given.request_id)
        return []

    def _repeated(self, given: FeedbackBody, repeat: Repeat | None) -> FeedbackReceipt | None:
        known = None if repeat is None else self._repeats.find(repeat)
        if known is None:
            return None
        before, receipt = known
        if before != given:
            raise IdempotencyKeyReused("this Idempotency-Key came with other feedback before")
        return receipt
