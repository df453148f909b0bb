"""The training run, from top to bottom: data, network, loop, checkpoints, report."""

import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import typer
from torch import Tensor

from data.sources import open_dataset
from models.backbones import Network, build
from models.errors import DataError, UsageError
from models.export import PictureNetwork
from models.heads import CosineHead, TwoHead, by_head
from models.images import Preprocess
from models.progress import Advance, progress
from training import checkpoint, history
from training.checkpoint import Position, Trained
from training.config import TrainConfig
from training.device import Compute, choose
from training.evaluation import Validation, collect_logits, measure
from training.interrupt import Interruption, interruptible
from training.loading import (
    Batch,
    EvaluationBatches,
    Sources,
    TrainingBatches,
    iterate,
    open_sources,
    steps_per_epoch,
)
from training.objective import Objective, make_objective
from training.optimiser import make_optimiser, set_rate
from training.report import write_report
from training.run_folder import RunFolder
from training.schedule import rate_share

Say = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class TrainResult:
    """What a run came to.

    Attributes:
        run: The run folder.
        epochs: Epochs done.
        best_epoch: The epoch whose weights are in ``best.safetensors``, or None for 0 epochs.
        average_k: The K that chose it.
        accuracy: Validation average-K accuracy there, or None.
        head: The head that reached it, or None.
        score_kind: Its score kind, or None.
        seconds: Time in the loop, over all sittings.
    """

    run: Path
    epochs: int
    best_epoch: int | None
    average_k: float
    accuracy: float | None
    head: str | None
    score_kind: str | None
    seconds: float

    def to_plain(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**asdict(self), "run": str(self.run)}


def _to_stderr(line: str) -> None:
    typer.echo(line, err=True)


def train_run(
    config: TrainConfig, out: Path, *, resume: bool = False, say: Say = _to_stderr
) -> TrainResult:
    """Train a network and leave everything about it in the run folder ``out``.

    Args:
        config: All settings.
        out: A new or empty folder, or with ``resume`` the folder of an interrupted run.
        resume: Go on from ``last.pt``; where there is none yet, start.
        say: Takes one line at a time for people.

    Raises:
        UsageError: Settings that do not fit together, or a folder that is not empty.
        DataError: Data that cannot be read or trained on.
        BundleError: A checkpoint or weights that do not fit, or a full disk.
        KeyboardInterrupt: Someone asked for a stop; ``last.pt`` is up to date.
    """
    compute = choose(config.device, config.precision)
    dataset = open_dataset(config.data, splits=["train", "val"] if config.epochs else ["train"])
    train = dataset.split("train")
    if len(train) < 2:
        raise DataError(f"{config.data} has {len(train)} training pictures, at least 2 are needed")
    counts = torch.bincount(torch.from_numpy(train.labels), minlength=len(dataset.classes))
    objective = make_objective(
        config.loss_name,
        config.loss_parameters,
        head=config.head,
        class_counts=counts.tolist(),
        rows=len(train),
    )
    torch.manual_seed(config.seed)
    trained = _build(config, objective, classes=len(dataset.classes), compute=compute)
    folder = RunFolder(out)
    if resume and folder.config.is_file():
        folder.check_resumable(config)
    else:
        folder.create()
    folder.write_settings(config, dataset.classes)
    position = Position()
    if resume and folder.last.is_file():
        position = checkpoint.load(folder.last, trained)
        say(f"going on at epoch {position.epoch + 1}, step {position.step}")
    for note in objective.notes:
        say(note)
    run = Run(config, folder, compute, objective, trained, position, say)
    if position.epoch < config.epochs:
        preprocess = Preprocess(image_size=config.image_size, crop_fraction=config.crop_fraction)
        run.fit(open_sources(train, dataset.split("val"), config, preprocess))
    if not folder.best.is_file():
        checkpoint.save_weights(folder.best, trained.network)
    if not folder.last.is_file():
        checkpoint.save(folder.last, trained, position)
    write_report(folder, config, position.history)
    return run.result()


