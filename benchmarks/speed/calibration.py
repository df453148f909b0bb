"""Time and memory of choosing thresholds, beside one ``np.partition`` of the same scores.

``python -m benchmarks.speed.calibration`` prints a Markdown table for 30,000 photos of 1,081
classes, the shape of a Pl@ntNet-300K validation split. The repetitions of all methods are
interleaved and medians compared, so that a busy moment of the machine meets all of them.
``--stream`` chooses thresholds for 200,000 photos of 10,000 classes that are never in memory
together, in a process of its own, and prints its peak memory: for five thresholds, then for all
tables of a bundle's record, which takes some minutes. ``--against module:callable`` times any other
calibration beside ours: the callable takes ``(scores, labels)``, float32 ``(rows, classes)`` and
int64 ``(rows,)``; ``benchmarks.speed.conformal_libraries`` has those of other libraries. Memory is
the peak of one run in a forked process, above what scores and imports hold.
"""

import argparse
import importlib
import multiprocessing
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.score_sources import Source
from florilege.calibration.calibrate.threshold_tables import tabulate
from florilege.calibration.rules import calibrate
from florilege.calibration.selection import TopScores
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.threshold import average_k_threshold
from florilege.calibration.view import Scoring

ROWS, CLASSES, GENERA = 30_000, 1_081, 303
STREAM_ROWS, STREAM_CLASSES, STREAM_BATCH, STREAM_K = 200_000, 10_000, 50, 10
BATCH = 512
GRID = [step / 10 for step in range(10, 201)]
ASKED = [1, 2, 3, 5, 10]
MIB = 1 << 20

Scores = NDArray[np.float32]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Method:
    """A way to calibrate, and the largest ratio to one partition that is wanted of it."""

    name: str
    run: Callable[[], object]
    goal: float | None = None


