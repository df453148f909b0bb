"""The training loop: epochs of steps, an evaluation after each, checkpoints on the way."""

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from types import FrameType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from models.backbones import Network
from models.errors import UsageError
from models.export import PictureNetwork
from models.heads import by_head
from models.progress import Advance, progress
from training import checkpoint, history
from training.checkpoint import Position, Trained
from training.config import TrainConfig
from training.device import Compute, compiling
from training.evaluation import Validation, ValidationOf
from training.frozen.features import HeadOnFeatures
from training.loading import (
    Batch,
    EvaluationBatches,
    Sources,
    TrainingBatches,
    iterate,
    steps_per_epoch,
)
from training.objective import Objective
from training.optimisation import mixup
from training.optimisation.optimiser import rate_share, set_rate
from training.run_folder import RunFolder

Say = Callable[[str], None]


@dataclass
class Run:
    """The loop of one run and what it changes; ``say`` shows the user one line at a time."""

    config: TrainConfig
    folder: RunFolder
    network: Network
    compute: Compute
    objective: Objective
    trained: Trained
    position: Position
    say: Say

    def __post_init__(self) -> None:
        self.model = self.on_inputs(self.trained.network)
        self.measured = self.model
        if self.trained.average is not None:
            self.measured = self.on_inputs(self.trained.measured)
        # each size of batch apart, so that a resumed run meets the same code
        self.forward = (
            torch.compile(self.model, dynamic=False) if self.config.compile else self.model
        )
        self.clock = self.saved_at = time.monotonic()
        self.interruption = Interruption()
        self.append_events: Callable[[history.Row], None]
        restored = self.folder.last.is_file()
        self.saved_step = self.position.step if restored else None

    def on_inputs(self, network: nn.Module) -> nn.Module:
        """``network`` as it takes the inputs of a batch, on the device."""
        if not isinstance(network, HeadOnFeatures):
            wanted = self.config.preprocess
            network = PictureNetwork(network, wanted.mean, wanted.std)
        return network.to(self.compute.device)

    def fit(self, sources: Sources) -> None:
        """Train from the position to the last epoch, or until patience runs out."""
        config = self.config
        steps = steps_per_epoch(len(sources.training), config.batch_size, config.accumulate)
        total = steps * config.epochs
        self.clock = self.saved_at = time.monotonic()
        with (
            interruptible() as self.interruption,
            history.events(self.folder, self.position.epoch) as self.append_events,
            progress(total, "training") as advance,
        ):
            advance(self.position.step)
            while self.position.epoch < config.epochs and not self.out_of_patience():
                self.train_epoch(sources, steps, advance)
                self.end_epoch(self.validate(sources), steps)

    def train_epoch(self, sources: Sources, steps: int, advance: Advance) -> None:
        """The batches of this epoch that are not done yet."""
        position = self.position
        batches = TrainingBatches(
            sources.training, self.config, epoch=position.epoch, first=position.batch
        )
        self.model.train()
        stream = iterate(batches, workers=sources.workers, pin=self.compute.on_gpu)
        while group := list(islice(stream, self.config.accumulate)):
            loss, rows = self.train_step(group, steps), sum(len(batch.labels) for batch in group)
            position.loss_sum += loss * rows
            position.examples += rows
            position.classes_taught += self.objective.mean_set_size * rows
            position.batch += len(group)
            position.step += 1
            self.save_if_due()
            mean = position.loss_sum / position.examples
            advance(1, f"epoch {position.epoch + 1} loss {mean:.3f}")

    def train_step(self, group: Sequence[Batch], steps: int) -> float:
        """One step of the optimiser; returns the mean loss of its batches before the step."""
        config, trained = self.config, self.trained
        set_rate(trained.optimiser, self.rate(self.position.step, steps))
        trained.optimiser.zero_grad(set_to_none=True)
        shares = self.objective.shares([batch.labels for batch in group], soft=config.mixup > 0)
        losses = list[Tensor]()
        with compiling():
            for number, (batch, share) in enumerate(zip(group, shares, strict=True)):
                loss = share * self.loss(batch, self.position.batch + number)
                torch.autograd.backward(trained.scaler.scale(loss))
                losses.append(loss.detach())
        if config.optimiser.clip_norm is not None:
            trained.scaler.unscale_(trained.optimiser)
            torch.nn.utils.clip_grad_norm_(trained.network.parameters(), config.optimiser.clip_norm)
        trained.scaler.step(trained.optimiser)
        trained.scaler.update()
        value = float(torch.stack(losses).sum())
        if math.isnan(value):
            raise self.diverged(f"the loss became NaN at step {self.position.step + 1}")
        if trained.average is not None:
            trained.average.update_parameters(trained.network)
        return value

    def loss(self, batch: Batch, number: int) -> Tensor:
        """The mean loss of a batch, the ``number``-th of its epoch from 0."""
        config, device = self.config, self.compute.device
        images = batch.images.to(device, non_blocking=True)
        labels = batch.labels.to(device, non_blocking=True)
        mixture = None
        if config.mixup:
            mixture = mixup.draw(
                config.seed, self.position.epoch, number, alpha=config.mixup, size=len(labels)
            )
            images = mixup.mix_pictures(images, mixture)
        with self.compute.autocast():
            outputs = self.forward(images)
        if mixture is not None:
            classes = (outputs[0] if isinstance(outputs, tuple) else outputs).shape[1]
            labels = mixup.mix_labels(labels, mixture, classes=classes)
        return self.objective(outputs, labels, batch.rows)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate at a step of the run, with ``steps`` to an epoch."""
        config = self.config
        share = rate_share(config.schedule, step=step, steps_per_epoch=steps, epochs=config.epochs)
        return config.optimiser.learning_rate * share

    def validate(self, sources: Sources) -> Validation:
        """Figures on the validation pictures, prepared as the server prepares them."""
        self.model.eval()
        self.measured.eval()
        batches = EvaluationBatches(sources.validation, 2 * self.config.batch_size)
        stream = iterate(batches, workers=sources.workers, pin=self.compute.on_gpu)
        gathered = ValidationOf(
            rows=len(sources.validation), metric=self.config.validation.chosen_by
        )
        for batch in stream:
            logits = self.predict(batch.images)
            if not all(np.isfinite(values).all() for values in logits.values()):
                raise self.diverged(
                    f"logits on val are no longer finite after step {self.position.step}"
                )
            gathered.update(logits, batch.labels.numpy())
        return gathered.result()

    @torch.no_grad()
    def predict(self, images: Tensor) -> dict[str, NDArray[np.float32]]:
        """Logits by head of uint8 pictures ``(batch, height, width, 3)``."""
        self.save_if_due()
        with self.compute.autocast():
            outputs = self.measured(images.to(self.compute.device, non_blocking=True))
        found = by_head(self.objective.head, outputs)
        return {head: logits.float().cpu().numpy() for head, logits in found.items()}

    def end_epoch(self, validation: Validation, steps: int) -> None:
        """Count the epoch, keep the weights if they are the best, write everything down."""
        position = self.position
        self.count_time()
        position.epoch += 1
        better = position.best_score is None or validation.score > position.best_score
        if better:
            position.best_score, position.best_epoch = validation.score, position.epoch
            checkpoint.save_weights(self.folder.best, self.state())
        row = history.epoch_row(position, validation, rate=self.rate(position.step - 1, steps))
        position.history.append(row)
        position.batch = position.examples = 0
        position.loss_sum = position.classes_taught = 0.0
        history.write_metrics(self.folder, position.history)
        self.append_events(row)
        self.save()
        self.say(history.epoch_line(row, epochs=self.config.epochs, better=better))

    def state(self) -> Mapping[str, Tensor]:
        """The state of the whole network as it is now."""
        measured = self.trained.measured
        if isinstance(measured, HeadOnFeatures):
            return measured.joined(self.network)
        return measured.state_dict()

    def out_of_patience(self) -> bool:
        """Whether too many epochs have passed without a better one."""
        patience, best = self.config.validation.patience, self.position.best_epoch
        return patience is not None and best is not None and self.position.epoch - best >= patience

    def save_if_due(self) -> None:
        """Write ``last.pt`` when it is due, or when someone has asked for a stop."""
        due = self.config.checkpoint
        steps = due.every_steps is not None and self.position.step % due.every_steps == 0
        seconds = time.monotonic() - self.saved_at >= due.every_seconds
        due_now = self.trained.network.training and (steps or seconds)
        if not (self.interruption.requested or due_now):
            return
        weights = self.trained.network.parameters()
        if not all(bool(weight.isfinite().all()) for weight in weights):
            raise self.diverged(f"weights are no longer finite after step {self.position.step}")
        self.save()
        if self.interruption.requested:
            self.say(f"stopped; continue with: florilege train --resume --out {self.folder.path}")
            raise KeyboardInterrupt

    def save(self) -> None:
        """Write ``last.pt``."""
        self.count_time()
        checkpoint.save(self.folder.last, self.trained, self.position)
        self.saved_at, self.saved_step = time.monotonic(), self.position.step

    def diverged(self, what: str) -> UsageError:
        """The error for a run whose numbers are no longer finite, saying what to do."""
        kept = f"{self.folder.last} is still that of step {self.saved_step}"
        if self.saved_step is None:
            kept = "no checkpoint had been written yet"
        return UsageError(
            f"{what}: lower --set optimiser.learning_rate, add warm-up "
            "(--set schedule.warmup_epochs=1) or clip gradients (--set optimiser.clip_norm=1) and "
            f"train into another --out; {kept}"
        )

    def count_time(self) -> None:
        """Add the time since the last call to the seconds of the run."""
        now = time.monotonic()
        self.position.seconds += now - self.clock
        self.clock = now


class Interruption:
    """Whether someone has asked the run to stop."""

    def __init__(self) -> None:
        self.requested = False

    def request(self, _signal: int, _frame: FrameType | None) -> None:
        """Ask for a stop after the current step; the second request stops at once."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """While the block runs, SIGINT and SIGTERM only set a flag.

    Stopping in the middle of a step would leave weights and momentum of different steps. Outside
    the main thread Python allows no signal handlers, so nothing changes there.
    """
    interruption = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield interruption
        return
    signals = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.signal(number, interruption.request) for number in signals}
    try:
        yield interruption
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
