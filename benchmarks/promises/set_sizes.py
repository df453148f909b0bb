"""Does the interval of the hit rate of sets of one size hold, where such sets are few or sure?

    python -m benchmarks.promises.set_sizes [--calibrations 1000]

Plants with four photos each and a region, from a pool that is all photos there are. A calibration
draws some, makes the sets of ``average_k`` at 3 for the rows that show a view, with the scores that
are usually chosen, and takes the 95 % interval of the hit rate of sets of 1 and of 4 species as
``calibrate`` does: with the effective rows of photos that share a plant. ``set_sizes.csv`` has how
often it holds the true hit rate of this threshold, and how often Wilson's alone does, which ends
too early where hardly any set misses. Calibrations without a set of the size do not count.
"""

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from benchmarks.promises.calibrations import Outputs
from benchmarks.promises.pools import LISTED, Pool, invented
from florilege.calibration.calibrate.score_sources import LabelledPhotos, PhotoPlaces
from florilege.calibration.calibrate.threshold_tables import measure
from florilege.calibration.intervals import score_interval, wilson
from florilege.calibration.rules import class_prior
from florilege.calibration.rules.score_summary import ScoreSummary
from florilege.calibration.view import Scoring, View

OUT = Path(__file__).with_suffix(".csv")
HEAD = (
    "view", "photos", "size", "such sets", "true hit rate", "interval holds", "Wilson's holds"
)  # fmt: skip
VIEWS = (View(), View(3), View(list="half"), View(2, "half", "region"))
PHOTOS, SIZES, K = (300, 1500, 3000), (1, 4), 3.0
STRENGTH, FUSION = 0.75, 0.5  # that calibrations of this pool choose most often
Held = tuple[float, ...]  # sets, true rate, and whether each interval holds it


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calibrations", type=int, default=1000)
    count, pool = parser.parse_args().calibrations, invented(a_plant=4, places=True)
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for view in VIEWS:
            for photos in PHOTOS:
                for line in lines(pool, view, photos, count):
                    writer.writerow(line)
                    print(*line, sep=" | ", flush=True)


def lines(pool: Pool, view: View, photos: int, count: int) -> Iterator[list[str]]:
    """A line for each size of sets."""
    random, of_sizes = np.random.default_rng(photos), dict[int, list[Held]]()
    for _ in range(count):
        for size, held in calibration(pool, view, photos, random):
            of_sizes.setdefault(size, []).append(held)
    for size, every in sorted(of_sizes.items()):
        sets, rate, *holds = np.array(every).T
        shares = [f"{own.mean():.3f} ± {own.std() / np.sqrt(own.size):.3f}" for own in holds]
        photos_of_view = "one photo" if view.photos == 1 else f"{view.photos} photos"
        known = [photos_of_view, view.place, view.list and "list"]
        yield [
            ", ".join(filter(None, known)),
            str(photos),
            str(size),
            f"{sets.mean():.0f}",
            f"{rate.mean():.3f}",
            *shares,
        ]


def calibration(
    pool: Pool, view: View, photos: int, random: np.random.Generator
) -> Iterator[tuple[int, Held]]:
    """Whether the intervals of a calibration hold, by the size of the sets."""
    sample = pool.draw(random, photos)
    labels, listed = pool.labels[sample.rows], np.flatnonzero(LISTED(np.arange(pool.species)))
    places = None
    if view.place is not None:
        assert pool.occurrences is not None
        there = [pool.place(row) for row in sample.rows.tolist()]
        places = PhotoPlaces.of(pool.occurrences, there, labels)
    names = [str(plant) for plant in sample.plants.tolist()]
    outputs = Outputs({"linear": pool.logits["linear"][sample.rows]}, labels, observations=names)
    scoring = Scoring(
        head="linear", score_kind="softmax", fusion=None if view.photos == 1 else FUSION
    )
    lists, prior = {"half": listed.tolist()}, class_prior(pool.counts)
    shown = LabelledPhotos(outputs=outputs, prior=prior, lists=lists, places=places)
    if shown.showing(view).made_from == "same_class":  # too few plants: nothing is promised
        return
    strength = 0.0 if view.place is None else STRENGTH
    source = shown.source(view, scoring, strength=strength)
    summary = ScoreSummary(rows=source.rows, classes=source.classes, max_average_k=K)
    for scores, _ in source.blocks():
        summary.update(scores)
    rule = summary.average_k(K)
    measurement = measure(source, [rule])
    truth, cut = pool.truth(view, scoring, None, strength), rule.lambda_val or 0.0
    part = min(1.0, measurement.effective_rows(0)[1] / source.rows)
    for size in SIZES:
        sets = int(measurement.histogram[0, size])
        if sets:
            hits, rate = int(measurement.hit_histogram[0, size]), truth.coverage_at(size, cut)
            ends = (
                wilson(hits, sets, effective=part * sets),
                score_interval(hits / sets, part * sets),
            )
            yield size, (sets, rate, *(low <= rate <= high for low, high in ends))


if __name__ == "__main__":
    main()
