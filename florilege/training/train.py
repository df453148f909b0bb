"""A training run from data to report: prepare, synchronise, loop, finish."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn

from florilege.data.records import Dataset
from florilege.errors import FlorilegeError, UsageError
from florilege.models.backbones import Weights, load_into, open_weights, read_weights
from florilege.terminal import say
from florilege.training.batches import Features, Sources
from florilege.training.batches.run_photos import RunPhotos, UnreadablePictures
from florilege.training.config import Metric, TrainConfig
from florilege.training.configuration import RunFolder, write
from florilege.training.frozen import HeadOnFeatures, frozen_backbone, threads_for
from florilege.training.frozen.head_solver import search
from florilege.training.loop import Run, Say
from florilege.training.loop.training_state import Position, TrainingState, rate_share
from florilege.training.machines import Compute, Ranks, together
from florilege.training.network import seeded, start, unfreeze
from florilege.training.preparation import (
    all_named,
    facts,
    notes_on_start,
    notes_on_validation,
    open_data,
    reference_pictures,
    without_damaged,
    without_doubtful,
)


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """The result of a run; None for values that a run of zero epochs lacks."""

    run: str
    epochs: int
    best_epoch: int | None  # the one whose weights are in best.safetensors
    metric: str  # that chose it, such as "average-3 accuracy"
    set_size: str  # of the metric, for people, such as "3 on average"
    accuracy: float | None  # its value on val
    head: str | None  # the head that reached it
    score_kind: str | None
    weight_decay: float | None  # that val chose, for a head that is solved for
    seconds: float  # in the loop, before and after resuming


def train_run(
    config: TrainConfig, out: Path, *, resume: bool = False, say: Say = say
) -> TrainResult:
    """Train a network and write everything about it to the run folder ``out``.

    ``out`` is new or empty, or with ``resume`` the folder of an interrupted run, which continues
    from ``last.pt`` or starts. ``say`` shows the user one line at a time.

    Raises:
        UsageError: Settings that do not fit together, or a folder that is not empty.
        DataError: Data that cannot be read or trained on.
        BundleError: A checkpoint or weights that do not fit, or a full disk.
        KeyboardInterrupt: The user stopped it; ``last.pt`` is up to date.
    """
    compute = Compute.of(config.device, config.precision)
    with together(compute.device) as ranks, _exhausted(), _tuned(compute):
        say = say if ranks.first else lambda _line: None
        try:
            return _TrainingProcess(config, RunFolder(out), compute, ranks, say, resume).train()
        # Others may be damaged, in another split too, and the user should read of all at once.
        except UnreadablePictures as error:
            if not ranks.alone:
                raise
            raise all_named(config.data) or error from error
        except SystemExit as error:  # the losses name those of their own
            name = f"backbone {config.backbone}"
            raise UsageError(f"{name} ends the program with sys.exit: {error}") from error


@contextmanager
def _tuned(compute: Compute) -> Iterator[None]:
    """Let cuDNN time its convolution algorithms once per batch size and keep the fastest.

    A run has few batch sizes, and all its inputs are equally large. Does nothing if torch is set to
    deterministic algorithms: which one is fastest may differ from run to run.
    """
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark
    deterministic = torch.are_deterministic_algorithms_enabled() or cudnn.deterministic
    cudnn.benchmark = before or (compute.on_gpu and not deterministic)
    try:
        yield
    finally:
        cudnn.benchmark = before


@contextmanager
def _exhausted() -> Iterator[None]:
    """If a run ends because memory runs out, raise a ``FlorilegeError`` saying what to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        reason = str(error)
        full = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if full or "can't allocate memory" in reason:
            what = "there is not enough memory"
        elif "DataLoader worker" in reason:
            what = "a process that prepares pictures was killed, perhaps because memory ran out"
        else:
            raise
        raise FlorilegeError(
            f"{what}: lower batch_size (accumulate=2 makes a step of two batches), image_size, "
            "cache_mb or workers. Everything up to the last checkpoint is safe: --resume continues"
        ) from error