def _build(config: TrainConfig, objective: Objective, *, classes: int, compute: Compute) -> Trained:
    """The network on its device, and the optimiser over it."""
    network = build_network(config, objective.head, classes, weights=config.weights)
    if isinstance(network.head, TwoHead) and objective.average_k is not None:
        network.head.start_multi_label_at(min(objective.average_k, classes))
    if isinstance(network.head, CosineHead) and objective.scale is not None:
        network.head.scale.fill_(objective.scale)
    _try_out(network, config)
    network = network.to(compute.device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stubs lack this form
    loss_fn = objective.loss_fn.to(compute.device)
    return Trained(network, make_optimiser(network, loss_fn, config.optimiser), loss_fn)


def build_network(
    config: TrainConfig, head: str, classes: int, *, weights: str | None = None
) -> Network:
    """The network that the settings describe.

    Raises:
        UsageError: There is no such backbone.
        BundleError: The weights do not fit it.
    """
    try:
        return build(config.backbone, classes, head, weights, image_size=config.image_size)
    except ValueError as error:
        raise UsageError(str(error)) from error


def _try_out(network: Network, config: TrainConfig) -> None:
    """Refuse a picture size that the backbone cannot take, before any data is read."""
    size = config.image_size
    try:
        with torch.no_grad():
            network.eval()(torch.zeros(1, 3, size, size))
    except (RuntimeError, AssertionError) as error:
        raise UsageError(
            f"{config.backbone} cannot take pictures of {size} px: {error}; try another "
            "--image-size"
        ) from error


class Run:
    """The loop of one run and what it changes.

    Args:
        config: All settings.
        folder: Where it writes.
        compute: Device and precision.
        objective: The loss.
        trained: Network and optimiser, at ``position``.
        position: Where the run stands.
        say: Takes one line at a time for people.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: RunFolder,
        compute: Compute,
        objective: Objective,
        trained: Trained,
        position: Position,
        say: Say,
    ) -> None:
        self.config = config
        self.folder = folder
        self.compute = compute
        self.objective = objective
        self.trained = trained
        self.position = position
        self.say = say
        size = Preprocess(image_size=config.image_size)
        pictures = PictureNetwork(trained.network, size.mean, size.std)
        self.pictures = pictures.to(compute.device)
        self.clock = self.saved_at = time.monotonic()

    def fit(self, sources: Sources) -> None:
        """Train from the position to the last epoch, or until it stops getting better."""
        steps = steps_per_epoch(len(sources.training), self.config.batch_size)
        total = steps * self.config.epochs
        self.clock = self.saved_at = time.monotonic()
        with interruptible() as interruption, progress(total, "training") as advance:
            advance(self.position.step)
            while self.position.epoch < self.config.epochs and not self.out_of_patience():
                self.train_epoch(sources, steps, advance, interruption)
                validation = self.validate(sources, interruption)
                self.end_epoch(validation, steps)

    def train_epoch(
        self, sources: Sources, steps: int, advance: Advance, interruption: Interruption
    ) -> None:
        """The batches of this epoch that are not done yet."""
        position = self.position
        batches = TrainingBatches(
            sources.training, self.config, epoch=position.epoch, first=position.batch
        )
        self.pictures.train()
        for batch in iterate(batches, workers=sources.workers, pin=self.compute.on_gpu):
            loss = self.train_step(batch, steps)
            position.loss_sum += loss * len(batch.labels)
            position.examples += len(batch.labels)
            position.batch += 1
            position.step += 1
            self.save_if_due(interruption)
            mean = position.loss_sum / position.examples
            advance(1, f"epoch {position.epoch + 1} loss {mean:.3f}")

    def train_step(self, batch: Batch, steps: int) -> float:
        """One step of the optimiser; gives the mean loss of the batch before it."""
        config, trained = self.config, self.trained
        share = rate_share(
            config.schedule, step=self.position.step, steps_per_epoch=steps, epochs=config.epochs
        )
        set_rate(trained.optimiser, config.optimiser.learning_rate * share)
        device = self.compute.device
        images = batch.images.to(device, non_blocking=True)
        labels = batch.labels.to(device, non_blocking=True)
        with self.compute.autocast():
            outputs = self.pictures(images)
        loss = self.objective(outputs, labels, batch.rows)
        trained.optimiser.zero_grad(set_to_none=True)
        torch.autograd.backward(loss)
        if config.optimiser.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(trained.network.parameters(), config.optimiser.clip_norm)
        trained.optimiser.step()
        value = float(loss.detach())
        if value != value:
            raise UsageError(
                f"the loss became NaN at step {self.position.step + 1}: lower "
                "--set optimiser.learning_rate, add warm-up (--set schedule.warmup_epochs=1) or "
                "clip gradients (--set optimiser.clip_norm=1)"
            )
        return value

    def validate(self, sources: Sources, interruption: Interruption) -> Validation:
        """Figures on the validation pictures, prepared as the server prepares them."""
        self.pictures.eval()
        batches = EvaluationBatches(sources.validation, 2 * self.config.batch_size)
        stream = iterate(batches, workers=sources.workers, pin=self.compute.on_gpu)
        predict = partial(self.predict, interruption)
        logits, labels = collect_logits(predict, stream)
        return measure(logits, labels, average_k=self.config.validation.average_k)

    @torch.no_grad()
    def predict(self, interruption: Interruption, images: Tensor) -> dict[str, Tensor]:
        """Logits by head of uint8 pictures ``(batch, height, width, 3)``."""
        self.save_if_due(interruption)
        with self.compute.autocast():
            outputs = self.pictures(images.to(self.compute.device, non_blocking=True))
        return by_head(self.objective.head, outputs)

    def end_epoch(self, validation: Validation, steps: int) -> None:
        """Count the epoch, keep the weights if they are the best, write everything down."""
        position, config = self.position, self.config
        self.count_time()
        position.epoch += 1
        better = position.best_score is None or validation.score > position.best_score
        if better:
            position.best_score, position.best_epoch = validation.score, position.epoch
            checkpoint.save_weights(self.folder.best, self.trained.network)
        last = rate_share(
            config.schedule, step=position.step - 1, steps_per_epoch=steps, epochs=config.epochs
        )
        row = history.epoch_row(position, validation, rate=config.optimiser.learning_rate * last)
        position.history.append(row)
        position.batch = position.examples = 0
        position.loss_sum = 0.0
        history.write_metrics(self.folder, position.history)
        history.write_events(self.folder, row)
        self.save()
        self.say(history.epoch_line(row, epochs=config.epochs, better=better))

    def out_of_patience(self) -> bool:
        """Whether too many epochs have passed without a better one."""
        patience, best = self.config.validation.patience, self.position.best_epoch
        return patience is not None and best is not None and self.position.epoch - best >= patience

    def save_if_due(self, interruption: Interruption) -> None:
        """Write ``last.pt`` when it is time, or when someone asked for a stop."""
        due = self.config.checkpoint
        steps = due.every_steps is not None and self.position.step % due.every_steps == 0
        seconds = time.monotonic() - self.saved_at >= due.every_seconds
        due_now = self.trained.network.training and (steps or seconds)
        if not (interruption.requested or due_now):
            return
        self.save()
        if interruption.requested:
            self.say(f"stopped; go on with: florilege train --resume --out {self.folder.path}")
            raise KeyboardInterrupt

    def save(self) -> None:
        """Write ``last.pt``."""
        self.count_time()
        checkpoint.save(self.folder.last, self.trained, self.position)
        self.saved_at = time.monotonic()

    def count_time(self) -> None:
        """Add the time since the last call to the seconds of the run."""
        now = time.monotonic()
        self.position.seconds += now - self.clock
        self.clock = now

    def result(self) -> TrainResult:
        """What the run came to."""
        position = self.position
        best = position.best_epoch
        row = position.history[best - 1] if best else {}
        return TrainResult(
            run=self.folder.path,
            epochs=position.epoch,
            best_epoch=best,
            average_k=float(row.get("val_average_k", self.config.validation.average_k)),
            accuracy=position.best_score,
            head=str(row["val_best_head"]) if row else None,
            score_kind=str(row["val_best_score_kind"]) if row else None,
            seconds=position.seconds,
        )
