"""``florilege predict --ray``: the same answers, made by processes of Ray on one machine or many.

The bundle travels to the workers, so nobody has to copy it, and a bundle that is replaced meanwhile
changes no answer. Photos are read by the workers: their paths must mean the same files everywhere.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from models.bundle.travelling import Packed, packed, unpacked
from models.on_ray import Workers, spread
from models.runtime import CUDA
from server.answers.ask import Ask
from server.answers.lists import Lists
from server.answers.pipeline import Pipeline, open_pipeline
from server.predict.files import Predicted, predict_some, watched
from server.predict.inputs import Observation
from server.predict.settings import Batch


@dataclass(frozen=True, kw_only=True)
class Opener:
    """All that a worker needs to answer as this process would."""

    bundle: Packed
    lists: Lists
    device: str
    ask: Ask
    features: bool

    def __call__(self) -> Callable[[Observation], Predicted]:
        with unpacked(self.bundle) as folder:
            pipeline = replace(open_pipeline(folder, device=self.device), lists=self.lists)
        return lambda one: predict_some(pipeline, [one], self.ask, self.features)[0]


def predict_on_ray(
    pipeline: Pipeline,
    observations: Sequence[Observation],
    ask: Ask,
    batch: Batch,
    *,
    features: bool = False,
) -> Generator[Predicted]:
    """What `predict_all` gives, from workers that run the network on the device this process does.

    Raises:
        UsageError: The extra `ray` is not installed, or there is no such cluster.
        FlorilegeError: The workers cannot go on.
    """
    gpu = pipeline.session.provider == CUDA
    opener = Opener(
        bundle=packed(pipeline.bundle),
        lists=pipeline.lists,
        device="cuda" if gpu else "cpu",
        ask=ask,
        features=features,
    )
    workers = Workers(number=batch.workers, threads=batch.threads, gpu=gpu)
    yield from watched(spread(opener, observations, workers), observations)
