"""Run the network on each photo of a split, on this machine or on Ray.

The code is that of the server, and photos are processed one at a time, since a batch could change
the last digit. So a photo gets the same outputs wherever it is scored, on processors of one kind.
"""

import hashlib
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilege.cores import in_order
from florilege.data.dataset import Split
from florilege.models.bundle import open_bundle
from florilege.models.bundle.transfer import Packed, pack_bundle, unpacked_bundle
from florilege.models.images import ImageError, load
from florilege.models.runtime import CUDA, Runtime
from florilege.models.session import FEATURES, Session
from florilege.ray_tasks import Workers, spread


class _PhotoInference(NamedTuple):
    """The outputs of the network for a photo."""

    photo: bytes  # SHA-256 of the photo
    outputs: Mapping[str, NDArray[np.float32]]  # by head, and `FEATURES` on request, (1, columns)


def run_inference(
    session: Session, split: Split, *, features: bool, workers: Workers | None
) -> Generator[_PhotoInference | str]:
    """The outputs of every photo in order, or an error message; uses Ray ``workers`` if given."""
    rows = range(len(split))
    if workers is None:
        infer = partial(_infer, session, split, features)
        return in_order(infer, rows, threads=session.concurrency)
    gpu = session.provider == CUDA
    device = "cuda" if gpu else "cpu"
    opener = _Opener(pack_bundle(session.bundle), split, features, device, session.runtime)
    return spread(opener, rows, replace(workers, gpu=gpu))


def _infer(session: Session, split: Split, features: bool, row: int) -> _PhotoInference | str:
    try:
        content = split.read(row)
        image = load(content, session.bundle.preprocess)
    except (OSError, ImageError) as error:
        return f"{split.names[row]}: {error}"
    model_outputs = session.outputs(image[np.newaxis], features=features)
    outputs = dict(model_outputs.logits)
    if model_outputs.features is not None:
        outputs[FEATURES] = model_outputs.features
    return _PhotoInference(hashlib.sha256(content).digest(), outputs)


@dataclass(frozen=True)
class _Opener:
    """Everything that a Ray worker needs to run the same inference as this process."""

    bundle: Packed
    split: Split
    features: bool
    device: str
    runtime: Runtime

    def __call__(self) -> Callable[[int], _PhotoInference | str]:
        with unpacked_bundle(self.bundle) as folder:
            session = Session(open_bundle(folder), device=self.device, runtime=self.runtime)
        return partial(_infer, session, self.split, self.features)
