"""The runs of a sweep, trained one at a time on each device."""

import multiprocessing
import os
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import Queue
from pathlib import Path
from typing import NamedTuple

import torch

from florilege.cores import cores, share_cores
from florilege.errors import FlorilegeError
from florilege.plugins.papers.sweep.sweep_record import Record, RunRecord
from florilege.terminal import say
from florilege.training.config import TrainConfig
from florilege.training.device import choose
from florilege.training.train import TrainResult, train_run


class _Job(NamedTuple):
    """A run to train or to continue."""

    run: RunRecord
    name: str  # prefix of each of its lines
    config: TrainConfig
    folder: Path


def train_runs(record: Record, configs: Sequence[TrainConfig], folder: Path) -> None:
    """Train the runs of a sweep that are not finished, failed ones again, and record each.

    ``configs`` are the settings of each run. On a single device runs are trained in this process;
    of several GPUs each has a process.

    Raises:
        UsageError: As in `choose`.
        FlorilegeError: A process died.
        KeyboardInterrupt: The user stopped it; running jobs have been saved.
    """
    count = len(record.runs)
    jobs = [
        _Job(run, f"{number}/{count} {run}", config, folder / run.run)
        for number, (run, config) in enumerate(zip(record.runs, configs, strict=True), start=1)
        if run.status != "finished"
    ]
    if len(jobs) < count:
        say(f"{count - len(jobs)} of {count} runs are finished already")
    on = _devices(configs[0].device)
    alone = 1 if configs[0].freeze and len(on) > 1 else 0  # the first computes features for all
    for part, devices in ((jobs[:alone], on[:1]), (jobs[alone:], on)):
        for run, outcome in _outcomes(part, devices):
            _note(run, outcome)
            record.write(folder)


def _note(run: RunRecord, outcome: TrainResult | str) -> None:
    """Enter the result of a run into its record, or why it failed."""
    if isinstance(outcome, str):
        run.status, run.error = "failed", outcome
        say(f"failed: {run}: {outcome}")
        return
    run.status, run.error, run.seconds = "finished", None, outcome.seconds
    run.accuracy, run.best_epoch = outcome.accuracy, outcome.best_epoch
    run.head, run.score_kind = outcome.head, outcome.score_kind


def _devices(device: str) -> list[str]:
    """The numbers of the GPUs if there are several; otherwise, and for ``cpu``, one empty name."""
    if not choose(device, "fp32").on_gpu or torch.cuda.device_count() == 1:
        return [""]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return visible.split(",") if visible else [str(i) for i in range(torch.cuda.device_count())]


def _outcomes(
    jobs: Sequence[_Job], devices: Sequence[str]
) -> Iterator[tuple[RunRecord, TrainResult | str]]:
    """Each run with its result, or why it failed, in the order in which they end."""
    if len(devices) == 1:
        yield from ((job.run, _outcome(job)) for job in jobs)
        return
    context = multiprocessing.get_context("spawn")
    free: Queue[str] = context.Queue()
    for device in devices:
        free.put(device)
    waiting, running = deque(jobs), dict[Future[TrainResult | str], RunRecord]()
    count = max(1, min(len(devices), len(jobs)))
    with ProcessPoolExecutor(count, context, _take_device, (free, count)) as pool:
        while waiting or running:
            while waiting and len(running) < len(devices):  # queued jobs would outlive a Ctrl-C
                job = waiting.popleft()
                running[pool.submit(_outcome, job)] = job.run
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                try:
                    yield running.pop(future), future.result()
                except BrokenProcessPool as error:
                    raise FlorilegeError(
                        "a training process was killed, perhaps because memory ran out; repeat "
                        "the command with --resume"
                    ) from error


def _take_device(free: "Queue[str]", processes: int) -> None:
    """Make only one GPU visible to this process, with its part of the cores."""
    os.environ["CUDA_VISIBLE_DEVICES"] = free.get()
    share_cores(processes)
    torch.set_num_threads(cores())


def _outcome(job: _Job) -> TrainResult | str:
    """The result of a run, or why it failed."""
    _, name, config, folder = job
    try:
        return train_run(config, folder, resume=True, say=lambda line: say(f"[{name}] {line}"))
    except Exception as error:  # such as a plain RuntimeError for lack of memory
        expected = isinstance(error, FlorilegeError)
        return str(error) if expected else f"{type(error).__name__}: {error}"
