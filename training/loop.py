"""The training loop: epochs of steps, an evaluation after each, checkpoints on the way."""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from models.errors import UsageError
from models.export import PictureNetwork
from models.heads import by_head
from models.images import Preprocess
from models.progress import Advance, progress
from training import checkpoint, history
from training.checkpoint import Position, Trained
from training.config import TrainConfig
from training.device import Compute
from training.evaluation import Validation, ValidationOf
from training.loading import (
    Batch,
    EvaluationBatches,
    Sources,
    TrainingBatches,
    iterate,
    steps_per_epoch,
)
from training.objective import Objective
from training.optimiser import rate_share, set_rate
from training.run_folder import RunFolder

Say = Callable[[str], None]


@dataclass
class Run:
    """The loop of one run and what it changes; ``say`` takes one line at a time for people."""

    config: TrainConfig
    folder: RunFolder
    compute: Compute
    objective: Objective
    trained: Trained
    position: Position
    say: Say

    def __post_init__(self) -> None:
        size = Preprocess(image_size=self.config.image_size)
        pictures = PictureNetwork(self.trained.network, size.mean, size.std)
        self.pictures = pictures.to(self.compute.device)
        self.clock = self.saved_at = time.monotonic()
        self.interruption = Interruption()
        self.append_events: Callable[[history.Row], None]

    def fit(self, sources: Sources) -> None:
        """Train from the position to the last epoch, or until it stops getting better."""
        steps = steps_per_epoch(len(sources.training), self.config.batch_size)
        total = steps * self.config.epochs
        self.clock = self.saved_at = time.monotonic()
        with (
            interruptible() as self.interruption,
            history.events(self.folder, self.position.epoch) as self.append_events,
            progress(total, "training") as advance,
        ):
            advance(self.position.step)
            while self.position.epoch < self.config.epochs and not self.out_of_patience():
                self.train_epoch(sources, steps, advance)
                self.end_epoch(self.validate(sources), steps)

    def train_epoch(self, sources: Sources, steps: int, advance: Advance) -> None:
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
            position.classes_taught += self.objective.mean_set_size * len(batch.labels)
            position.batch += 1
            position.step += 1
            self.save_if_due()
            mean = position.loss_sum / position.examples
            advance(1, f"epoch {position.epoch + 1} loss {mean:.3f}")

    def train_step(self, batch: Batch, steps: int) -> float:
        """One step of the optimiser; gives the mean loss of the batch before it."""
        config, trained = self.config, self.trained
        set_rate(trained.optimiser, self.rate(self.position.step, steps))
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
            raise diverged(f"the loss became NaN at step {self.position.step + 1}")
        return value

    def rate(self, step: int, steps: int) -> float:
        """The learning rate at a step of the run, at ``steps`` an epoch."""
        config = self.config
        share = rate_share(config.schedule, step=step, steps_per_epoch=steps, epochs=config.epochs)
        return config.optimiser.learning_rate * share

    def validate(self, sources: Sources) -> Validation:
        """Figures on the validation pictures, prepared as the server prepares them."""
        self.pictures.eval()
        batches = EvaluationBatches(sources.validation, 2 * self.config.batch_size)
        stream = iterate(batches, workers=sources.workers, pin=self.compute.on_gpu)
        gathered = ValidationOf(
            rows=len(sources.validation), average_k=self.config.validation.average_k
        )
        for batch in stream:
            logits = self.predict(batch.images)
            if not all(np.isfinite(values).all() for values in logits.values()):
                raise diverged(
                    f"logits on val are no longer finite after step {self.position.step}"
                )
            gathered.update(logits, batch.labels.numpy())
        return gathered.result()

    @torch.no_grad()
    def predict(self, images: Tensor) -> dict[str, NDArray[np.float32]]:
        """Logits by head of uint8 pictures ``(batch, height, width, 3)``."""
        self.save_if_due()
        with self.compute.autocast():
            outputs = self.pictures(images.to(self.compute.device, non_blocking=True))
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
            checkpoint.save_weights(self.folder.best, self.trained.network)
        row = history.epoch_row(position, validation, rate=self.rate(position.step - 1, steps))
        position.history.append(row)
        position.batch = position.examples = 0
        position.loss_sum = position.classes_taught = 0.0
        history.write_metrics(self.folder, position.history)
        self.append_events(row)
        self.save()
        self.say(history.epoch_line(row, epochs=self.config.epochs, better=better))

    def out_of_patience(self) -> bool:
        """Whether too many epochs have passed without a better one."""
        patience, best = self.config.validation.patience, self.position.best_epoch
        return patience is not None and best is not None and self.position.epoch - best >= patience

    def save_if_due(self) -> None:
        """Write ``last.pt`` when it is time, or when someone asked for a stop."""
        due = self.config.checkpoint
        steps = due.every_steps is not None and self.position.step % due.every_steps == 0
        seconds = time.monotonic() - self.saved_at >= due.every_seconds
        due_now = self.trained.network.training and (steps or seconds)
        if not (self.interruption.requested or due_now):
            return
        self.save()
        if self.interruption.requested:
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


def diverged(what: str) -> UsageError:
    """The error of a run that left the range of numbers, with what to try."""
    return UsageError(
        f"{what}: lower --set optimiser.learning_rate, add warm-up "
        "(--set schedule.warmup_epochs=1) or clip gradients (--set optimiser.clip_norm=1)"
    )


class Interruption:
    """Whether someone asked the run to stop."""

    def __init__(self) -> None:
        self.requested = False

    def request(self, _signal: int, _frame: FrameType | None) -> None:
        """Ask for a stop after the step under way; asked twice, stop at once."""
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


@contextmanager
def interruptible() -> Iterator[Interruption]:
    """While the block runs, SIGINT and SIGTERM only set a flag.

    A step half done would leave weights and momentum that belong to different steps. Outside the
    main thread Python allows no handlers, and nothing changes.
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
