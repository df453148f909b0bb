"""What hits on rare species cost common ones, at a given mean size of the sets.

    python -m benchmarks.rules.common_and_rare

Photos of the 85 species of the flora and of 1,000 invented species with a long tail, with their
exact posterior: no network is better. ``balanced_average_k`` is calibrated on 8,000 photos drawn
as they are taken, for each mean size and ``macro_weight``. Micro is the hit rate over photos, macro
the mean over species. Photos to measure on are as many of each species, weighted by how common it
is for sizes and for micro, so that rare species are measured as well as common ones.

``TACP`` is that of ``front_rules``, with the threshold that gives the same mean size.
"""

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.promises.pools import Floats, Ints
from benchmarks.promises.pools import invented as photos_of
from benchmarks.rules.front_rules import COMMON, PENALTIES, tail_aware
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import scores as scores_of
from florilege.calibration.threshold import average_k_threshold
from florilege.data.flora import Flora
from florilege.data.flora.posterior import SPECIES

OUT = Path(__file__).with_suffix(".csv")
HEAD = ("species", "rule", "K", "macro_weight", "micro", "macro", "common", "rare")
KS = (1.5, 2.0, 3.0, 5.0)
WEIGHTS = (0.0, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 1.0)
ROWS, POOL = 8000, 40_000  # photos that calibrate, and all
OF_EACH = 20  # photos of each species to measure on


class World(NamedTuple):
    """Scores of photos as they are taken, of photos of each species, and how common these are."""

    name: str
    scores: Floats  # (ROWS, species)
    even: Floats  # (photos, species)
    labels: Ints  # of ``even``
    counts: Ints  # photos of each species, (species,)


def main() -> None:
    """Measure, print and write."""
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for world in (flora(), invented()):
            for line in lines(world):
                writer.writerow(line)
                print(*line, sep=", ", flush=True)


def flora() -> World:
    """The built-in flora."""
    photos = Flora(rows={"val": POOL})
    return world("flora", photos.posterior("val"), photos.labels("val"), SPECIES)


def invented() -> World:
    """1,000 species with a long tail."""
    pool = photos_of(photos=POOL, species=1000, dimensions=12)
    return world("1,000 species", scores_of(pool.logits["linear"], "softmax"), pool.labels, 1000)


def world(name: str, scores: Floats, labels: Ints, classes: int) -> World:
    """The first photos calibrate; the others are measured, as many of each species if there are."""
    even = even_rows(labels[ROWS:], classes) + ROWS
    counts = np.bincount(labels, minlength=classes)
    return World(name, scores[:ROWS], scores[even], labels[even], np.maximum(counts, 1))


def even_rows(labels: Ints, classes: int) -> NDArray[np.intp]:
    """The first photos of each class."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(classes))
    place = np.arange(labels.size) - starts[labels[order]]
    return np.sort(order[place < OF_EACH])


def lines(world: World) -> Iterator[list[str]]:
    """A line for each mean size and weight."""
    for k in KS:
        for weight in WEIGHTS:
            rule = calibrate(
                "balanced_average_k", world.scores, average_k=k, class_counts=world.counts,
                macro_weight=weight, min_size=0,
            )  # fmt: skip
            yield [world.name, "balanced_average_k", f"{k:g}", f"{weight:g}",
                   *shares(world, rule.sets(world.even))]  # fmt: skip
        for penalty in PENALTIES:
            drawn, even = (
                tail_aware(scores, world.counts, penalty) for scores in (world.scores, world.even)
            )
            members = even >= average_k_threshold(drawn, k).lambda_val
            yield [world.name, f"TACP, penalty {penalty:g}", f"{k:g}", "", *shares(world, members)]


def shares(world: World, members: NDArray[np.bool_]) -> list[str]:
    """Micro, macro, and the hit rates of the most common and the rarest tenth of the species."""
    hits, classes = members[np.arange(world.labels.size), world.labels], world.counts.size
    rows = np.bincount(world.labels, minlength=classes)
    with np.errstate(invalid="ignore"):
        by_class = np.bincount(world.labels, hits, classes) / rows  # NaN for a class without photos
    measured, order = rows > 0, np.argsort(-world.counts, kind="stable")
    tenth = int(COMMON * classes)
    figures = (
        np.average(by_class[measured], weights=world.counts[measured]),
        by_class[measured].mean(),
        np.nanmean(by_class[order[:tenth]]),
        np.nanmean(by_class[order[-tenth:]]),
    )
    return [f"{figure:.3f}" for figure in figures]


if __name__ == "__main__":
    main()
