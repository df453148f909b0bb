"""Other servers around the same decoding and network, for `benchmarks.load.server --against`.

Each decodes with `florilege.models.images.load`, runs the bundle's network with one thread a
process, and answers with the indices of the classes in the set: no names, intervals, limits,
metrics or drift. Photos come as the multipart field `photo` to /predict.
"""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from florilege.calibration.record.record_file import read_record
from florilege.calibration.view import PLAIN
from florilege.models.bundle import open_bundle
from florilege.models.images import load
from florilege.models.session import Session


def classifier() -> Callable[[bytes], list[int]]:
    """From a photo to the set at the default K, by the bundle that the environment names."""
    opened = open_bundle(os.environ["PEER_BUNDLE"])
    record, session = read_record(opened), Session(opened, device="cpu")
    point = record.point(PLAIN, record.setting("average_k"))

    def classify(photo: bytes) -> list[int]:
        image = load(photo, opened.preprocess)[np.newaxis]
        logits = session.logits(image)[point.table.scoring.head]
        inside = point.sets(point.scores(logits)[np.newaxis])[0]
        return [int(index) for index in np.flatnonzero(inside)]

    return classify


def command(name: str, port: int) -> list[str]:
    """How to start a server, which finds ``PEER_BUNDLE`` and ``PEER_WORKERS`` in the environment.

    Raises:
        SystemExit: It is not installed.
    """
    if name == "litserve":
        return [sys.executable, "-m", "benchmarks.load.peer_servers.with_litserve", str(port)]
    bentoml = Path(sys.executable).with_name("bentoml")
    if not bentoml.exists():
        raise SystemExit("bentoml is not installed: pip install bentoml litserve")
    service = "benchmarks.load.peer_servers.with_bentoml:Service"
    return [str(bentoml), "serve", service, "--host", "127.0.0.1", "--port", str(port)]
