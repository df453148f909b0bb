"""A training run from data to report: prepare, synchronise, loop, finish."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from florilege.data.dataset import Dataset
from florilege.models.backbones import Network
from florilege.models.backbones.weights import Weights, load_into, open_weights, read_weights
from florilege.models.photo_hashes import PhotoHashes
from florilege.terminal import say
from florilege.training.batches.data_loader import Sources, open_sources
from florilege.training.config import TrainConfig
from florilege.training.device import Compute, choose, exhausted, tuned
from florilege.training.frozen.blend import blend
from florilege.training.frozen.feature_store import Features
from florilege.training.frozen.features import HeadOnFeatures, threads_for
from florilege.training.loop import checkpoint
from florilege.training.loop.checkpoint import Position, TrainingState
from florilege.training.loop.distributed import Ranks, together
from florilege.training.loop.rank_consistency import facts
from florilege.training.loop.training_loop import Run, Say, mute
from florilege.training.network import notes_on_random_weights, seeded, start, unfreeze
from florilege.training.objective import Objective
from florilege.training.optimisation.optimizer import rate_share
from florilege.training.preparation import (
    frozen_backbone,
    frozen_features,
    notes_on_enlarging,
    notes_on_validation,
    open_data,
    photos_of,
    reference_pictures,
)
from florilege.training.run_folder import RunFolder
from florilege.training.validation_metric import metric_of


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The result of a run; None for values that a run of zero epochs lacks."""

    run: str
    epochs: int
    best_epoch: int | None  # the one whose weights are in best.safetensors
    metric: str  # that chose it, such as "average-3 accuracy"
    accuracy: float | None  # its value on val
    head: str | None  # the head that reached it
    score_kind: str | None
    seconds: float  # in the loop, before and after resuming


def train_run(
    config: TrainConfig, out: Path, *, resume: bool = False, say: Say = say
) -> TrainResult:
    """Train a network and write everything about it to the run folder ``out``.

    Args:
        config: All settings.
        out: A new or empty folder, or with ``resume`` the folder of an interrupted run.
        resume: Continue from ``last.pt``, or start if there is none yet.
        say: Shows the user one line at a time.

    Raises:
        UsageError: Settings that do not fit together, or a folder that is not empty.
        DataError: Data that cannot be read or trained on.
        BundleError: A checkpoint or weights that do not fit, or a full disk.
        KeyboardInterrupt: The user stopped it; ``last.pt`` is up to date.
    """
    compute = choose(config.device, config.precision)
    with together(compute.device) as ranks, exhausted(), tuned(compute):
        speak, folder = say if ranks.first else mute, RunFolder(out)
        return _TrainingProcess(config, folder, compute, ranks, speak, resume=resume).train()


@dataclass(frozen=True)
class _Inputs:
    """Data, loss and network of a run before training."""

    dataset: Dataset
    thumbnails: bytes | None  # reference pictures of the classes
    objective: Objective
    network: Network
    weights: Weights | None  # that the network starts from
    planned_epochs: int  # of the run before it was resumed


@dataclass(frozen=True)
class _State:
    """What every process enters the loop with."""

    trained: TrainingState
    position: Position
    sources: Sources | None  # None if there is nothing to train
    features: tuple[Features, Features] | None  # of train and val, to train only the head
    photos: PhotoHashes | None  # to write to the run folder


