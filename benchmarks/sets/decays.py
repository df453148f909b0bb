"""How much weight decay does a head on frozen features want, and does val find it?

    python -m benchmarks.sets.decays DATA --name NAME --weights FILE --out FOLDER
                               [--features FOLDER] [--methods NAME,NAME] [--noise 0,0.4] [--seeds N]
    python -m benchmarks.sets.decays --out FOLDER

Heads are solved for by the code of ``train --freeze backbone`` for every weight decay of its grid,
with a share of wrong labels in train, drawn evenly from all classes. Val chooses: its labels are
clean, or as wrong as those of train. Methods are the losses with their default parameters, and two
of scikit-learn on the same standardised features: ``logistic_regression`` (the same grid) and
``linear_discriminant`` (shrinkage). Val chooses for all by the rule of ``train``. Where accuracy is
still rising at an end of the grid, that method's grid is extended there by the same steps.
``logistic_regression_cv`` chooses by cross-validation, from the same grid and beyond it alike.

For every candidate val then chooses head, kind of score and temperature, of the same values for
all. Average-K accuracy is that of the clean test photos, with ``min_size`` 1 and the threshold from
their scores, so that every method has sets of exactly K on average. ``FOLDER/decays.csv`` has a row
for every candidate, ``chosen`` marks the one that val takes; what is there is not measured again.
Without DATA the tables of the file are printed.
"""

import argparse
import csv
import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.sets.head_methods import (
    FIRST_SEED,
    SIZES,
    Bench,
    append,
    average_k_hits,
    error,
    joined,
)
from florilege.calibration.scores import SCORE_KINDS, scores
from florilege.calibration.settings import TEMPERATURES
from florilege.models.runtime import silence_telemetry
from florilege.training.batches import Features
from florilege.training.frozen import HeadOnFeatures
from florilege.training.frozen.head_solver import (
    DECAYS,
    WIDER,
    _Candidate,
    _candidate_of,
    _choose,
    _HeadProblem,
    _logits_by_head,
)
from florilege.training.losses import LOSSES
from florilege.training.network import seeded, start

LOGISTIC, CROSS_VALIDATED = "logistic_regression", "logistic_regression_cv"
DISCRIMINANT = "linear_discriminant"
METHODS = (*LOSSES, LOGISTIC, DISCRIMINANT, CROSS_VALIDATED)
KEY = ("data", "method", "noise", "seed")
Logits = Mapping[str, NDArray[np.float32]]
Solution = tuple[Logits, Logits]
"""Logits of val and of test, by head."""


class Grid(NamedTuple):
    """The values of a parameter, the largest first, and what follows beyond each end."""

    values: tuple[float, ...]
    larger: tuple[float, ...]
    smaller: tuple[float, ...]


OF_DECAYS = Grid(
    DECAYS,
    tuple(sorted(decay for decay in WIDER if decay > DECAYS[0])),
    tuple(decay for decay in WIDER if decay < DECAYS[-1]),
)
OF_SHRINKAGES = Grid((0.9, 0.6, 0.3, 0.1), (0.97, 0.99), (0.03, 0.01))


class Solved(NamedTuple):
    """One candidate of a method."""

    parameter: float  # weight decay, or what takes its place
    solution: Solution
    on_val: tuple[_Candidate, ...]  # by clean labels, and by labels as wrong as in train if any are


def main() -> None:
    """Measure what is missing, or print the tables."""
    silence_telemetry()
    words = _arguments()
    result = words.out / "decays.csv"
    rows = list(csv.DictReader(result.open())) if result.exists() else []
    if words.data is None:
        print(tables(rows))
        return
    words.out.mkdir(parents=True, exist_ok=True)
    flags = {"data": words.data, "weights": words.weights, "backbone": words.backbone}
    flags["features"] = str(words.features or words.out / "features")
    bench = Bench.open(flags, words.out / words.name)
    reference = {tuple(row[key] for key in KEY) for row in rows}
    seeds = range(FIRST_SEED, FIRST_SEED + words.seeds)
    for seed, noise in itertools.product(seeds, words.noise):
        labels = Labels.draw(bench, noise, seed)
        for method in words.methods:
            key = (words.name, method, f"{noise:g}", str(seed))
            if key not in reference:
                measure_and_write(bench, labels, key, words.out)


