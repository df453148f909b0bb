"""The classifier behind BentoML; `benchmarks.load.peer_servers.command` starts it."""

import os
from pathlib import Path

import bentoml

from benchmarks.load.peer_servers import classifier


@bentoml.service(workers=int(os.environ["PEER_WORKERS"]), traffic={"timeout": 60})
class Service:
    """One photo a request."""

    def __init__(self) -> None:
        self.classify = classifier()

    @bentoml.api  # type: ignore[untyped-decorator]
    def predict(self, photo: Path) -> list[int]:
        """The set."""
        return self.classify(photo.read_bytes())
