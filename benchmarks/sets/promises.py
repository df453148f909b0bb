"""What the set rules promise, and what 1,000 calibrations on the flora's exact posterior do.

``python -m benchmarks.sets.promises`` prints a Markdown table: what is promised, what was measured
on photos that did not calibrate, and the standard error of that measurement.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.calibration_settings import CalibrationPlan
from florilege.calibration.calibrate.score_sources import Source
from florilege.calibration.calibrate.threshold_tables import (
    promised_tables,
    row_of,
    tabulate,
)
from florilege.calibration.conformal import promised_coverage
from florilege.calibration.guarantees import Guarantee
from florilege.calibration.intervals import mean_interval, wilson
from florilege.calibration.measurement import Measurement
from florilege.calibration.metrics import class_mean
from florilege.calibration.nested_cross_validation import choose
from florilege.calibration.photo_groups import one_of_each
from florilege.calibration.rules import calibrate
from florilege.calibration.sets import SetRule
from florilege.calibration.view import Scoring
from florilege.data.flora import Flora
from florilege.data.flora.species import SPECIES

POOL = 60_000
ROWS = 500
NEW = 10_000
CAP = 20
FIXED = 0.1  # a threshold that is not chosen, to test intervals alone
FEWEST = 9  # photos of a class without which it has no threshold of its own at 0.9

Floats = NDArray[np.floating[Any]]
Labels = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Line:
    """One row of the table."""

    claim: str
    promised: str
    values: Floats

    def __str__(self) -> str:
        error = self.values.std(ddof=1) / np.sqrt(self.values.size)
        return f"| {self.claim} | {self.promised} | {self.values.mean():.4f} | {error:.4f} |"


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Exact posteriors ``(rows, classes)`` of many photos with their species ``(rows,)``."""

    scores: Floats
    labels: Labels
    counts: Labels

    def splits(self, count: int, rows: int = ROWS) -> Iterator[tuple["Pool", "Pool"]]:
        """Photos to calibrate on and other photos, again and again."""
        random = np.random.default_rng(1)
        for _ in range(count):
            result = random.choice(len(self.labels), rows + NEW, replace=False)
            yield self.at(result[:rows]), self.at(result[rows:])

    def at(self, rows: NDArray[np.intp]) -> "Pool":
        """Some of the photos."""
        return Pool(scores=self.scores[rows], labels=self.labels[rows], counts=self.counts)


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--splits", type=int, default=1000)
    splits = parser.parse_args().splits
    flora = Flora(rows={"val": POOL})
    labels = flora.labels("val")
    counts = np.bincount(labels, minlength=SPECIES)
    pool = Pool(scores=flora.posterior("val"), labels=labels, counts=counts)
    print(f"{splits} calibrations on {ROWS} photos, measured on {NEW} others; delta = 0.1.\n")
    print("| claim | promised | measured | standard error |\n|---|---|---|---|")
    tables = sizes(pool, splits), coverages(pool, splits), by_class(pool, splits // 5)
    for line in chain(*tables, choices(splits), plants(splits)):
        print(line, flush=True)


def sizes(pool: Pool, splits: int) -> Iterator[Line]:
    """Promises about the mean set size at K = 3."""
    plain = measured(pool, splits, size, rule="average_k", average_k=3)
    yield Line(claim="`average_k`: mean size", promised="3 and ties", values=plain)
    yield Line(claim="`average_k`: share above 3", promised="about 0.5", values=1.0 * (plain > 3))
    for min_size in (0, 1):
        mean = measured(
            pool, splits, size, rule="average_k", average_k=3, guarantee="mean", max_size=CAP,
            min_size=min_size,
        )  # fmt: skip
        claim = f'`guarantee="mean"`, `min_size={min_size}`: mean size'
        yield Line(claim=claim, promised="<= 3", values=mean)
    sure = measured(
        pool, splits, size, rule="average_k", average_k=3, guarantee="probability", max_size=CAP
    )
    yield Line(claim='`guarantee="probability"`: mean size', promised="", values=sure)
    claim = '`guarantee="probability"`: share above 3'
    yield Line(claim=claim, promised="<= 0.1", values=1.0 * (sure > 3))
    balanced = measured(
        pool, splits, size, rule="balanced_average_k", average_k=3, class_counts=pool.counts
    )
    yield Line(claim="`balanced_average_k`: mean size", promised="3 and ties", values=balanced)
    class_counts = {"average_k": None, "balanced_average_k": pool.counts}
    for rule in class_counts:
        macro = measured(
            pool, splits, macro_hit_rate, rule=rule, average_k=3, class_counts=class_counts[rule]
        )
        yield Line(claim=f"`{rule}`: hit rate over classes", promised="", values=macro)


def coverages(pool: Pool, splits: int) -> Iterator[Line]:
    """Promises about the share of sets with the truth, at 0.9."""
    promised = f"0.9 to {0.9 + 1 / (ROWS + 1):.4f}, ties apart"
    plain = measured(pool, splits, hit_rate, rule="coverage", coverage=0.9, min_size=0)
    yield Line(claim="`coverage`, `min_size=0`: hit rate", promised=promised, values=plain)
    remaining = measured(pool, splits, hit_rate, rule="coverage", coverage=0.9)
    yield Line(claim="`coverage`, `min_size=1`: hit rate", promised=">= 0.9", values=remaining)
    sure = measured(pool, splits, hit_rate, rule="coverage", coverage=0.9, min_size=0, delta=0.1)
    yield Line(claim="`coverage`, `delta=0.1`: hit rate", promised=">= 0.9", values=sure)
    for how, delta, promised in (
        ("without `delta`", None, "about 0.5"),
        ("`delta=0.1`", 0.1, "<= 0.1"),
    ):
        reference = measured(
            pool, splits, true_mass, rule="coverage", coverage=0.9, min_size=0, delta=delta
        )
        claim = f"`coverage`, {how}: share of calibrations that cover less than 0.9"
        yield Line(claim=claim, promised=promised, values=1.0 * (reference < 0.9))
    balanced = measured(
        pool, splits, hit_rate, rule="balanced_coverage", coverage=0.9, class_counts=pool.counts
    )
    yield Line(claim="`balanced_coverage`: hit rate", promised=">= 0.9", values=balanced)
    for weight in (0.0, 0.25, 0.5, 0.75, 0.9, 1.0):
        values = measured(
            pool, splits, hit_rate, rule="class_coverage", coverage=0.9, macro_weight=weight,
            class_counts=pool.counts, min_size=0,
        )  # fmt: skip
        promised = f">= {promised_coverage(0.9, weight):g}"
        claim = f"`class_coverage`, `macro_weight={weight:g}`: hit rate"
        yield Line(claim=claim, promised=promised, values=values)


def by_class(pool: Pool, splits: int) -> Iterator[Line]:
    """What ``class_coverage`` promises at ``macro_weight`` 1, of the classes with a threshold."""
    rates = np.full((splits, len(pool.counts)), np.nan)
    for rate, (calibration, new) in zip(rates, pool.splits(splits, 4000), strict=True):
        rule = calibrate(
            "class_coverage", calibration.scores, calibration.labels, coverage=0.9, min_size=0,
            macro_weight=1.0,
        )  # fmt: skip
        total = np.bincount(new.labels, hits(rule.sets(new.scores), new), minlength=rate.size)
        photos = np.bincount(new.labels, minlength=rate.size)
        enough = np.bincount(calibration.labels, minlength=rate.size) >= FEWEST
        mask = enough & (photos > 0)
        rate[mask] = total[mask] / photos[mask]
    often = np.flatnonzero(np.isfinite(rates).mean(axis=0) > 0.5)
    worst = rates[:, often[np.nanmean(rates[:, often], axis=0).argmin()]]
    claim = f"the same at 1, 4,000 photos: hit rate of the classes with {FEWEST} or more"
    yield Line(claim=claim, promised=">= 0.9", values=np.nanmean(rates, axis=1))
    claim = f"the same, of the lowest of the {often.size} classes that mostly have as many"
    yield Line(claim=claim, promised=">= 0.9", values=worst[np.isfinite(worst)])


def choices(splits: int) -> Iterator[Line]:
    """Promises about the hit rate of the best of ten equally good heads on 600 photos."""
    random = np.random.default_rng(2)
    tables = [random.random((10, 600)) < 0.8 for _ in range(splits)]
    naive = np.array([hits.mean(axis=1).max() for hits in tables]) - 0.8
    honest = np.array([choose(hits)[1] for hits in tables]) - 0.8
    yield Line(claim="best of ten heads: its own hit rate, too good by", promised="", values=naive)
    yield Line(claim="best of ten heads: the nested one, too good by", promised="0", values=honest)


def plants(splits: int, *, photos: int = 4, correlation: float = 0.8) -> Iterator[Line]:
    """Promises where photos come in plants and errors on those of one plant are correlated."""
    garden, random = Garden(), np.random.default_rng(3)
    whole = garden.draw(random, 50_000, photos, correlation)
    figures = np.array([figures_of_plants(garden.draw(random, 125, photos, correlation), whole)
                        for _ in range(splits)])  # fmt: skip
    for place, (claim, promised) in enumerate(PLANTS.items()):
        yield Line(claim=f"plants: {claim}", promised=promised, values=figures[:, place])


PLANTS = {
    "interval of the hit rate holds it": "0.95",
    "the same if all photos are independent": "",
    "interval of the mean size holds it": "0.95",
    "the same of the size if all photos are independent": "",
    "`coverage`: hit rate": ">= 0.9",
    "`coverage`, `delta=0.1`: share of calibrations that cover less than 0.9": "<= 0.1",
    "the same from all photos": "",
    '`average_k`, `guarantee="mean"`: mean size': "<= 3",
    '`average_k`, `guarantee="probability"`: share above 3': "<= 0.1",
    "`class_coverage`, `macro_weight=1`: hit rate of the classes with 9 plants": ">= 0.9",
}
"""What :func:`figures_of_plants` gives, and what is promised of it."""


@dataclass(frozen=True, kw_only=True)
class Plants:
    """Scores ``(rows, classes)``, species and numbers of the plants ``(rows,)`` of photos."""

    scores: NDArray[np.float64]
    labels: Labels
    plants: Labels

    def hits(self, lambda_val: float) -> NDArray[np.bool_]:
        """Whether the set of each photo at this threshold holds its species, ``(rows,)``."""
        hit: NDArray[np.bool_] = self.scores[np.arange(len(self.labels)), self.labels] >= lambda_val
        return hit

    def source(self) -> Source:
        """As a calibration reads them."""
        return Source(
            blocks=lambda: iter([(self.scores, self.labels)]),
            rows=len(self.labels),
            classes=self.scores.shape[1],
            scoring=Scoring(head="linear", score_kind="softmax"),
            plants=self.plants,
        )


class Garden:
    """Thirty species with a long tail, as Gaussians about centres that come in six genera."""

    def __init__(self) -> None:
        random, species = np.random.default_rng(11), np.arange(1, 31)
        self.prior = (1 / species) / (1 / species).sum()
        genera = np.repeat(random.normal(0, 2.2, (6, 4)), 5, axis=0)
        self.means = (genera + random.normal(0, 0.8, (30, 4)))[random.permutation(30)]

    def draw(
        self, random: np.random.Generator, plants: int, photos: int, correlation: float
    ) -> Plants:
        """Photos whose deviations from their species have this correlation within a plant."""
        labels = np.repeat(random.choice(30, plants, p=self.prior), photos)
        own = np.repeat(random.standard_normal((plants, 4)), photos, axis=0)
        other = random.standard_normal((plants * photos, 4))
        points = self.means[labels] + np.sqrt(correlation) * own + np.sqrt(1 - correlation) * other
        squared = ((points[:, np.newaxis] - self.means) ** 2).sum(axis=2)
        joint = self.prior * np.exp(-squared / 2)
        return Plants(
            scores=joint / joint.sum(axis=1, keepdims=True),
            labels=labels,
            plants=np.repeat(np.arange(plants), photos),
        )


def figures_of_plants(photos: Plants, whole: Plants) -> list[float]:
    """What a calibration on ``photos`` does on ``whole``, in the order of :data:`PLANTS`."""
    plan = CalibrationPlan(
        classes=30, ks=(3.0,), coverages=(0.9,), min_size=0, max_size=CAP, macro_weight=1.0
    )
    plain = {
        table.rule: table.columns.row(0) for table in tabulate(photos.source(), plan, (3.0,)).tables
    }
    sure = {
        (table.rule, table.guarantee): table
        for table in promised_tables(photos.source(), plan, np.ones(30))
    }

    def threshold(rule: str, guarantee: Guarantee) -> float:
        (lambda_val,) = sure[rule, guarantee].columns.lambda_val
        return float(lambda_val)

    def size_at(lambda_val: float) -> float:
        return float(np.minimum((whole.scores >= lambda_val).sum(axis=1), CAP).mean())

    rows = len(photos.labels)
    options = SetRule(rule="average_k", lambda_val=FIXED, min_size=0, rows=rows)
    measurement = Measurement([options], 30, plants=photos.plants)
    measurement.update(photos.scores, photos.labels)
    row = row_of(measurement, 0, 3.0, "softmax")
    hits, size = float(whole.hits(FIXED).mean()), float((whole.scores >= FIXED).sum(axis=1).mean())
    low, high = wilson(int(measurement.hits[0]), rows)
    least, most = mean_interval(row.size, row.size_deviation, rows)
    naive = calibrate("coverage", photos.scores, photos.labels, coverage=0.9, min_size=0, delta=0.1)
    by_class = sure["class_coverage", "mean"].by_class
    assert by_class is not None
    assert row.hit_low is not None
    assert row.hit_high is not None
    (thresholds,) = map(np.array, by_class.thresholds)
    mask = whole.scores[np.arange(len(whole.labels)), whole.labels] >= thresholds[whole.labels]
    often = np.bincount(photos.labels[one_of_each(photos.plants)], minlength=30) >= FEWEST
    return [
        row.hit_low <= hits <= row.hit_high,
        low <= hits <= high,
        row.size_low <= size <= row.size_high,
        least <= size <= most,
        float(whole.hits(plain["coverage"].lambda_val or 0.0).mean()),
        whole.hits(threshold("coverage", "probability")).mean() < 0.9,
        whole.hits(naive.lambda_val or 0.0).mean() < 0.9,
        size_at(threshold("average_k", "mean")),
        size_at(threshold("average_k", "probability")) > 3,
        float(mask[often[whole.labels]].mean()),
    ]


def measured(
    pool: Pool,
    splits: int,
    figure: Callable[[NDArray[np.bool_], Pool], float],
    *,
    rows: int = ROWS,
    **settings: Any,
) -> Floats:
    """One figure of the sets of other photos, for each calibration."""
    values = []
    for calibration, new in pool.splits(splits, rows):
        rule = calibrate(scores=calibration.scores, labels=calibration.labels, **settings)
        values.append(figure(rule.sets(new.scores), new))
    return np.array(values)


def size(members: NDArray[np.bool_], photos: Pool) -> float:
    """Mean set size."""
    return float(members.sum() / len(photos.labels))


def hits(members: NDArray[np.bool_], photos: Pool) -> NDArray[np.bool_]:
    """Whether each set holds the truth."""
    result: NDArray[np.bool_] = members[np.arange(len(photos.labels)), photos.labels]
    return result


def hit_rate(members: NDArray[np.bool_], photos: Pool) -> float:
    """Share of sets that hold the truth."""
    return float(hits(members, photos).mean())


def true_mass(members: NDArray[np.bool_], photos: Pool) -> float:
    """Chance that a set holds the truth, by the exact posterior."""
    return float((members * photos.scores).sum() / len(photos.labels))


def macro_hit_rate(members: NDArray[np.bool_], photos: Pool) -> float:
    """The same class by class, then the mean."""
    return class_mean(hits(members, photos), photos.labels)


if __name__ == "__main__":
    main()
