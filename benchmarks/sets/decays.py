"""How much weight decay does a head on frozen features want, and does val find it?

    python -m benchmarks.sets.decays DATA --name NAME --weights FILE --out FOLDER
                               [--features FOLDER] [--methods NAME,NAME] [--noise 0,0.4] [--seeds N]
    python -m benchmarks.sets.decays --out FOLDER

Heads are solved for by the code of ``train --freeze backbone`` for every weight decay of its grid,
with a share of wrong labels in train, drawn evenly from all classes. Val chooses: its labels are
clean, or as wrong as those of train. Methods are the losses with their default parameters, and two
of scikit-learn on the same standardised features, whose own parameter val chooses by the same hits:
``logistic_regression`` (the same grid) and ``linear_discriminant`` (shrinkage).
``logistic_regression_cv`` chooses by cross-validation.

For every candidate val then chooses head, kind of score and temperature, of the same values for
all. Average-K accuracy is that of the clean test photos, with ``min_size`` 1 and the threshold from
their scores, so that every method has sets of exactly K on average. ``FOLDER/decays.csv`` has a row
for every candidate, ``chosen`` marks the one that val takes; what is there is not measured again.
Without DATA the tables of the file are printed.
"""

import argparse
import csv
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV

from benchmarks.sets.head_methods import (
    FIRST_SEED,
    SIZES,
    Bench,
    append,
    average_k_hits,
    error,
    joined,
)
from florilege.calibration.calibrate.calibration_settings import TEMPERATURES
from florilege.calibration.scores import SCORE_KINDS, scores
from florilege.models.runtime import silence_telemetry
from florilege.training.frozen.feature_store import Features
from florilege.training.frozen.features import HeadOnFeatures
from florilege.training.frozen.head_solver import (
    DECAYS,
    Candidate,
    HeadProblem,
    choose,
    logits_by_head,
    measure,
)
from florilege.training.losses import LOSSES
from florilege.training.network import seeded, start

LOGISTIC, CROSS_VALIDATED = "logistic_regression", "logistic_regression_cv"
DISCRIMINANT = "linear_discriminant"
METHODS = (*LOSSES, LOGISTIC, DISCRIMINANT, CROSS_VALIDATED)
SHRINKAGES = (0.9, 0.6, 0.3, 0.1)
KEY = ("data", "method", "noise", "seed")
Logits = Mapping[str, NDArray[np.float32]]


class Solved(NamedTuple):
    """One candidate of a method: its logits of val and test by head."""

    parameter: float  # weight decay, or what takes its place
    val: Logits
    test: Logits
    candidate: Candidate | None  # measured on val with clean labels
    noisy: Candidate | None  # and with labels as wrong as in train


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
            if key in reference:
                continue
            began = time.process_time()
            solved = list(solve(bench, labels, method, seed))
            seconds = round(time.process_time() - began, 1)
            for row, hits in measured(labels, solved, method):
                facts = dict(zip(KEY, key, strict=True))
                append(result, {**facts, **row, "seconds": seconds})
                if row["chosen"]:
                    path = hits_file(words.out, (*key, str(row["val_labels"])))
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


def solve(bench: Bench, labels: Labels, method: str, seed: int) -> Iterator[Solved]:
    """The candidates of a method; the last with ``candidate`` None if it has chosen itself."""
    if method in LOSSES:
        for head, candidate, noisy in losses_path(bench, labels, method, seed):
            on_val, on_test = (logits_by_head(head, part) for part in (labels.val, labels.test))
            yield Solved(candidate.weight_decay, on_val, on_test, candidate, noisy)
    else:
        yield from of_others(labels, method)


def losses_path(
    bench: Bench, labels: Labels, loss: str, seed: int
) -> Iterator[tuple[HeadOnFeatures, Candidate, Candidate | None]]:
    """The head after each weight decay, as `train` solves for it."""
    config = bench.config(loss, None, seed)
    dataset = replace(bench.dataset, splits={"train": labels.train.split})
    objective, network = seeded(config, dataset)
    start(network, config, objective, dataset, None)
    head = HeadOnFeatures(network, labels.train)
    problem = HeadProblem(head, objective, labels.train, seed=seed)
    metric = config.validation.chosen_by
    for decay in DECAYS:
        problem.solve(decay, passes=config.epochs)
        noisy = None
        if labels.noisy_val is not None:
            noisy = measure(problem, decay, labels.noisy_val, metric)
        yield head, measure(problem, decay, labels.val, metric), noisy


