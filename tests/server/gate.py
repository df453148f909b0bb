"""A pipeline that waits at a gate, so that a test decides how long work takes."""

import threading
from collections.abc import Sequence
from typing import Any

from florilege.models.session import Outputs
from florilege.server.answers.pipeline import Pipeline


class Gate:
    """Answers as the real pipeline does, but each photo only once the gate is open.

    Attributes:
        entered: The number of photos of each answer whose work has begun.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self.entered: list[int] = []
        self.opened = threading.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipeline, name)

    def all_outputs(self, photos: Sequence[bytes], **options: Any) -> list[Outputs]:
        self.entered.append(len(photos))
        assert self.opened.wait(20), "the test never opened the gate"
        return self._pipeline.all_outputs(photos, **options)
