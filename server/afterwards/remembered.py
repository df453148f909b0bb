"""The last answers, as far as feedback needs them: which set each request id got."""

import threading
from collections import OrderedDict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from server.answers.answer import Drawn

MOST = 10_000


@dataclass(frozen=True, kw_only=True)
class Remembered:
    """One answer.

    Attributes:
        images: Photos of the request.
        rule: Set rule asked for.
        k: Average set size asked for, or None.
        coverage: Coverage asked for, or None.
        guarantee: What the set promised, or None.
        verdict: Of the rejection.
        bits: One bit a class, set for the members; small also where classes are many.
        classes: Number of classes.
    """

    images: int
    rule: str
    k: float | None
    coverage: float | None
    guarantee: str | None
    verdict: str
    bits: NDArray[np.uint8]
    classes: int

    @classmethod
    def of(cls, drawn: Drawn) -> "Remembered":
        """What to keep of an answer."""
        return cls(
            images=drawn.photos,
            rule=drawn.point.rule,
            k=drawn.point.k,
            coverage=drawn.point.coverage,
            guarantee=drawn.point.guarantee,
            verdict=drawn.rejection.verdict,
            bits=np.packbits(drawn.inside),
            classes=len(drawn.inside),
        )

    @property
    def members(self) -> list[int]:
        """Output indices of the classes in the set, ascending."""
        return [int(at) for at in np.flatnonzero(np.unpackbits(self.bits, count=self.classes))]


class LastAnswers:
    """The answers to the last ``most`` request ids; of an id used twice, the later one."""

    def __init__(self, most: int = MOST) -> None:
        self.most = most
        self._by_id: OrderedDict[str, Remembered] = OrderedDict()
        self._lock = threading.Lock()

    def keep(self, request_id: str, answer: Remembered) -> None:
        """Remember one answer, and forget the oldest where there are too many."""
        with self._lock:
            self._by_id[request_id] = answer
            self._by_id.move_to_end(request_id)
            if len(self._by_id) > self.most:
                self._by_id.popitem(last=False)

    def find(self, request_id: str) -> Remembered | None:
        """The answer of a request, or None where it is not known or forgotten."""
        with self._lock:
            return self._by_id.get(request_id)
