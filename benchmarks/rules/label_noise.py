"""What wrong labels cost a coverage, with and without allowing for them, and whether it holds.

    python -m benchmarks.rules.label_noise [--calibrations 1000] [--photos 300,1000,3000]

Three worlds, each a pool of 20,000 photos that are all photos there are, so that a coverage is
exact:

- ``flora``: the 85 species of the built-in flora; scores are the exact P(species | picture), which
  takes 2,646 values and ties much;
- ``thousand``: 1,000 invented species in genera of eight, with a long tail;
- ``tenth``: the same with scores in steps of a tenth, so that whole sets enter and leave at once.

A calibration draws photos, replaces a share of their labels by a class of all (``uniform``) or of
the genus, and chooses thresholds for a coverage of .95. A line of the table has the mean coverage
for a promise on average, with its standard error, the mean size, the share of calibrations below
the level for a promise with probability (it may be 0.1), and its mean size; then coverage and size
of a promise on average as if all labels were right.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.conformal import conformal_rank
from florilege.calibration.rules.label_noise import (
    LabelNoise,
    NoiseKind,
    NoisyCoverage,
    NoisyLabels,
)
from florilege.calibration.threshold import THRESHOLDS
from florilege.data.flora import Flora
from florilege.data.flora.posterior import species_traits

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
OUT = Path(__file__).with_suffix(".csv")
HEAD = (
    "world", "wrong labels", "photos", "coverage, mean", "size", "below, probability",
    "size, probability",
    "ignored: coverage", "ignored: size",
)  # fmt: skip
POOL, LEVEL, DELTA = 20_000, 0.95, 0.1
RATES = (0.0, 0.02, 0.05, 0.2)
KINDS: tuple[NoiseKind, ...] = ("uniform", "genus")


class World(NamedTuple):
    """All photos, by how many thresholds their scores reach."""

    name: str
    reached: NDArray[np.int16]  # (photos, classes)
    labels: Ints  # the true species, (photos,)
    genera: Ints  # the genus of each species, (classes,)
    coverage: Floats  # of each threshold, ascending, after that of the set of all classes
    size: Floats


class _Reached(NoisyCoverage):
    """Takes how many thresholds scores reach, instead of scores: a hundred times as fast."""

    def _reached(self, scores: NDArray[np.integer]) -> Ints:  # type: ignore[override]
        return scores.astype(np.int64)


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calibrations", type=int, default=1000)
    parser.add_argument("--photos", default="300,1000,3000")
    arguments = parser.parse_args()
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for world in worlds():
            for photos in map(int, arguments.photos.split(",")):
                for line in lines(world, photos, arguments.calibrations):
                    writer.writerow(line)
                    print(*line, sep=", ", flush=True)


def worlds(pool: int = POOL) -> Iterator[World]:
    """The three worlds."""
    flora = Flora(rows={"val": pool})
    genera = species_traits()["genus"]
    yield world("flora", flora.posterior("val"), flora.labels("val"), genera)
    scores, labels, genera = thousand(pool)
    yield world("thousand", scores, labels, genera)
    yield world("tenth", np.round(scores, 1), labels, genera)


def thousand(pool: int, species: int = 1000, dimensions: int = 24) -> tuple[Floats, Ints, Ints]:
    """Scores, labels and genera of invented species: Gaussians about centres of their genera."""
    random = np.random.default_rng(0)
    genera = np.arange(species) // 8
    centres = random.normal(0, 2.2, (genera[-1] + 1, dimensions))[genera]
    means = centres + random.normal(0, 0.9, (species, dimensions))
    prior = 1 / random.permutation(np.arange(1, species + 1))
    prior /= prior.sum()
    labels = random.choice(species, pool, p=prior)
    points = means[labels] + random.normal(size=(pool, dimensions))
    logits = points @ means.T - (means**2).sum(axis=1) / 2 + np.log(prior)
    logits = 0.7 * (logits - logits.max(axis=1, keepdims=True))  # a network that is not sure enough
    scores = np.exp(logits)
    return scores / scores.sum(axis=1, keepdims=True), labels, genera


def world(name: str, scores: Floats, labels: Ints, genera: Ints) -> World:
    """A world from its scores."""
    reached = np.searchsorted(THRESHOLDS[::-1], scores, side="right").astype(np.int16)
    bins = THRESHOLDS.size + 1
    true = reached[np.arange(len(labels)), labels]
    counts = [np.bincount(each.reshape(-1), minlength=bins) for each in (true, reached)]
    coverage, size = (np.cumsum(each[::-1])[::-1] / len(labels) for each in counts)
    return World(name, reached, labels, genera, coverage, size)


def replaced(random: np.random.Generator, labels: Ints, noisy: NoisyLabels, rate: float) -> Ints:
    """The labels, a share of them replaced by a class drawn evenly from their group."""
    order, starts = np.argsort(noisy.groups, kind="stable"), np.zeros(noisy.groups.size, np.int64)
    starts[:] = np.searchsorted(noisy.groups[order], noisy.groups)
    place = (random.random(labels.size) * noisy.sizes[labels]).astype(np.int64)
    drawn_anew = random.random(labels.size) < rate
    return np.where(drawn_anew, order[starts[labels] + place], labels)


def lines(world: World, photos: int, calibrations: int) -> Iterator[list[str]]:
    """A line for each kind and rate."""
    for kind in KINDS:
        for rate in RATES if kind == "uniform" else RATES[1:]:
            means, likely, ignored = simulated(world, kind, rate, photos, calibrations)
            mean, error = means.coverage.mean(), means.coverage.std() / np.sqrt(calibrations)
            below = (likely.coverage < LEVEL).mean()
            about = "none" if rate == 0 else f"{rate:.0%} {kind}"
            yield [
                world.name, about, f"{photos:,}", f"{mean:.4f} ± {error:.4f}",
                f"{means.size.mean():.2f}", f"{below:.3f}", f"{likely.size.mean():.2f}",
                f"{ignored.coverage.mean():.3f}", f"{ignored.size.mean():.2f}",
            ]  # fmt: skip


class Results(NamedTuple):
    """Coverage and size of all photos, for each calibration."""

    coverage: Floats
    size: Floats


def simulated(
    world: World, kind: NoiseKind, rate: float, photos: int, calibrations: int, *, seed: int = 0
) -> tuple[Results, Results, Results]:
    """Results of a promise on average, with probability, and of the former on labels as they are.

    At a rate of 0 all three are of the corrected method, which is then not the one in use.
    """
    random, groups = np.random.default_rng((photos, seed)), world.genera
    if kind == "uniform":
        groups = np.zeros_like(groups)
    noisy = NoisyLabels(noise=LabelNoise.of(kind, rate), groups=groups)
    indices = list[tuple[int, int, int]]()
    for _ in range(calibrations):
        rows = random.integers(len(world.labels), size=photos)
        labels = replaced(random, world.labels[rows], noisy, rate)
        counts, reached = _Reached(noisy), world.reached[rows]
        counts.add(reached, labels)  # type: ignore[arg-type]  # see _Reached
        thresholds = (
            counts.mean_threshold(LEVEL),
            counts.probability_threshold(LEVEL, delta=DELTA),
        )
        places = [np.searchsorted(THRESHOLDS[::-1], cut, side="right") for cut in thresholds]
        rank = conformal_rank(LEVEL, photos)
        true = np.sort(reached[np.arange(photos), labels])
        indices.append((int(places[0]), int(places[1]), int(true[rank - 1])))
    chosen = np.array(indices).T
    mean, likely, ignored = (Results(world.coverage[i], world.size[i]) for i in chosen)
    return mean, likely, ignored


if __name__ == "__main__":
    main()