def of_others(labels: Labels, method: str) -> Iterator[Solved]:
    """Classifiers of scikit-learn on the same standardised features."""
    mean, deviation = labels.train.spread()
    train, val, test = (
        ((torch.from_numpy(part.values[part.rows]) - mean) / deviation).numpy()
        for part in (labels.train, labels.val, labels.test)
    )
    targets = labels.train.split.labels
    inverse = [1 / (len(targets) * decay) for decay in DECAYS]
    models = {
        LOGISTIC: [LogisticRegression(C=c, max_iter=300) for c in inverse],
        CROSS_VALIDATED: [LogisticRegressionCV(Cs=inverse, cv=3, max_iter=300)],
        DISCRIMINANT: [
            LinearDiscriminantAnalysis(solver="lsqr", shrinkage=each) for each in SHRINKAGES
        ],
    }[method]
    names = DECAYS if method == LOGISTIC else SHRINKAGES if method == DISCRIMINANT else (-1.0,)
    for parameter, model in zip(names, models, strict=True):
        model.fit(train, targets)
        on_val, on_test = (
            {"linear": model.decision_function(x).astype(np.float32)} for x in (val, test)
        )
        yield Solved(parameter, on_val, on_test, None, None)


def hits_file(folder: Path, key: Iterable[str]) -> Path:
    """The file of what a method's choice hits on test, ``(sizes, photos)``."""
    return folder / "hits" / f"{'+'.join(key)}.npy"


def measured(
    labels: Labels, solved: Sequence[Solved], method: str
) -> Iterator[tuple[dict[str, object], NDArray[np.bool_]]]:
    """A row for each candidate and kind of val, with its hits on test."""
    for noisy, val in enumerate((labels.val, labels.noisy_val)):
        if val is None:
            continue
        figures = [at_best_temperature(each, val, labels.test) for each in solved]
        choice, rises = int(np.argmax([value for value, _ in figures])), False
        if method in LOSSES:
            options = [each.noisy if noisy else each.candidate for each in solved]
            choice, rises = choose([each for each in options if each is not None], val)
        for number, (each, (on_val, hits)) in enumerate(zip(solved, figures, strict=True)):
            ours, by_k = each.noisy if noisy else each.candidate, 100 * hits.mean(1)
            row: dict[str, object] = {
                "val_labels": "wrong" if noisy else "clean",
                "parameter": each.parameter,
                "chosen": int(number == choice),
                "rises": int(rises and number == choice),
                "val": round(on_val, 3),
                "log_loss": "" if ours is None else round(ours.log_loss, 4),
                **{f"average_{k}": round(float(x), 3) for k, x in zip(SIZES, by_k, strict=True)},
            }
            yield row, hits


def at_best_temperature(
    each: Solved, val: Features, test: Features
) -> tuple[float, NDArray[np.bool_]]:
    """Mean accuracy on val, and hits on test, of the best head, kind and temperature."""
    best: tuple[float, NDArray[np.bool_]] | None = None
    for head, kind in itertools.product(each.val, SCORE_KINDS):
        for temperature in TEMPERATURES if kind == "softmax" else (1.0,):
            values = [scores(part[head] / temperature, kind) for part in (each.val, each.test)]
            on_val = 100 * float(average_k_hits(values[0], val.split.labels).mean())
            if best is None or on_val > best[0]:
                best = on_val, average_k_hits(values[1], test.split.labels)
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
    head = [f"{noise:.0%} wrong, {val} val" if noise else "clean labels" for noise, val, _ in kinds]
    lines = {
        method: [cell(ours, method, noise, val) for _, val, noise in kinds]
        for method in dict.fromkeys(row["method"] for row in ours)
    }
    order = sorted(lines, key=lambda method: lines[method][-1].split(" / ")[1:2], reverse=True)
    body = [f"| `{method}` | {' | '.join(lines[method])} |" for method in order]
    return "\n".join([f"| method | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|", *body])


def cell(rows: Sequence[Mapping[str, str]], method: str, noise: str, val_labels: str) -> str:
    """Accuracy at K = 2 / 3 / 5, its error at 3; decays taken; most points lost to the best."""
    place = {"method": method, "noise": noise, "val_labels": val_labels}
    ours = [row for row in rows if place.items() <= row.items()]
    by_seed = {seed: [row for row in ours if row["seed"] == seed] for seed in _seeds(ours)}
    if not by_seed:
        return ""
    sizes = [k for k in SIZES if k > 1]
    taken = [next(row for row in each if row["chosen"] == "1") for each in by_seed.values()]
    figures = np.array([[float(row[f"average_{k}"]) for k in sizes] for row in taken])
    best = np.array(
        [
            [max(float(row[f"average_{k}"]) for row in each) for k in sizes]
            for each in by_seed.values()
        ]
    )
    spread = f" ({error(figures[:, 1]):.1f})" if len(figures) > 1 else ""
    decays = "/".join(dict.fromkeys(f"{float(row['parameter']):g}" for row in taken))
    if method == CROSS_VALIDATED:
        return f"{joined(figures.mean(0))}{spread}"
    lost = (best.mean(0) - figures.mean(0)).max()
    rises = ", rises" if any(row["rises"] == "1" for row in taken) else ""
    return f"{joined(figures.mean(0))}{spread}; {decays}{rises}; {lost:.1f}"


def _seeds(rows: Sequence[Mapping[str, str]]) -> list[str]:
    return list(dict.fromkeys(row["seed"] for row in rows))


if __name__ == "__main__":
    main()
