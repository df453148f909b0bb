"""Feedback of people: which species it really was.

What is kept of it says whether the confirmed class was in the set, which is how accuracy can be
measured after deployment (`calibration.live.audit`).
"""

import threading
from collections import OrderedDict
from datetime import UTC, datetime
from typing import Any, Literal

from models.classes import ClassTable
from server.afterwards.feedback_store import FeedbackStore
from server.afterwards.remembered import LastAnswers, Remembered
from server.errors import AnswerNotFound, ClassNotFound, FeedbackNotStored, IdempotencyKeyReused
from server.metrics import Metrics
from server.schemas import FeedbackBody, FeedbackReceipt, Model

Outcome = Literal["hit", "miss", "not_listed", "not_an_organism"]

NOT_LISTED = "not_listed"
NOT_AN_ORGANISM = "not_an_organism"
MOST_KEYS = 10_000


class Feedback:
    """Takes feedback on the last answers; threads may call it at once."""

    def __init__(
        self, store: FeedbackStore, classes: ClassTable, model: Model, metrics: Metrics
    ) -> None:
        self.store = store
        self.answers = LastAnswers()
        self._classes, self._model, self._counted = classes, model, metrics.feedback
        self._keys: OrderedDict[str, FeedbackBody] = OrderedDict()
        self._lock = threading.Lock()

    def take(self, given: FeedbackBody, key: str | None) -> FeedbackReceipt:
        """Store one piece of feedback.

        Args:
            given: What a person said.
            key: The Idempotency-Key, or None.

        Raises:
            AnswerNotFound: No answer of this id among the last.
            ClassNotFound: No class of this id.
            IdempotencyKeyReused: The key came with other feedback before.
            FeedbackNotStored: The disk failed.
        """
        answer = self.answers.find(given.request_id)
        if answer is None:
            raise AnswerNotFound(
                f"no answer of request {given.request_id!r} is remembered; the last "
                f"{self.answers.most} are, until the server restarts"
            )
        row = self._row(given, answer)
        receipt = FeedbackReceipt(request_id=given.request_id, in_set=row["in_set"])
        with self._lock:
            if self._repeated(given, key):
                self._counted.labels("repeated").inc()
                return receipt
            try:
                self.store.append(row)
            except OSError as error:
                self._counted.labels("failed").inc()
                raise FeedbackNotStored(
                    "the feedback could not be stored; try again later", retry_after=60
                ) from error
            self._remember(given, key)
        self._counted.labels(outcome_of(given.class_id, receipt.in_set)).inc()
        return receipt

    def _row(self, given: FeedbackBody, answer: Remembered) -> dict[str, Any]:
        inside = [self._classes[index].id for index in answer.members]
        said = given.class_id
        special = said in (NOT_LISTED, NOT_AN_ORGANISM)
        if not special and said not in self._classes.index_of:
            raise ClassNotFound(
                f"no class has the id {said[:80]!r}; /v1/classes lists all; also possible are "
                f"{NOT_LISTED} and {NOT_AN_ORGANISM}"
            )
        return {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "request_id": given.request_id,
            "class_id": None if said == NOT_AN_ORGANISM else said,
            "said": said,
            "in_set": None if said == NOT_AN_ORGANISM else said in inside,
            "set": inside,
            "rule": answer.rule,
            "k": answer.k,
            "coverage": answer.coverage,
            "guarantee": answer.guarantee,
            "images": answer.images,
            "verdict": answer.verdict,
            "calibration_id": self._model.calibration_id,
            "bundle_sha256": self._model.bundle_sha256,
            "note": given.note,
        }

    def _repeated(self, given: FeedbackBody, key: str | None) -> bool:
        known = None if key is None else self._keys.get(key)
        if known is not None and known != given:
            raise IdempotencyKeyReused("this Idempotency-Key came with other feedback before")
        return known is not None

    def _remember(self, given: FeedbackBody, key: str | None) -> None:
        if key is None:
            return
        self._keys[key] = given
        if len(self._keys) > MOST_KEYS:
            self._keys.popitem(last=False)


def outcome_of(said: str, in_set: bool | None) -> Outcome:
    """The word of the metric; a species that is not listed is no hit and no miss of the model."""
    if said == NOT_AN_ORGANISM:
        return "not_an_organism"
    if said == NOT_LISTED:
        return "not_listed"
    return "hit" if in_set else "miss"
