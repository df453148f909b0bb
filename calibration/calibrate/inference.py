"""What the network says about each photo of a split: on the cores of this machine, or on Ray's.

Photos go through decoder and network one at a time, as they do in the server: by the same code that
answers requests, and not in a batch, which could change a last digit. So it is the same wherever a
photo is scored, as long as the processors are of one kind.
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
    """What the network says about a photo."""

    photo: bytes  # SHA-256 of it
    outputs: Mapping[str, NDArray[np.float32]]  # by head, and `FEATURES` if wanted, (1, columns)


def run_inference(
    session: Session, split: Split, *, features: bool, workers: Workers | None
) -> Generator[_PhotoInference | str]:
    """Every photo in order, or what is wrong with it; ``workers`` of Ray share them, if given."""
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
    """All that a worker needs to infer as this process would."""

    bundle: Packed
    split: Split
    features: bool
    device: str
    runtime: Runtime

    def __call__(self) -> Callable[[int], _PhotoInference | str]:
        with unpacked_bundle(self.bundle) as folder:
            session = Session(open_bundle(folder), device=self.device, runtime=self.runtime)
        return partial(_infer, session, self.split, self.features)
