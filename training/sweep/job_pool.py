"""The runs of a sweep, one at a time on each device."""

import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.queues import Queue
from pathlib import Path

import torch

from florilege.errors import FlorilegeError
from florilege.terminal import say
from florilege.training.config import TrainConfig
from florilege.training.device import choose
from florilege.training.sweep.sweep_record import RunRecord
from florilege.training.train import TrainResult, train_run


@dataclass(frozen=True, kw_only=True)
class TrainingJob:
    """A run to train or to continue."""

    run: RunRecord
    name: str  # prefix of each of its lines
    config: TrainConfig
    folder: Path

    def __call__(self) -> TrainResult | str:
        """Train; returns the result, or why the run failed."""
        try:
            return train_run(
                self.config, self.folder, resume=True, say=lambda line: say(f"[{self.name}] {line}")
            )
        except Exception as error:  # such as a plain RuntimeError for lack of memory
            expected = isinstance(error, FlorilegeError)
            return str(error) if expected else f"{type(error).__name__}: {error}"


def devices(device: str) -> list[str]:
    """The numbers of several GPUs; else, or for ``cpu``, one empty name. Errors as in `choose`."""
    if not choose(device, "fp32").on_gpu or torch.cuda.device_count() == 1:
        return [""]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]


def outcomes(
    jobs: Sequence[TrainingJob], on: Sequence[str]
) -> Iterator[tuple[TrainingJob, TrainResult | str]]:
    """Each job with its result, or why it failed, in the order in which they end.

    On a single device jobs run in this process; of several devices each has a process.

    Raises:
        FlorilegeError: A process died.
        KeyboardInterrupt: The user stopped it; running jobs have been saved.
    """
    if len(on) == 1:
        yield from ((job, job()) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    free: Queue[str] = context.Queue()
    for device in on:
        free.put(device)
    waiting, running = deque(jobs), dict[Future[TrainResult | str], TrainingJob]()
    with ProcessPoolExecutor(len(on), context, _take_device, (free,)) as pool:
        while waiting or running:
            while waiting and len(running) < len(on):  # queued jobs would outlive a Ctrl-C
                job = waiting.popleft()
                running[pool.submit(job)] = job
            ended, _ = wait(running, return_when=FIRST_COMPLETED)
            for future in ended:
                try:
                    yield running.pop(future), future.result()
                except BrokenProcessPool as error:
                    raise FlorilegeError(
                        "a training process was killed, perhaps because memory ran out; repeat "
                        "the command with --resume"
                    ) from error


def _take_device(free: "Queue[str]") -> None:
    """Make only one GPU visible to this process."""
    os.environ["CUDA_VISIBLE_DEVICES"] = free.get()
