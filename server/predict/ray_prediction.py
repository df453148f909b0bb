"""``florilege predict --ray``: the same answers, from Ray workers on one machine or many.

Ray sends the bundle to the workers, so nobody has to copy it, and replacing the bundle during the
run changes no answer. The workers read the photos: paths must name the same files everywhere.
"""

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace

from florilege.models.bundle.bundle import Packed, unpacked_bundle
from florilege.models.runtime import CUDA, RuntimeName
from florilege.ray_tasks import Workers, spread
from florilege.server.answers.pipeline import Pipeline, open_pipeline
from florilege.server.answers.query import LocalizedQuery
from florilege.server.answers.restriction import ClassLists
from florilege.server.predict.batch_settings import BatchSettings
from florilege.server.predict.photos import Observation
from florilege.server.predict.prediction import Prediction, predict_some, with_progress


@dataclass(frozen=True, kw_only=True)
class _WorkerFactory:
    """All that a worker needs to answer as this process would."""

    bundle: Packed
    lists: ClassLists
    device: str
    runtime: RuntimeName
    query: LocalizedQuery
    features: bool

    def __call__(self) -> Callable[[Observation], Prediction]:
        with unpacked_bundle(self.bundle) as folder:
            pipeline = open_pipeline(folder, device=self.device, runtime=self.runtime)
            pipeline = replace(pipeline, lists=self.lists)
        return lambda item: predict_some(pipeline, [item], self.query, self.features)[0]


def predict_on_ray(
    pipeline: Pipeline,
    observations: Sequence[Observation],
    query: LocalizedQuery,
    batch: BatchSettings,
    *,
    features: bool = False,
) -> Generator[Prediction]:
    """As `predict_all`, with workers that run the network on the same device as this process.

    Raises:
        UsageError: The extra `ray` is not installed, or there is no such cluster.
        FlorilegeError: The workers cannot continue.
    """
    gpu = pipeline.session.provider == CUDA
    factory = _WorkerFactory(
        bundle=pipeline.bundle.packed(),
        lists=pipeline.lists,
        device="cuda" if gpu else "cpu",
        runtime=pipeline.record.measured.runtime,
        query=query,
        features=features,
    )
    workers = Workers(number=batch.ray_workers, threads=batch.threads, gpu=gpu)
    yield from with_progress(spread(factory, observations, workers), observations)
