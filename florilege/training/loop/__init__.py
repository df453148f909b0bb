"""The loop of a run: epochs of steps, an evaluation after each, checkpoints in between."""

import math
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from florilege.errors import UsageError
from florilege.models.backbones import Network, PictureNetwork
from florilege.models.heads import by_head, exact_float32
from florilege.terminal import Advance, is_step, progress
from florilege.training.batches import Batch, BatchLoader, Sources
from florilege.training.batches.augmentation import cut_mixed, mixed
from florilege.training.config import TrainConfig
from florilege.training.configuration import RunFolder, write
from florilege.training.frozen import HeadOnFeatures
from florilege.training.loop.evaluation import (
    Row,
    Validation,
    ValidationMeter,
    epoch_line,
    epoch_row,
    events,
    merit,
)
from florilege.training.loop.training_state import (
    Position,
    TrainingState,
    rate_share,
)
from florilege.training.machines import (
    ALONE,
    Compute,
    Ranks,
    SharedFlags,
    compiled,
    compiling,
    interruptible,
)
from florilege.training.network import Objective

Say = Callable[[str], None]
Record = Callable[[Row], None]


@dataclass
class Run:
    """The loop of one run and what it changes; ``say`` shows the user one line at a time."""

    config: TrainConfig
    folder: RunFolder
    network: Network
    compute: Compute
    objective: Objective
    trained: TrainingState
    position: Position
    say: Say
    ranks: Ranks = ALONE

    def __post_init__(self) -> None:
        model = self.on_inputs(self.trained.network)
        self.measured = model
        if self.trained.average is not None:
            self.measured = self.on_inputs(self.trained.measured)
        self.averaging = self.ranks.averaging(model)
        self.forward: Callable[[Tensor], Tensor | tuple[Tensor, ...]] = self.averaging
        self.compiles_next = self.config.compile
        sums = (self.position.loss_sum, self.position.classes_taught)
        self.sums = torch.tensor(sums, dtype=torch.float64, device=self.compute.device)
        self.clock = self.saved_at = time.monotonic()
        self.stop, self.shared_flags = threading.Event(), SharedFlags(self.ranks)
        self.saved_step = self.position.step if self.folder.last.is_file() else None

    def on_inputs(self, network: nn.Module) -> nn.Module:
        """``network`` on the device, wrapped to take the inputs of a batch."""
        if not isinstance(network, HeadOnFeatures):
            preprocess = self.config.preprocess
            network = PictureNetwork(network, preprocess.mean, preprocess.std)
        return network.to(self.compute.device)

    def fit(self, sources: Sources) -> None:
        """Train from the position to the last epoch, or until patience runs out."""
        config = self.config
        # its workers prepare the batches of every epoch
        loader = BatchLoader(sources, config, self.ranks, pin=self.compute.on_gpu)
        steps = -(-loader.training_batches // config.accumulate)
        if config.compile:
            self.forward = compiled(self.averaging, rows=loader.usual_rows)
        self.settle(sources)
        self.clock = self.saved_at = time.monotonic()
        with ExitStack() as stack:
            self.stop = stack.enter_context(interruptible())
            record: Record | None = None
            if self.ranks.first:
                record = stack.enter_context(events(self.folder.events, self.position.epoch))
            advance = stack.enter_context(progress(steps * config.epochs, "training"))
            advance(self.position.step)
            while self.position.epoch < config.epochs and not self.out_of_patience():
                self.train_epoch(loader, steps, advance)
                self.end_epoch(self.validate(loader), steps, record)

    def settle(self, sources: Sources) -> None:
        """Let ``DistributedDataParallel`` fix the order of its messages before the first step.

        The first backward pass fixes it; this one has no other effect. The order decides how sums
        over processes are rounded, and a resumed run must round like an uninterrupted one.
        """
        if self.ranks.alone:
            return
        self.averaging.eval()
        with self.compute.autocast():
            inputs = sources.blank(self.config.preprocess.image_size)
            outputs = self.averaging(inputs.to(self.compute.device))
        outputs_by_head = by_head(self.objective.head, outputs).values()
        torch.autograd.backward(
            torch.stack([logits.float().sum() for logits in outputs_by_head]).sum()
        )
        self.trained.optimiser.zero_grad(set_to_none=True)

    def train_epoch(self, loader: BatchLoader, steps: int, advance: Advance) -> None:
        """Train on the batches of this epoch that are not done yet."""
        position = self.position
        self.averaging.train()
        stream = loader.training(position.epoch, position.batch)
        while group := list(islice(stream, self.config.accumulate)):
            loss, rows = self.train_step(group, steps), sum(len(batch.whole) for batch in group)
            self.sums[0] += loss.double() * rows
            self.sums[1] += self.objective.mean_set_size * rows
            position.examples += rows
            position.batch += len(group)
            position.step += 1
            note = ""
            if position.step % self.compute.steps_between_reads == 0:
                self.read_sums()
                mean = position.loss_sum / position.examples
                note = f"epoch {position.epoch + 1} loss {mean:.3f}"
            self.save_if_due()
            advance(1, note)
        self.read_sums()

    def train_step(self, group: Sequence[Batch], steps: int) -> Tensor:
        """One step of the optimiser; returns the mean loss of its batches before the step.

        The loss stays on the device, so that nothing here waits for it. With several processes
        it is this one's part times their number; its mean over them is the loss of the batches.
        """
        config, trained, ranks = self.config, self.trained, self.ranks
        ranks.seed(config.seed, self.position.step)
        trained.set_rate(self.rate(self.position.step, steps))
        trained.optimiser.zero_grad(set_to_none=True)
        whole = [batch.whole for batch in group]
        shares = self.objective.shares(whole, soft=config.mixes is not None, ranks=ranks)
        losses = list[Tensor]()
        with compiling(self.say if self.compiles_next else None):
            for number, (batch, share) in enumerate(zip(group, shares, strict=True)):
                with ranks.exchanging(self.averaging, last=number + 1 == len(group)):
                    loss = share * self.loss(batch, self.position.batch + number)
                    torch.autograd.backward(trained.scaler.scale(loss))
                losses.append(loss.detach())
        self.compiles_next = False
        if config.optimiser.clip_norm is not None:
            # In fp16 gradients are scaled up, and the limit is for the true ones.
            trained.scaler.unscale_(trained.optimiser)
            torch.nn.utils.clip_grad_norm_(trained.network.parameters(), config.optimiser.clip_norm)
        trained.scaler.step(trained.optimiser)
        trained.scaler.update()
        if trained.average is not None:
            trained.average.update_parameters(trained.network)
        return torch.stack(losses).sum()

    def loss(self, batch: Batch, number: int) -> Tensor:
        """The mean loss of a batch, the ``number``-th of its epoch from 0."""
        config, device = self.config, self.compute.device
        images = batch.images.to(device, non_blocking=True)
        labels = batch.labels.to(device, non_blocking=True)
        if config.mixes:
            mix, alpha = (cut_mixed, config.cutmix) if config.cutmix else (mixed, config.mixup)
            # Another seed in each process: partners are drawn among its own part of the batch.
            number = number * self.ranks.count + self.ranks.rank
            seed = (config.seed, self.position.epoch, number)
            classes = len(next(self.network.head.parameters()))
            images, labels = mix(images, labels, alpha, classes=classes, seed=seed)
        with self.compute.autocast():
            outputs = self.forward(images)
        return self.objective(outputs, labels, batch.rows)

    def rate(self, step: int, steps: int) -> float:
        """The learning rate at a step of the run, with ``steps`` to an epoch."""
        config = self.config
        share = rate_share(config.schedule, step=step, steps_per_epoch=steps, epochs=config.epochs)
        return config.optimiser.peak_rate * share

    def validate(self, loader: BatchLoader) -> Validation:
        """Figures on the validation pictures, preprocessed as on the server.

        The processes take batches in turn; each reduces its own, and the first joins the rest.
        """
        # Batch norm has other statistics in each process, and one network is measured.
        self.ranks.broadcast_buffers(self.trained.network, self.trained.measured)
        self.averaging.eval()
        self.measured.eval()
        stream, rows = loader.validation(), len(loader.sources.validation)
        figures = ValidationMeter(rows=rows, metric=self.config.validation.chosen_by)
        finite = True
        # As many rounds in every process, also where batches run out: each exchanges the flags of
        # `save_if_due`. So a logit that is not finite is raised only after them.
        for _ in range(loader.validation_rounds):
            self.save_if_due()
            batch = next(stream, None)
            if batch is not None:
                logits = self.predict(batch.images)
                finite &= all(bool(np.isfinite(values).all()) for values in logits.values())
                if finite:
                    figures.update(logits, batch.labels.numpy())
        with self.ranks.agreeing():
            if not finite:
                raise self.diverged(
                    f"logits on val are no longer finite after step {self.position.step}"
                )
        meters = self.ranks.gather(figures)
        result = ValidationMeter.joined(meters).result() if self.ranks.first else None
        return cast(Validation, self.ranks.all(result)[0])

    @torch.no_grad()
    def predict(self, images: Tensor) -> dict[str, NDArray[np.float32]]:
        """Logits by head of uint8 pictures ``(batch, height, width, 3)``, in float32 as served."""
        with exact_float32():
            outputs = self.measured(images.to(self.compute.device, non_blocking=True))
        logits_by_head = by_head(self.objective.head, outputs)
        return {head: logits.float().cpu().numpy() for head, logits in logits_by_head.items()}

    def end_epoch(self, validation: Validation, steps: int, record: Record | None) -> None:
        """Finish the epoch: save the weights if they are the best, and write the metrics.

        ``record`` appends to the events; None in a process that writes nothing.
        """
        position = self.position
        self.count_time()
        position.epoch += 1
        means = np.mean(self.ranks.all((position.loss_sum, position.classes_taught)), axis=0)
        position.loss_sum, position.classes_taught = means.tolist()
        rate = self.rate(position.step - 1, steps)
        row = epoch_row(position, validation, learning_rate=rate)
        best = position.best_epoch
        better = best is None or merit(row) > merit(position.history[best - 1])
        if better:
            position.best_score, position.best_epoch = validation.score, position.epoch
        position.history.append(row)
        position.batch = position.examples = 0
        position.loss_sum = position.classes_taught = 0.0
        self.sums.zero_()
        # Before there are weights that could be exported without the hashes of their photos.
        self.record_photos()
        with self.ranks.agreeing():
            if math.isnan(float(row["train_loss"])):
                raise self.diverged(f"the loss became NaN by step {position.step}")
            if record is not None:
                if better:
                    self.trained.save_weights(self.folder.best, self.network)
                self.folder.write_metrics(position.history)
                record(row)
        self.save()
        self.say(epoch_line(row, epochs=self.config.epochs, better=better))

    def out_of_patience(self) -> bool:
        """Whether too many epochs have passed without a better one."""
        patience, best = self.config.validation.patience, self.position.best_epoch
        return patience is not None and best is not None and self.position.epoch - best >= patience

    def read_sums(self) -> None:
        """Copy the sums over the epoch to the host, which waits for the device."""
        self.position.loss_sum, self.position.classes_taught = self.sums.tolist()

    def save_if_due(self) -> None:
        """Write ``last.pt`` if it is due or a stop was requested."""
        config, position = self.config.checkpoint, self.position
        training, every = self.trained.network.training, config.every_steps
        stop, time_due, diverged = self.shared_flags.any_set(
            self.stop.is_set(),
            training and time.monotonic() - self.saved_at >= config.every_seconds,
            math.isnan(position.loss_sum),
        )
        step_due = training and every is not None and position.step % every == 0
        if not (stop or time_due or diverged or step_due):
            return
        with self.ranks.agreeing():
            self.read_sums()
            self.check_finite(diverged=diverged)
        self.save()
        if stop:
            self.explain_stop()
            raise KeyboardInterrupt

    def explain_stop(self) -> None:
        """Say how to continue, unless a longer command does."""
        command = f"with: florilege train --resume --out {self.folder.path}"
        if not self.ranks.alone:
            command = "with the same command and --resume"
        if not is_step():
            self.say(f"stopped; continue {command}")

    def check_finite(self, *, diverged: bool) -> None:
        """Refuse to save a run that has diverged, in this process or another."""
        step = self.position.step
        if diverged or math.isnan(self.position.loss_sum):
            raise self.diverged(f"the loss became NaN by step {step}")
        if not all(bool(weight.isfinite().all()) for weight in self.trained.network.parameters()):
            raise self.diverged(f"weights are no longer finite after step {step}")

    def save(self) -> None:
        """Write ``last.pt``."""
        self.count_time()
        sums = self.ranks.all((self.position.loss_sum, self.position.classes_taught))
        self.trained.photos.gather(self.ranks)
        with self.ranks.agreeing():
            if self.ranks.first:
                self.trained.save(self.folder.last, self.position, sums)
        self.saved_at, self.saved_step = time.monotonic(), self.position.step
        # Flags that are still under way asked for this checkpoint.
        self.shared_flags = SharedFlags(self.ranks)

    def record_photos(self) -> None:
        """Write which photos the run uses, unless that is written; after an epoch all are known."""
        photos, workers = self.trained.photos, self.config.workers
        if photos.recorded:
            return
        photos.gather(self.ranks)
        with self.ranks.agreeing(patiently=True):
            if self.ranks.first:
                write(
                    self.folder.photos,
                    photos.all(workers=self.ranks.cores if workers is None else workers).to_bytes(),
                )
        photos.recorded = True

    def diverged(self, what: str) -> UsageError:
        """The error for a run whose numbers are no longer finite, saying what to do."""
        checkpoint_note = f"{self.folder.last} is still that of step {self.saved_step}"
        if self.saved_step is None:
            checkpoint_note = "no checkpoint has been written yet"
        return UsageError(
            f"{what}: lower --set optimiser.learning_rate, add warm-up "
            "(--set schedule.warmup_epochs=1) or clip gradients (--set optimiser.clip_norm=1) and "
            f"train into another --out; {checkpoint_note}"
        )

    def count_time(self) -> None:
        """Add the time since the last call to the seconds of the run."""
        now = time.monotonic()
        self.position.seconds += now - self.clock
        self.clock = now
