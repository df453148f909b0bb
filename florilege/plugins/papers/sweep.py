"""A sweep from a grid to a table: train, choose on val, measure on test once."""

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.queues import Queue
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from florilege.calibration.calibrate import calibrate_bundle, evaluate_bundle
from florilege.calibration.settings import DEFAULT_KS
from florilege.cores import cores, share_cores
from florilege.errors import FlorilegeError, UsageError, os_error_as
from florilege.files import new_folder_lock
from florilege.models.runtime import import_runtime
from florilege.plugins.papers.sweep_record import (
    FIGURES,
    PICTURE,
    Changes,
    Mean,
    Record,
    RunRecord,
    words_of,
)
from florilege.terminal import say
from florilege.training.config import TrainConfig
from florilege.training.configuration import RunFolder
from florilege.training.machines import Compute
from florilege.training.network import Objective
from florilege.training.preparation import open_data
from florilege.training.run_export import export_run
from florilege.training.train import TrainResult, train_run

if TYPE_CHECKING:
    from matplotlib.figure import Figure


class _Job(NamedTuple):
    """A run to train or to continue."""

    run: RunRecord
    name: str  # prefix of each of its lines
    config: TrainConfig
    folder: Path


def _train_runs(record: Record, configs: Sequence[TrainConfig], folder: Path) -> None:
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
    # The first run alone: it computes the features of the frozen network, which all others read.
    alone = 1 if configs[0].freeze and len(on) > 1 else 0
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
    if not Compute.of(device, "fp32").on_gpu or torch.cuda.device_count() == 1:
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
    # Not forked: CUDA does not work in the child of a process that has used it.
    context = multiprocessing.get_context("spawn")
    free: Queue[str] = context.Queue()
    for device in devices:
        free.put(device)
    waiting, running = deque(jobs), dict[Future[TrainResult | str], RunRecord]()
    count = max(1, min(len(devices), len(jobs)))
    with ProcessPoolExecutor(count, context, _take_device, (free, count)) as pool:
        while waiting or running:
            # No more than there are devices: what waits in the pool would still run after Ctrl-C.
            while waiting and len(running) < len(devices):
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


ConfigOf = Callable[[Changes, int], TrainConfig]
"""The settings of a run, from the changes of a point of the grid and a seed."""


def sweep(
    config_of: ConfigOf,
    points: Sequence[Changes],
    seeds: Sequence[int],
    folder: Path,
    *,
    resume: bool = False,
) -> Record:
    """Train every setting with every seed, choose one on val and measure its seeds on test.

    The record is also in ``results.json``. Some runs may have failed.

    ``config_of`` makes the settings of each run; all are checked before anything is trained.
    ``folder`` is new or empty, or with ``resume`` that of a sweep, whose finished runs stay.

    Raises:
        UsageError: Settings that cannot be compared or that differ from those the sweep started
            with, a folder that is not empty or that another sweep uses, or no ONNX Runtime.
        DataError: Data that cannot be read or that lack train, val or test.
        KeyboardInterrupt: The user stopped it; with ``resume`` it continues.
    """
    configs = [config_of(changes, seed) for changes in points for seed in seeds]
    first = configs[0]
    _check_comparable(configs)
    dataset = open_data(first, ["train", "val", "test"])  # before hours of training
    # One of each setting: seeds change no parameter.
    for config in configs[:: len(seeds)]:
        Objective.of(config, dataset)  # refuses wrong parameters of a loss now
    # It measures the runs in the end: better missed now than after hours.
    import_runtime()
    fresh = Record.of(first, points, seeds, len(dataset.split("train")))
    with new_folder_lock(folder, f"cannot use {folder} for a sweep"):
        if not (resume or all(entry.name.startswith(".") for entry in folder.iterdir())):
            raise UsageError(
                f"{folder} is not empty: add --resume to continue the sweep in it, or choose "
                "another --out"
            )
        record = Record.read(folder) or fresh
        record.check_same(fresh.request)
        record.write(folder)
        _train_runs(record, configs, folder)
        _test(record, folder)
    return record