class _TrainingProcess:
    """One of the processes that train a network together.

    All of them run the same steps. Code that may fail in only one of them is inside
    ``ranks.agreeing()``, where an error in one ends all.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        compute: Compute,
        ranks: Ranks,
        say: Say,
        *,
        resume: bool,
    ) -> None:
        self.config, self.folder, self.compute = config, folder, compute
        self.ranks, self.say = ranks, say
        self.resumed = resume and folder.config.is_file()
        self.restored = self.resumed and folder.last.is_file()
        self.fresh = not self.restored or (bool(config.freeze) and not folder.best.is_file())
        self.notes = list[str]()  # for the user, once the folder is locked

    def train(self) -> TrainResult:
        """Run all steps."""
        inputs = self.prepare()
        state = self.synchronise(inputs)
        with self.reserved(inputs, state):
            run = self.loop(inputs, state)
            self.finish(run, state)
        return _result(self.config, self.folder, state.position)

    def prepare(self) -> _Inputs:
        """Open the data, build loss and network, and give the network its first weights."""
        config, ranks, notes = self.config, self.ranks, self.notes
        with ranks.agreeing():
            dataset = open_data(config, ["train", "val"] if config.epochs else ["train"])
            ranks.check_same(facts(config, dataset, self.folder if self.resumed else None))
            planned = self.folder.read_config().epochs if self.resumed else config.epochs
            thumbnails = None
            if ranks.first:
                self.check_folder(dataset)
                thumbnails = reference_pictures(dataset)  # fails now if one is missing
            objective, network = seeded(config, dataset, ranks)
            notes += [*objective.notes, *unfreeze(network, config)]
            notes += notes_on_validation(config, dataset)
        weights = None
        if self.fresh and config.weights is not None:
            weights = ranks.in_turn(partial(open_weights, config.weights, config.backbone))
        with ranks.agreeing():
            if self.fresh:
                notes += start(network, config, objective, dataset, weights)
                notes += notes_on_enlarging(config, dataset)
                notes += notes_on_random_weights(config)
            elif config.freeze:
                best = self.folder.best
                load_into(network, read_weights(best), origin=str(best))
        network = network.to(self.compute.device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack this form
        return _Inputs(dataset, thumbnails, objective, network, weights, planned)

    def check_folder(self, dataset: Dataset) -> None:
        """Refuse a folder that holds another run."""
        if self.resumed:
            self.folder.check_resumable(self.config, dataset.classes)
        else:
            self.folder.check_free()

    def synchronise(self, inputs: _Inputs) -> _State:
        """Bring every process to the same step of the run, with its share of the batches."""
        config, ranks, compute, dataset = self.config, self.ranks, self.compute, inputs.dataset
        features = self.frozen_features(inputs)
        trained = self.trained(inputs, features)
        with ranks.agreeing():
            restored = self.restored
            position = checkpoint.load(self.folder.last, trained, ranks) if restored else Position()
        ranks.check_same({"checkpoint": f"of step {position.step}, batch {position.batch}"})
        sources = None if features is None else Sources(*features, workers=0)
        with ranks.agreeing(patiently=True):  # machines may decode at very different speeds
            if position.epoch < config.epochs and sources is None:
                sources = open_sources(dataset, config, ranks, on_gpu=compute.on_gpu)
            photos = None
            if ranks.first and not self.folder.photos.is_file():
                photos = photos_of(dataset, config, sources, inputs.weights)
        if restored:
            self.notes += _notes_on_continuing(position, ranks)
            self.notes += _notes_on_rising_rate(position, config, inputs.planned_epochs)
        position.processes = ranks.count
        return _State(trained, position, sources, features, photos)

    def frozen_features(self, inputs: _Inputs) -> tuple[Features, Features] | None:
        """Features of `train` and `val`, computed by one process; None to train on pictures."""
        if not (self.config.freeze and self.config.epochs):
            return None
        settings = (self.config, inputs.network, self.folder.path, self.compute, self.say)
        backbone = frozen_backbone(*settings)
        return self.ranks.in_turn(partial(frozen_features, inputs.dataset, backbone))

    def trained(self, inputs: _Inputs, features: tuple[Features, Features] | None) -> TrainingState:
        """The training state before the first step."""
        config, network = self.config, inputs.network
        loss_fn = inputs.objective.loss_fn.to(self.compute.device)
        trainable: nn.Module = network
        if features is not None:
            trainable = HeadOnFeatures(network, features[0])
        return TrainingState.before_training(trainable, loss_fn, config, self.compute)

    @contextmanager
    def reserved(self, inputs: _Inputs, state: _State) -> Iterator[None]:
        """Lock the folder while the block runs, and write the settings into it."""
        folder = self.folder
        with ExitStack() as stack:
            with self.ranks.agreeing():
                if self.ranks.first:
                    stack.enter_context(folder.locked())
                    if not self.resumed:
                        folder.check_free()  # again: another run may have started in it meanwhile
                    folder.write_settings(self.config, inputs.dataset.classes, inputs.thumbnails)
                    if inputs.weights is not None:
                        folder.write_provenance(inputs.weights.provenance)
                    if state.photos is not None:
                        folder.write_photos(state.photos)
            yield

    def loop(self, inputs: _Inputs, state: _State) -> Run:
        """Train to the last epoch; a run of no epochs only writes its checkpoint."""
        for note in self.notes:
            self.say(note)
        run = Run(
            *(self.config, self.folder, inputs.network, self.compute, inputs.objective),
            *(state.trained, state.position, self.say, self.ranks),
        )
        if state.sources is not None:
            with threads_for(state.trained.network, self.config.batch_size):
                run.fit(state.sources)
        elif not self.restored:
            run.save()
        return run

    def finish(self, run: Run, state: _State) -> None:
        """Write the results of the run: weights, a blended head, the report."""
        with self.ranks.agreeing(patiently=True):
            if not self.ranks.first:
                return
            best = self.folder.best
            if not best.is_file():
                checkpoint.save_weights(best, run.state())
            if self.config.blend and state.features and run.objective.head == "linear":
                self.say(blend(best, *state.features, self.config))
            from florilege.training.run_report import write_report  # matplotlib takes a second

            write_report(self.folder, self.config, state.position.history)


def _notes_on_continuing(position: Position, ranks: Ranks) -> Iterator[str]:
    """Notes on a resumed run."""
    yield f"continuing after {position.epoch} epochs and {position.step} steps"
    if position.processes != ranks.count:
        yield (
            f"the run had {position.processes} processes and now has {ranks.count}: the result is "
            "equally good, but not the same to the last bit"
        )


def _notes_on_rising_rate(
    position: Position, config: TrainConfig, planned_epochs: int
) -> Iterator[str]:
    """A note if more epochs than planned raise the learning rate again."""
    before, now = (
        rate_share(config.schedule, step=position.epoch, steps_per_epoch=1, epochs=epochs)
        for epochs in (planned_epochs, config.epochs)
    )
    if now > before:
        yield (
            f"epochs was {planned_epochs} and is {config.epochs} now: the learning rate rises from "
            f"{before:.2g} to {now:.2g} of its peak. To train on at a low rate, start another run: "
            "--weights with this run folder, another --out and a small optimiser.learning_rate"
        )


def _result(config: TrainConfig, folder: RunFolder, position: Position) -> TrainResult:
    best = position.best_epoch
    row = position.history[best - 1] if best else {}
    return TrainResult(
        run=str(folder.path),
        epochs=position.epoch,
        best_epoch=best,
        metric=str(metric_of(row) if row else config.validation.chosen_by),
        accuracy=position.best_score,
        head=str(row["val_best_head"]) if row else None,
        score_kind=str(row["val_best_score_kind"]) if row else None,
        seconds=position.seconds,
    )