def main() -> None:
    """Measure and print."""
    os.environ["OMP_NUM_THREADS"] = "1"  # for libraries that are yet to be imported
    arguments = _arguments()
    if arguments.inside:
        print(_stream_lines())
        return
    if arguments.stream:
        command = [sys.executable, "-m", "benchmarks.speed.calibration", "--stream", "--inside"]
        print(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        return
    scores, labels = synthetic(ROWS, CLASSES, GENERA)
    every = chain(our_methods(scores, labels), _others(arguments.against, scores, labels))
    methods, peaks = zip(*[(method, peak_mib(method)) for method in every], strict=True)
    unit, *times = interleaved([partition(scores), *methods], arguments.repeats)
    print(f"One np.partition of {ROWS:,} x {CLASSES:,} float32 scores: {unit * 1000:.0f} ms.\n")
    print("| method | ms | x partition | goal | peak MiB |\n|---|---|---|---|---|")
    for method, seconds, peak in zip(methods, times, peaks, strict=True):
        goal = "" if method.goal is None else f"{method.goal:g}"
        figures = f"{seconds * 1000:.0f} | {seconds / unit:.2f} | {goal} | {peak:.0f}"
        print(f"| {method.name} | {figures} |")


def synthetic(rows: int, classes: int, genera: int, seed: int = 0) -> tuple[Scores, Labels]:
    """Softmax scores with a long tail, confusions within genera, and about 0.9 of top-1 hits."""
    random = np.random.default_rng(seed)
    prior = 1 / np.arange(1, classes + 1)
    labels = random.choice(classes, rows, p=prior / prior.sum())
    genus = random.integers(0, genera, classes)
    logits = random.normal(0, 1, (rows, classes)).astype(np.float32)
    logits += 4.0 * (genus[labels, np.newaxis] == genus)
    logits[np.arange(rows), labels] += random.exponential(5, rows) + 2
    np.exp(logits, out=logits)
    logits /= logits.sum(axis=1, keepdims=True)
    return logits, labels


def partition(scores: Scores) -> Method:
    """The unit: one partition at the rank of K = 3."""
    flat, cut = scores.reshape(-1), scores.size - 3 * len(scores)
    return Method(name="np.partition", run=lambda: np.partition(flat, cut))


def our_methods(scores: Scores, labels: Labels) -> list[Method]:
    """What the package offers, and a full sort of the scores."""

    def batches() -> Iterator[Scores]:
        return (scores[start : start + BATCH] for start in range(0, len(scores), BATCH))

    def top(largest: float, wanted: list[float]) -> object:
        selection = TopScores(len(scores), largest)
        for batch in batches():
            selection.update(batch)
        return [selection.threshold(average_k) for average_k in wanted]

    return [
        Method(name="average_k_threshold, K = 3", run=lambda: average_k_threshold(scores, 3),
               goal=1.0),
        Method(name="TopScores, K = 3", run=lambda: top(3, [3]), goal=1.0),
        Method(name="TopScores, K = 1.0, 1.1, ... 20", run=lambda: top(20, GRID), goal=1.5),
        Method(name="average_k rule, K = 3, min_size 1",
               run=lambda: calibrate("average_k", scores, average_k=3)),
        Method(name="coverage rule, 0.9, min_size 1",
               run=lambda: calibrate("coverage", scores, labels, coverage=0.9)),
        Method(name="coverage rule, 0.9, min_size 0",
               run=lambda: calibrate("coverage", scores, labels, coverage=0.9, min_size=0)),
        Method(name="one full np.sort", run=lambda: np.sort(scores.reshape(-1))),
    ]  # fmt: skip


def interleaved(methods: list[Method], repeats: int) -> list[float]:
    """Median seconds of each method, after one run that does not count."""
    times: list[list[float]] = [[] for _ in methods]
    for turn in range(repeats + 1):
        for method, seconds in zip(methods, times, strict=True):
            start = time.perf_counter()
            method.run()
            if turn:
                seconds.append(time.perf_counter() - start)
    return [statistics.median(seconds) for seconds in times]


def _others(names: list[str], scores: Scores, labels: Labels) -> Iterator[Method]:
    for name in names:
        module, _, attribute = name.partition(":")
        calibrate_other = getattr(importlib.import_module(module), attribute)
        calibrate_other(scores[:BATCH], labels[:BATCH])  # what it imports is not to be counted
        yield Method(name=name, run=partial(calibrate_other, scores, labels))


def peak_mib(method: Method) -> float:
    """Memory that one run takes above what is there before it, in a process forked for it."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=lambda: sender.send(_peak_of(method)))
    process.start()
    peak: float = receiver.recv()
    process.join()
    return peak


def _peak_of(method: Method) -> float:
    before = _peak_bytes()
    method.run()
    return (_peak_bytes() - before) / MIB


def _stream_lines() -> str:
    """Choose thresholds for a stream; say how long it took and how much memory."""
    for _ in islice(_stream(), 2):
        pass  # what the stream itself takes is the base
    before, selecting = _peak_bytes(), 0.0
    selection = TopScores(STREAM_ROWS, STREAM_K)
    for batch, _ in _stream():
        start = time.perf_counter()
        selection.update(batch)
        selecting += time.perf_counter() - start
    start = time.perf_counter()
    results = [selection.threshold(average_k) for average_k in ASKED]
    selecting += time.perf_counter() - start
    choice = (_peak_bytes() - before) / MIB
    del selection
    start = time.perf_counter()
    tables = _all_tables()
    tabulating = time.perf_counter() - start
    return (
        f"{STREAM_ROWS:,} x {STREAM_CLASSES:,} float32 scores in batches of {STREAM_BATCH}: "
        f"{selecting:.1f} s of selection, {choice:.0f} MiB above the base (goal 100), lambda at "
        f"K = {ASKED[-1]}: {results[-1].lambda_val!r}; {tables} tables of a record: "
        f"{tabulating:.0f} s, {(_peak_bytes() - before) / MIB:.0f} MiB"
    )


def _all_tables() -> int:
    plan = CalibrationPlan(classes=STREAM_CLASSES, ks=tuple(map(float, ASKED)))

    def blocks() -> Iterator[tuple[NDArray[np.float64], Labels]]:
        return ((batch.astype(np.float64), labels) for batch, labels in _stream())

    source = Source(
        blocks=blocks,
        rows=STREAM_ROWS,
        classes=STREAM_CLASSES,
        scoring=Scoring(head="linear", score_kind="sigmoid"),
        counts=np.arange(1, STREAM_CLASSES + 1),
    )
    return len(tabulate(source, plan).table.rules)


def _stream() -> Iterator[tuple[Scores, Labels]]:
    """Always the same batches, in one array that is filled again and again."""
    random = np.random.default_rng(0)
    batch = np.empty((STREAM_BATCH, STREAM_CLASSES), dtype=np.float32)
    for _ in range(STREAM_ROWS // STREAM_BATCH):
        random.random(out=batch, dtype=np.float32)
        np.power(batch, 8, out=batch)
        yield batch, random.integers(0, STREAM_CLASSES, STREAM_BATCH)


def _peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeats", type=int, default=7, help="runs of each method")
    parser.add_argument("--stream", action="store_true", help="200,000 x 10,000, in minutes")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--against", action="append", default=[], metavar="MODULE:CALLABLE")
    return parser.parse_args()


if __name__ == "__main__":
    main()