def _check_comparable(configs: Sequence[TrainConfig]) -> None:
    """Refuse settings whose figures on val cannot be compared."""
    metrics = {str(config.validation.chosen_by): None for config in configs}
    if len(metrics) > 1:
        raise UsageError(
            f"the settings use {' and '.join(metrics)}, which cannot be compared: give all of them "
            "the same validation.metric and validation.k with --set"
        )
    if not all(config.epochs for config in configs):
        raise UsageError("epochs must be at least 1 in a sweep, which compares accuracy on val")


def _test(record: Record, folder: Path) -> None:
    """Measure the seeds of the chosen setting on test, and draw the curves."""
    runs = record.chosen()
    unmeasured = [run for run in runs if run.test is None]
    for run in unmeasured:
        say(f"on test: {run}")
        run.test = _tested(run, folder)
        record.write(folder)
    if unmeasured or (runs and not (folder / PICTURE).exists()):
        seeds = f"{len(runs)} seeds" if len(runs) > 1 else "1 seed"
        title = f"{record.recipe}: {words_of(runs[0].changes)}, {seeds}"
        with os_error_as(FlorilegeError, f"cannot write {folder / PICTURE}"):
            _accuracy_over_k(record.tested(), title).savefig(folder / PICTURE, dpi=150)


def _accuracy_over_k(
    tested: Mapping[str, Mapping[float, Mapping[str, Mean]]], title: str
) -> "Figure":
    """Average-K and top-K accuracy on test over K, means over seeds with 95 % intervals.

    ``tested`` is that of a `Record`: means by rule, K and figure.
    """
    import matplotlib as mpl  # the extra ``report``, which takes a second
    from matplotlib.ticker import PercentFormatter

    from florilege.calibration.report.html_page import BLUE, GREEN, STYLE, panel

    with mpl.rc_context(STYLE):
        figure, axes = panel("K", "sets of test photos with the truth")
        for rule, colour, form, label in (
            ("average_k", GREEN, "o-", "K on average"),
            ("top_k", BLUE, "s--", "exactly K, the K best"),
        ):
            by_k = tested.get(rule, {})
            means = [figures["hit_rate"] for figures in by_k.values()]
            values, halves = [mean.mean for mean in means], [mean.half or 0.0 for mean in means]
            axes.errorbar(
                *(list(by_k), values, halves),
                fmt=form, color=colour, markersize=4, capsize=3, label=label,
            )  # fmt: skip
        axes.set_xticks(sorted({k for by_k in tested.values() for k in by_k}))
        axes.yaxis.set_major_formatter(PercentFormatter(1.0))
        axes.set_title(title)
        axes.legend(loc="lower right", title="mean and 95 % interval" if any(halves) else None)
        return figure


def _tested(run: RunRecord, folder: Path) -> list[dict[str, Any]]:
    """Export a run of a sweep, calibrate it on val and measure it on test.

    As in [A] eq. 17 sets may be empty (``min_size`` 0). Head and score kind are those that were
    best on val when the checkpoint was chosen.

    Returns:
        For the rules ``average_k`` and ``top_k`` and each K a row with ``rule``, ``k`` and
        :data:`florilege.plugins.papers.sweep_record.FIGURES`.

    Raises:
        BundleError, DataError: As `calibrate` and `evaluate`.
    """
    files, bundle = RunFolder(folder / run.run), folder / "bundles" / f"seed-{run.seed}"
    config, classes = files.read_config(), len(files.read_classes())
    device = "cpu" if config.device == "cpu" else "auto"  # ONNX Runtime may lack the GPU
    largest, own = classes - 1.0, float(config.validation.k)
    bundle.parent.mkdir(exist_ok=True)
    export_run(files.path, bundle)
    calibrate_bundle(
        bundle,
        config.data,
        device=device,
        ks=sorted({k for k in DEFAULT_KS if k <= largest} | {min(own, largest)}),
        head=run.head,
        score_kind=run.score_kind,
        min_size=0,
        rejection_method="none",
    )
    rows = []
    for result in evaluate_bundle(bundle, config.data, device=device).rules:
        name, k = result.point.requested_value
        if result.point.rule in ("average_k", "top_k") and name == "k":
            plain = result.to_plain()
            figures = {key: plain[key] for key in FIGURES}
            rows.append({"rule": result.point.rule, "k": k, **figures})
    return rows