@dataclass
class _TrainingProcess:
    """One of the processes that train a network together.

    All of them run the same steps. Code that may fail in only one of them is inside
    ``ranks.agreeing()``, where an error in one ends all.
    """

    config: TrainConfig
    folder: RunFolder
    compute: Compute
    ranks: Ranks
    say: Say
    resume: bool

    def __post_init__(self) -> None:
        folder = self.folder
        self.resumed = self.resume and folder.config.is_file()
        self.restored = self.resumed and folder.last.is_file()
        # `last.pt` of a head on features lacks the backbone: `best.safetensors` has it, once an
        # epoch has ended.
        self.fresh = not self.restored or (bool(self.config.freeze) and not folder.best.is_file())
        self.notes = list[str]()  # for the user, once the folder is locked

    def train(self) -> TrainResult:
        """Run all steps."""
        self.prepare()
        self.synchronise()
        with self.reserved():
            self.finish(self.loop())
        best = self.position.best_epoch
        row = self.position.history[best - 1] if best else {}
        metric = Metric.of(row) if row else self.config.validation.chosen_by
        return TrainResult(
            run=str(self.folder.path),
            epochs=self.position.epoch,
            best_epoch=best,
            metric=str(metric),
            set_size=metric.sets,
            accuracy=self.position.best_score,
            head=str(row["val_best_head"]) if row else None,
            score_kind=str(row["val_best_score_kind"]) if row else None,
            weight_decay=float(row["weight_decay"]) if "weight_decay" in row else None,
            seconds=self.position.seconds,
        )

    def prepare(self) -> None:
        """Open the data, build loss and network, and give the network its first weights."""
        config, ranks, notes = self.config, self.ranks, self.notes
        with ranks.agreeing():
            self.dataset = self.opened()
            ranks.check_same(facts(config, self.dataset, self.folder if self.resumed else None))
            planned = self.folder.read_config() if self.resumed else config
            self.planned_epochs = planned.epochs  # of the run before it was resumed
            self.thumbnails: bytes | None = None  # reference pictures of the classes
            if ranks.first:
                if self.resumed:
                    self.folder.check_resumable(config, self.dataset.classes)
                else:
                    self.folder.check_free(resume=self.resume)
                # Fails now if one is missing.
                self.thumbnails = reference_pictures(self.dataset)
            self.objective, network = seeded(config, self.dataset, ranks)
            notes += [*self.objective.notes, *unfreeze(network, config)]
            notes += notes_on_validation(config, self.dataset)
            notes += filter(None, [self.compute.note])
        self.weights: Weights | None = None  # that the network starts from
        if self.fresh and config.weights is not None:
            self.weights = ranks.in_turn(partial(open_weights, config.weights, config.backbone))
        with ranks.agreeing():
            if self.fresh:
                notes += start(network, config, self.objective, self.dataset, self.weights)
                notes += notes_on_start(config, self.dataset, on_gpu=self.compute.on_gpu)
            elif config.freeze:
                best = self.folder.best
                load_into(network, read_weights(best), origin=str(best))
        self.network = network.to(self.compute.device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack this form

    def opened(self) -> Dataset:
        """The data that this run needs."""
        config = self.config
        if config.optimiser.name == "lbfgs" and not self.ranks.alone:
            raise UsageError(
                "a head on kept features is solved for in one process: start it without torchrun, "
                "or train it in small steps with --set optimiser.name=sgd"
            )
        dataset = open_data(config, ["train", "val"] if config.epochs else ["train"])
        if config.skip_damaged:
            dataset, lines = without_damaged(dataset)
            self.notes += lines
        return dataset

    def synchronise(self) -> None:
        """Bring every process to the same step of the run, with its share of the batches."""
        config, ranks = self.config, self.ranks
        self.features = self.frozen_features()
        photos = self.photos()
        self.doubtful: bytes | None = None  # a CSV of photos that are left out
        if config.skip_doubtful and self.features is not None:
            self.say("looking for wrong labels in train")
            train, val = self.features
            train, note, self.doubtful = without_doubtful(train, self.dataset, ranks)
            self.features = train, val
            self.notes.append(note)
        self.sources: Sources | None = None  # None if there is nothing to train
        trainable: nn.Module = self.network
        if self.features is not None:
            self.sources = Sources(*self.features, workers=0)
            trainable = HeadOnFeatures(self.network, self.features[0])
        loss_fn = self.objective.loss_fn.to(self.compute.device)
        self.trained = TrainingState(trainable, loss_fn, config, self.compute, photos)
        with ranks.agreeing():
            self.position = Position()
            if self.restored:
                self.position = self.trained.load(self.folder.last, ranks)
        position = self.position
        ranks.check_same({"checkpoint": f"of step {position.step}, batch {position.batch}"})
        # Machines may decode at very different speeds.
        with ranks.agreeing(patiently=True):
            if position.epoch < config.epochs and self.sources is None:
                self.sources = Sources.of(
                    *(self.dataset, config, ranks),
                    on_gpu=self.compute.on_gpu,
                    photos=self.trained.photos,
                )
        if self.restored:
            self.notes += _notes_on_resuming(position, config, self.planned_epochs, ranks)
        position.processes = ranks.count

    def photos(self) -> RunPhotos:
        """The photos of the run, of which only those with features have been read."""
        # As the first process sees it, so that all do the same.
        recorded, *_ = self.ranks.all(self.folder.photos.is_file())
        photos = RunPhotos.of(self.dataset, self.config, self.weights, recorded=recorded)
        for name, features in zip(photos.hashes, self.features or (), strict=False):
            photos.note(name, features.ids, features.fingerprints)
        return photos

    def frozen_features(self) -> tuple[Features, Features] | None:
        """Features of `train` and `val`, computed by one process; None to train on pictures."""
        if not (self.config.freeze and self.config.epochs):
            return None
        run = self.folder.path
        backbone = frozen_backbone(self.config, self.network, run, self.compute, self.say)
        train, val = self.dataset.split("train"), self.dataset.split("val")
        return self.ranks.in_turn(lambda: (backbone.features(train), backbone.features(val)))

    @contextmanager
    def reserved(self) -> Iterator[None]:
        """Lock the folder while the block runs, and write the settings into it."""
        folder = self.folder
        with ExitStack() as stack:
            with self.ranks.agreeing():
                if self.ranks.first:
                    stack.enter_context(folder.locked())
                    if not self.resumed:
                        # Again, under the lock: another run may have started in it meanwhile.
                        folder.check_free(resume=self.resume)
                    folder.write_settings(self.config, self.dataset.classes, self.thumbnails)
                    if self.doubtful is not None:
                        write(folder.doubtful, self.doubtful)
                    if self.weights is not None and self.weights.provenance is not None:
                        write(folder.weights, self.weights.provenance.to_json().encode())
            yield

    def loop(self) -> Run:
        """Train to the last epoch; a run of no epochs only writes its checkpoint."""
        for note in self.notes:
            self.say(note)
        run = Run(
            *(self.config, self.folder, self.network, self.compute, self.objective),
            *(self.trained, self.position, self.say, self.ranks),
        )
        if self.config.optimiser.name == "lbfgs" and self.features is not None:
            if self.position.best_epoch is None:
                search(run, *self.features)
        elif self.sources is not None:
            with threads_for(self.trained.network, self.config.batch_size):
                run.fit(self.sources)
        elif not self.restored:
            run.save()
        return run

    def finish(self, run: Run) -> None:
        """Write the results of the run: its photos, weights, the report."""
        run.record_photos()  # unless an epoch has
        with self.ranks.agreeing(patiently=True):
            if not self.ranks.first:
                return
            if not self.folder.best.is_file():
                self.trained.save_weights(self.folder.best, self.network)
            from florilege.training.run_report import write_report  # matplotlib takes a second

            write_report(self.folder, self.config, self.position.history)


def _notes_on_resuming(
    position: Position, config: TrainConfig, planned_epochs: int, ranks: Ranks
) -> Iterator[str]:
    """Notes on a resumed run; more epochs than planned may raise the learning rate again."""
    if config.optimiser.name == "lbfgs":
        yield "the head is solved for already: nothing is left to train"
        return
    yield f"continuing after epoch {position.epoch} and step {position.step}"
    if position.processes != ranks.count:
        yield (
            f"the run had {position.processes} processes and now has {ranks.count}: the result is "
            "equally good, but not the same to the last bit"
        )
    before, now = (
        rate_share(config.schedule, step=position.epoch, steps_per_epoch=1, epochs=epochs)
        for epochs in (planned_epochs, config.epochs)
    )
    if now > before:
        yield (
            f"epochs was {planned_epochs} and is {config.epochs} now: the learning rate rises from "
            f"{before:.2g} to {now:.2g} of its peak. To continue at a low rate, start another run: "
            "--weights with this run folder, another --out and a small optimiser.learning_rate"
        )
