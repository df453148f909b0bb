"""A pipeline that waits at a gate, so that a test decides how long work takes."""

import threading
from collections.abc import Sequence
from typing import Any

from florilege.server.answers.pipeline import Outcome, Pipeline
from florilege.server.answers.query import IdentifyQuery


class Gate:
    """Answers as the real pipeline does, but each photo only once the gate is open.

    Attributes:
        entered: Answers whose work has begun, by id.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.entered: list[str] = []
        self.opened = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def __call__(
        self, photos: Sequence[bytes], ask: IdentifyQuery, answer_id: str, **rest: Any
    ) -> Outcome:
        self.entered.append(answer_id)
        assert self.opened.wait(20), "the test never opened the gate"
        return self._pipeline(photos, ask, answer_id, **rest)
