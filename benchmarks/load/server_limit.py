"""What a machine could answer at most: decoding and network by themselves, without a server."""

import math
import multiprocessing
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Self

import numpy as np

from florilege.calibration.record.record_file import read_record
from florilege.models.bundle import open_bundle
from florilege.models.images import load
from florilege.models.runtime import RuntimeName
from florilege.models.session import Session
from florilege.server.answers.pipeline import LARGEST_BATCH


class Limit:
    """Decoding and network by themselves, in ``many`` processes at the same time.

    Where a GPU has the network, the photos a second that it allows are ``gpu``, and decoding is all
    that is measured.
    """

    def __init__(
        self,
        bundle: Path,
        many: int,
        seconds: float,
        gpu: float,
        *,
        runtime: RuntimeName | None = None,
    ) -> None:
        self.many, self.gpu, self._runtime = many, gpu, runtime
        self._bundle, self._seconds = bundle, seconds
        self._pools = [  # of one process each, so that all of them work
            ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn"))
            for _ in range(many)
        ]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for pool in self._pools:
            pool.shutdown()

    def __call__(self, photo: bytes) -> float:
        """CPU milliseconds that a photo takes."""
        network = math.isinf(self.gpu)
        tasks = [
            pool.submit(
                alone, self._bundle, photo, self._seconds, network=network, runtime=self._runtime
            )
            for pool in self._pools
        ]
        return mean(task.result() for task in tasks)


def alone(
    bundle: Path, photo: bytes, seconds: float, *, network: bool, runtime: RuntimeName | None
) -> float:
    """CPU milliseconds of decoding, and of the network after it, in one thread."""
    session = _opened(bundle, runtime)

    def work() -> None:
        pixels = load(photo, session.bundle.preprocess)
        if network:
            session.logits(pixels[np.newaxis])

    work()
    rounds, started, until = 0, time.process_time(), time.monotonic() + seconds
    while time.monotonic() < until:
        work()
        rounds += 1
    return 1000 * (time.process_time() - started) / rounds


def rate_of_gpu(bundle: Path, seconds: float) -> float:
    """Photos a second of the network alone on a GPU, in batches of the largest size."""
    session = Session(open_bundle(bundle), device="cuda")
    side = session.bundle.preprocess.image_size
    photos = np.zeros((LARGEST_BATCH, side, side, 3), np.uint8)
    session.logits(photos)
    rounds, started = 0, time.monotonic()
    while time.monotonic() < started + seconds:
        session.logits(photos)
        rounds += 1
    return rounds * LARGEST_BATCH / (time.monotonic() - started)


@cache
def _opened(bundle: Path, runtime: RuntimeName | None) -> Session:
    opened = open_bundle(bundle)
    served_by = read_record(opened, runtime).measured.served_by
    return Session(opened, device="cpu", runtime=served_by)