def measure_and_write(
    bench: Bench, labels: "Labels", key: tuple[str, str, str, str], folder: Path
) -> None:
    """Add the rows of a cell to the file, and the hits of what val takes beside it."""
    method, began = key[1], time.process_time()
    solved = list(solve(bench, labels, method, int(key[-1])))
    seconds = round(time.process_time() - began, 1)
    for row, hits in list(measured(labels, solved)):  # all or none: a cell that is there is whole
        facts = dict(zip(KEY, key, strict=True))
        append(folder / "decays.csv", {**facts, **row, "seconds": seconds})
        if row["chosen"]:
            path = hits_file(folder, (*key, str(row["val_labels"])))
            path.parent.mkdir(exist_ok=True)
            np.save(path, hits)
    print(*key, f"{seconds} s", flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--name", default="photos")
    parser.add_argument("--weights")
    parser.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--methods", type=lambda text: text.split(","), default=METHODS)
    numbers = lambda text: [float(part) for part in text.split(",")]  # noqa: E731  # as above
    parser.add_argument("--noise", type=numbers, default=[0.0, 0.4])
    parser.add_argument("--seeds", type=int, default=1)
    return parser.parse_args()


class Labels(NamedTuple):
    """The photos with the labels of one draw."""

    train: Features  # with wrong labels
    val: Features
    noisy_val: Features | None  # None where no label is wrong
    test: Features

    @classmethod
    def draw(cls, bench: Bench, noise: float, seed: int) -> "Labels":
        """Replace this share of the labels by a class drawn evenly, perhaps the same."""
        random, classes = np.random.default_rng(seed), len(bench.dataset.classes)

        def noisy(features: Features) -> Features:
            labels = features.split.labels
            wrong = random.random(len(labels)) < noise
            drawn = np.where(wrong, random.integers(0, classes, len(labels)), labels)
            return replace(features, split=replace(features.split, labels=drawn))

        train, val, test = (bench.features[part] for part in ("train", "val", "test"))
        return cls(noisy(train), val, noisy(val) if noise else None, test)

    def vals(self) -> list[Features]:
        """Val with clean labels, then with wrong ones if there are any."""
        return [part for part in (self.val, self.noisy_val) if part is not None]


def solve(bench: Bench, labels: Labels, method: str, seed: int) -> list[Solved]:
    """The candidates of a method, those with the largest parameter first."""
    if method in LOSSES:
        solver, grid = loss_solver(bench, labels, method, seed), OF_DECAYS
    elif method == CROSS_VALIDATED:
        decay, solution = cross_validated(labels)
        solver, grid = lambda _: solution, Grid((decay,), (), ())
    else:
        solver = others_solver(labels, method)
        grid = OF_SHRINKAGES if method == DISCRIMINANT else OF_DECAYS
    metric = bench.config("cross_entropy", None, seed).validation.chosen_by

    def candidate(parameter: float) -> Solved:
        solution = solver(parameter)
        return Solved(
            parameter,
            solution,
            tuple(
                _candidate_of(solution[0], part.split.labels, metric, weight_decay=parameter)
                for part in labels.vals()
            ),
        )

    return widened([candidate(value) for value in grid.values], grid, labels, candidate)


def widened(
    solved: Sequence[Solved], grid: Grid, labels: Labels, candidate: Callable[[float], Solved]
) -> list[Solved]:
    """The candidates, and those beyond an end for as long as sets get better there."""
    solved, larger, smaller = list(solved), list(grid.larger), list(grid.smaller)
    while True:
        choices = [choose_of(solved, number, val) for number, val in enumerate(labels.vals())]
        ends = {choice for choice, rises in choices if rises}
        if 0 in ends and larger:
            solved.insert(0, candidate(larger.pop(0)))
        elif len(solved) - 1 in ends and smaller:
            solved.append(candidate(smaller.pop(0)))
        else:
            return solved


def choose_of(solved: Sequence[Solved], number: int, val: Features) -> tuple[int, bool]:
    """What this val takes, and whether sets would get better beyond the end."""
    return _choose([each.on_val[number] for each in solved], val)


def loss_solver(bench: Bench, labels: Labels, loss: str, seed: int) -> Callable[[float], Solution]:
    """The head after a weight decay, as `train` solves for it."""
    config = bench.config(loss, None, seed)
    dataset = replace(bench.dataset, splits={"train": labels.train.split})
    objective, network = seeded(config, dataset)
    start(network, config, objective, dataset, None)
    head = HeadOnFeatures(network, labels.train)
    problem = _HeadProblem(head, objective, labels.train, seed=seed)

    def solution(decay: float) -> Solution:
        problem.solve(decay, passes=config.epochs)
        return _logits_by_head(head, labels.val), _logits_by_head(head, labels.test)

    return solution


def others_solver(labels: Labels, method: str) -> Callable[[float], Solution]:
    """Classifiers of scikit-learn on the same standardised features."""
    # Here, as it takes two seconds of each process of tests.
    from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
    from sklearn.linear_model import LogisticRegression

    (train, targets), *others = standardised(labels)

    def solution(parameter: float) -> Solution:
        if method == DISCRIMINANT:
            model = LinearDiscriminantAnalysis(solver="lsqr", shrinkage=parameter)
        else:
            model = LogisticRegression(C=1 / (len(targets) * parameter), max_iter=300)
        return of_model(model.fit(train, targets), others)

    return solution


def cross_validated(labels: Labels) -> tuple[float, Solution]:
    """The decay chosen by cross-validation, and its head; the grid grows if its end is chosen."""
    from sklearn.linear_model import LogisticRegressionCV

    (train, targets), *others = standardised(labels)
    values, larger, smaller = (list(part) for part in OF_DECAYS)
    while True:
        inverse = [1 / (len(targets) * decay) for decay in values]
        model = LogisticRegressionCV(
            Cs=inverse,
            cv=3,
            scoring="accuracy",
            max_iter=300,
            l1_ratios=(0,),
            use_legacy_attributes=False,
        )
        model.fit(train, targets)
        decay = values[int(np.argmin(np.abs(np.array(inverse) - model.C_)))]
        if decay == values[0] and larger:
            values.insert(0, larger.pop(0))
        elif decay == values[-1] and smaller:
            values.append(smaller.pop(0))
        else:
            return decay, of_model(model, others)


def standardised(labels: Labels) -> list[tuple[NDArray[np.float32], NDArray[np.int64]]]:
    """Features, with the spread of train, and labels of train, val and test."""
    mean, deviation = labels.train.spread()
    return [
        (((torch.from_numpy(part.values[part.rows]) - mean) / deviation).numpy(), part.split.labels)
        for part in (labels.train, labels.val, labels.test)
    ]


def of_model(
    model: Any, parts: Sequence[tuple[NDArray[np.float32], NDArray[np.int64]]]
) -> Solution:
    """Logits of val and test by a classifier of scikit-learn."""
    on_val, on_test = (
        {"linear": model.decision_function(values).astype(np.float32)} for values, _ in parts
    )
    return on_val, on_test


def hits_file(folder: Path, key: Iterable[str]) -> Path:
    """The file of what a method's choice hits on test, ``(sizes, photos)``."""
    return folder / "hits" / f"{'+'.join(key)}.npy"


def measured(
    labels: Labels, solved: Sequence[Solved]
) -> Iterator[tuple[dict[str, object], NDArray[np.bool_]]]:
    """A row for each candidate and kind of val, with its hits on test."""
    for number, val in enumerate(labels.vals()):
        choice, rises = choose_of(solved, number, val)
        for place, each in enumerate(solved):
            on_val, hits = at_best_temperature(each.solution, val, labels.test)
            by_k = 100 * hits.mean(1)
            row: dict[str, object] = {
                "val_labels": ("clean", "wrong")[number],
                "parameter": each.parameter,
                "chosen": int(place == choice),
                "rises": int(rises and place == choice),
                "val": round(on_val, 3),
                "log_loss": round(each.on_val[number].log_loss, 4),
                **{f"average_{k}": round(float(x), 3) for k, x in zip(SIZES, by_k, strict=True)},
            }
            yield row, hits


def at_best_temperature(
    solution: Solution, val: Features, test: Features
) -> tuple[float, NDArray[np.bool_]]:
    """Mean accuracy on val, and hits on test, of the best head, kind and temperature."""
    best: tuple[float, NDArray[np.bool_]] | None = None
    for head, kind in itertools.product(solution[0], SCORE_KINDS):
        for temperature in TEMPERATURES if kind == "softmax" else (1.0,):
            values, on_test = (part[head] / temperature for part in solution)
            hits = average_k_hits(scores(values, kind), val.split.labels)
            on_val = 100 * float(hits.mean())
            if best is None or on_val > best[0]:
                best = on_val, average_k_hits(scores(on_test, kind), test.split.labels)
    assert best is not None
    return best


def tables(rows: Sequence[Mapping[str, str]]) -> str:
    """The table of each data set."""
    sets = dict.fromkeys(row["data"] for row in rows)
    return "\n".join(f"\n### {data}\n\n{table_of(rows, data)}" for data in sets)


def table_of(rows: Sequence[Mapping[str, str]], data: str) -> str:
    """What val takes, the best with wrong labels first, and how far it is from the best on test."""
    ours = [row for row in rows if row["data"] == data]
    kinds = sorted({(float(row["noise"]), row["val_labels"], row["noise"]) for row in ours})
    lines = {
        method: [cell(ours, method, noise, val) for _, val, noise in kinds]
        for method in dict.fromkeys(row["method"] for row in ours)
    }
    order = sorted(lines, key=lambda method: _at_3(lines[method][-1]), reverse=True)
    body = [f"| `{method}` | {' | '.join(lines[method])} |" for method in order]
    return "\n".join([f"| method | {' | '.join(map(_title, kinds))} |", _rule(kinds), *body])


def table_of_all(rows: Sequence[Mapping[str, str]], sets: Sequence[str]) -> str:
    """Means over the data sets, of the seeds that all methods have there; the best last cell first.

    A method without one of the sets has no cell.
    """
    chosen = [row for row in rows if row["chosen"] == "1"]
    kinds = sorted({(float(row["noise"]), row["val_labels"], row["noise"]) for row in chosen})
    lines = []
    for method in dict.fromkeys(row["method"] for row in chosen):
        cells = []
        for _, val, noise in kinds:
            parts = [_shared_mean(chosen, method, [data, noise, val]) for data in sets]
            cells.append("" if None in parts else joined(np.mean(np.array(parts, float), axis=0)))
        lines.append((method, cells))
    lines.sort(key=lambda line: _at_3(line[1][-1]), reverse=True)
    body = [f"| `{method}` | {' | '.join(cells)} |" for method, cells in lines]
    return "\n".join([f"| method | {' | '.join(map(_title, kinds))} |", _rule(kinds), *body])


def _shared_mean(
    chosen: Sequence[Mapping[str, str]], method: str, place: Sequence[str]
) -> list[float] | None:
    """Accuracy of a method by K, mean over the seeds that all methods have; None without any."""
    here = [row for row in chosen if [row["data"], row["noise"], row["val_labels"]] == place]
    seeds_of = {row["method"]: set[str]() for row in here}
    for row in here:
        seeds_of[row["method"]].add(row["seed"])
    shared = set.intersection(*seeds_of.values()) if seeds_of else set()
    ours = [row for row in here if row["method"] == method and row["seed"] in shared]
    figures = [[float(row[f"average_{k}"]) for k in SIZES if k > 1] for row in ours]
    return list(np.mean(figures, axis=0)) if figures else None


def _title(kind: tuple[float, str, str]) -> str:
    return f"{kind[0]:.0%} wrong, {kind[1]} val" if kind[0] else "clean labels"


def _rule(kinds: Sequence[object]) -> str:
    return "|---" * (len(kinds) + 1) + "|"


def _at_3(text: str) -> float:
    """The accuracy at K = 3 in a cell."""
    return float(re.findall(r"[\d.]+", text)[1]) if text else 0.0


def cell(rows: Sequence[Mapping[str, str]], method: str, noise: str, val_labels: str) -> str:
    """Accuracy at K = 2 / 3 / 5, its error at 3; decays taken; most points lost to the best one.

    The best decay is one for all seeds: the best of each seed would be the luckiest of its figures.
    """
    place = {"method": method, "noise": noise, "val_labels": val_labels}
    ours = [row for row in rows if place.items() <= row.items()]
    by_seed = {seed: [row for row in ours if row["seed"] == seed] for seed in _seeds(ours)}
    if not by_seed:
        return ""
    sizes = [k for k in SIZES if k > 1]
    taken = [next(row for row in each if row["chosen"] == "1") for each in by_seed.values()]
    figures = np.array([[float(row[f"average_{k}"]) for k in sizes] for row in taken])
    spread = f" ({error(figures[:, 1]):.1f})" if len(figures) > 1 else ""
    decays = "/".join(dict.fromkeys(f"{float(row['parameter']):g}" for row in taken))
    if method == CROSS_VALIDATED:
        return f"{joined(figures.mean(0))}{spread}; {decays}"
    by_decay = {row["parameter"]: list[list[float]]() for row in ours}
    for row in ours:
        by_decay[row["parameter"]].append([float(row[f"average_{k}"]) for k in sizes])
    of_all_seeds = [each for each in by_decay.values() if len(each) == len(by_seed)]
    best = np.mean(of_all_seeds, axis=1).max(0)
    lost = round(float((best - figures.mean(0)).max()), 1) + 0.0  # no -0.0
    rises = ", rises" if any(row["rises"] == "1" for row in taken) else ""
    return f"{joined(figures.mean(0))}{spread}; {decays}{rises}; {lost:.1f}"


def _seeds(rows: Sequence[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(row["seed"] for row in rows))


if __name__ == "__main__":
    main()
