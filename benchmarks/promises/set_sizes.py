"""How often does the interval of the hit rate of sets of one size hold, beside Wilson's?

    python -m benchmarks.promises.set_sizes [--calibrations 1000] [--wrong-labels]

Draws photos from the pool of the composed views, four of each plant, chooses the threshold of three
species on average, and makes the interval of the hit rate of the sets of one species and of four as
``calibrate`` does: with the effective rows of photos that share a plant. ``--wrong-labels`` draws
independent photos instead, of which some labels are wrong, and takes these out. ``set_sizes.csv``
has how often the interval holds the true hit rate of this threshold, and how often Wilson's alone
does, which ends too early where hardly any set misses. Calibrations without a set of the size do
not count.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.promises.calibrations import Outputs, wrong_labels
from benchmarks.promises.pools import LISTED, Pool, invented
from florilege.calibration.calibrate.score_sources import LabelledPhotos, PhotoPlaces
from florilege.calibration.calibrate.threshold_tables import measure
from florilege.calibration.intervals import score_interval
from florilege.calibration.record.operating_point import hit_share
from florilege.calibration.rules.label_noise import NoiseKind
from florilege.calibration.rules.score_summary import ScoreSummary
from florilege.calibration.view import Scoring, View

OUT = Path(__file__).with_suffix(".csv")
HEAD = (
    "view", "photos", "wrong labels", "size", "such sets", "true hit rate", "interval holds",
    "Wilson's holds",
)  # fmt: skip
VIEWS = (View(), View(3), View(list="half"), View(2, "half", "region"))
SIZES, K = (1, 4), 3.0
NOISES: tuple[tuple[NoiseKind, float], ...] = tuple(
    (kind, rate) for kind in ("uniform", "genus") for rate in (0.02, 0.05, 0.2)
)
STRENGTH, FUSION = 0.75, 0.5  # that calibrations of this pool choose most often
Held = tuple[float, ...]  # sets, true rate, and whether each interval holds it


@dataclass(frozen=True, kw_only=True)
class Case:
    """What is drawn."""

    pool: Pool
    view: View
    photos: int
    noise: tuple[NoiseKind, float] | None = None  # kind and share of wrong labels

    @property
    def wrong(self) -> str:
        """The wrong labels in words; empty for none."""
        return "" if self.noise is None else f"{self.noise[1]:.0%} {self.noise[0]}"


def main() -> None:
    """Simulate, print and write; lines of the other cases stay."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calibrations", type=int, default=1000)
    parser.add_argument("--wrong-labels", action="store_true")
    arguments = parser.parse_args()
    wrong, made = arguments.wrong_labels, list[list[str]]()
    for case in noisy_cases() if wrong else cases():
        for line in lines(case, arguments.calibrations):
            made.append(line)
            print(*line, sep=" | ", flush=True)
    with OUT.open(encoding="utf-8", newline="") as file:
        others = [row for row in list(csv.reader(file))[1:] if bool(row[2]) != wrong]
    with OUT.open("w", encoding="utf-8", newline="") as file:
        rows = [*others, *made] if wrong else [*made, *others]
        csv.writer(file, lineterminator="\n").writerows([HEAD, *rows])


def cases() -> Iterator[Case]:
    """Every view with right labels."""
    pool = invented(a_plant=4, places=True)
    for view in VIEWS:
        for photos in (300, 1500, 3000):
            yield Case(pool=pool, view=view, photos=photos)


def noisy_cases() -> Iterator[Case]:
    """Wrong labels of independent photos whose sets hardly ever miss."""
    pool = invented(spread=1.6)
    for noise in NOISES:
        for photos in (300, 1000, 3000):
            yield Case(pool=pool, view=View(), photos=photos, noise=noise)


def lines(case: Case, count: int) -> Iterator[list[str]]:
    """A line for each size of sets."""
    random, of_sizes = np.random.default_rng(case.photos), dict[int, list[Held]]()
    for _ in range(count):
        for size, held in calibration(case, random):
            of_sizes.setdefault(size, []).append(held)
    for size, every in sorted(of_sizes.items()):
        sets, rate, *holds = np.array(every).T
        shares = [f"{own.mean():.3f} ± {own.std() / np.sqrt(own.size):.3f}" for own in holds]
        view = case.view
        photos_of_view = "one photo" if view.photos == 1 else f"{view.photos} photos"
        known = [photos_of_view, view.place, view.list and "list"]
        yield [
            ", ".join(filter(None, known)),
            str(case.photos),
            case.wrong,
            str(size),
            f"{sets.mean():.0f}",
            f"{rate.mean():.3f}",
            *shares,
        ]


def calibration(case: Case, random: np.random.Generator) -> Iterator[tuple[int, Held]]:
    """Whether the intervals of a calibration hold, by the size of the sets."""
    pool, view = case.pool, case.view
    sample = pool.draw(random, case.photos)
    labels, listed = pool.labels[sample.rows], np.flatnonzero(LISTED(np.arange(pool.species)))
    places = noise = None
    if view.place is not None:
        assert pool.occurrences is not None
        there = [pool.place(row) for row in sample.rows.tolist()]
        places = PhotoPlaces.of(pool.occurrences, there, labels)
    if case.noise is not None:
        labels, noise = wrong_labels(random, labels, pool.genera, *case.noise)
    names = [str(plant) for plant in sample.plants.tolist()]
    outputs = Outputs({"linear": pool.logits["linear"][sample.rows]}, labels, observations=names)
    scoring = Scoring(
        head="linear", score_kind="softmax", fusion=None if view.photos == 1 else FUSION
    )
    lists, counts = {"half": listed.tolist()}, pool.counts
    shown = LabelledPhotos(outputs=outputs, counts=counts, lists=lists, places=places, noise=noise)
    strength = 0.0 if view.place is None else STRENGTH
    source = shown.source(view, scoring, strength=strength)
    if source.made_from == "same_class":  # too few plants: nothing is promised
        return
    summary = ScoreSummary(rows=source.rows, classes=source.classes, max_average_k=K)
    for scores, _ in source.blocks():
        summary.update(scores)
    rule = summary.average_k(K)
    measurement = measure(source, [rule])
    truth, cut = pool.truth(view, scoring, None, strength), rule.lambda_val or 0.0
    part = min(1.0, measurement.effective_rows(0)[1] / source.rows)
    assumed = None if source.noise is None else source.noise.noise
    for size in SIZES:
        sets, hits = (
            int(counted[0, size]) for counted in (measurement.histogram, measurement.hit_histogram)
        )
        if sets:
            rate, chance = truth.coverage_at(size, cut), float(measurement.chance[0, size])
            ours = hit_share(hits, sets, part * sets, assumed, chance)
            plain = score_interval(hits / sets, part * sets)
            if assumed is not None:
                plain = assumed.interval(*plain, chance / sets)
            ends = (ours.low, ours.high), plain
            yield size, (sets, rate, *(low <= rate <= high for low, high in ends))


if __name__ == "__main__":
    main()
