"""What the promise of ``class_coverage`` costs: its thresholds with and without their factor.

    python -m benchmarks.rules.common_factor [--draws N]

Thresholds between those of each class and that of all photos have no promise of their own but twice
the misses. ``class_coverage`` multiplies them by the factor with which they cover what was asked
for. On photos of the 85 species of the flora and of 1,000 invented species with a long tail, with
their exact posterior, 3,000 photos calibrate for 0.9 and all others are measured, in new halves
each time. The last column is macro coverage of the interpolation alone for sets as large as those
with the factor, at whatever coverage gives them. Writes ``common_factor.csv``.
"""

import argparse
import csv
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from benchmarks.promises.pools import invented
from benchmarks.rules.front_rules import Predictor, Task, figures, ours, weighted
from benchmarks.rules.front_scores import Problem
from florilege.calibration.scores import scores
from florilege.data.flora import Flora

OUT = Path(__file__).with_suffix(".csv")
ALONE, FACTOR = (
    ("alone: size", "micro", "macro"),
    ("with the factor: size", "its micro", "its macro"),
)
HEAD = ("species", "macro_weight", *ALONE, *FACTOR, "macro alone at this size")
WEIGHTS = (0.25, 0.5, 0.75, 0.9, 0.98)
LEVELS = (0.75, 0.8, 0.85, 0.88, 0.9, 0.92, 0.95)
PROMISED, PHOTOS, POOL = 0.9, 3000, 20_000


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--draws", type=int, default=10)
    draws = parser.parse_args().draws
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for name, problem in worlds():
            for line in lines(name, problem, draws):
                writer.writerow(line)
                print(*line, sep=", ", flush=True)


def worlds() -> Iterator[tuple[str, Problem]]:
    """The flora, and species with a long tail."""
    flora = Flora(rows={"val": POOL})
    pool = invented(photos=POOL, species=1000, dimensions=12)
    for name, values, labels in (
        ("flora", flora.posterior("val"), flora.labels("val")),
        ("1,000 species", scores(pool.logits["linear"], "softmax"), pool.labels),
    ):
        counts = np.maximum(np.bincount(labels, minlength=values.shape[1]), 1)
        every, none = (values, labels), np.zeros_like(counts)
        yield (
            name,
            Problem(val=every, test=every, counts=counts, genus=none, means=values[:0], choice=""),
        )


def lines(name: str, problem: Problem, draws: int) -> Iterator[list[str]]:
    """A line for each weight."""
    for weight in WEIGHTS:
        alone, factored = [], []
        for seed in range(draws):
            task, rest = split(problem, seed)
            alone.append([shares(weighted, task, rest, weight, level) for level in LEVELS])
            factored.append(shares(ours("class_coverage"), task, rest, weight, PROMISED))
        curve, ours_mean = np.mean(alone, axis=0), np.mean(factored, axis=0)
        at_size = np.interp(np.log(ours_mean[0]), np.log(curve[:, 0]), curve[:, 2])
        figures_ = [*curve[LEVELS.index(PROMISED)], *ours_mean, at_size]
        sizes = (0, 3)
        yield [name, f"{weight:g}", *(
            f"{value:.2f}" if place in sizes else f"{value:.3f}"
            for place, value in enumerate(figures_)
        )]  # fmt: skip


def split(problem: Problem, seed: int) -> tuple[Task, Task]:
    """Photos that calibrate, and the others."""
    values, labels = problem.test
    order = np.random.default_rng(seed).permutation(len(labels))
    first, second = order[:PHOTOS], order[PHOTOS:]
    return (
        Task(values[first], labels[first], PROMISED, problem),
        Task(values[second], labels[second], PROMISED, problem),
    )


def shares(
    rule: Callable[[Task, float], Predictor],
    task: Task,
    rest: Task,
    weight: float,
    coverage: float,
) -> list[float]:
    """Mean size, micro and macro coverage."""
    sets = rule(task._replace(coverage=coverage), weight)(rest.scores)
    result = figures(sets, rest.labels)
    return [result["size"], result["micro"], result["macro"]]


if __name__ == "__main__":
    main()
