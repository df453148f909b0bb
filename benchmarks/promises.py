"""What the set rules promise, and what 1,000 calibrations on the flora's exact posterior do.

``python -m benchmarks.promises`` prints a Markdown table: what is promised, what was measured on
photos that did not calibrate, and the standard error of that measurement.
"""

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.metrics import class_mean
from florilege.calibration.nested_cross_validation import choose
from florilege.calibration.rules import calibrate
from florilege.data.flora import Flora

POOL = 60_000
ROWS = 500
NEW = 10_000
CAP = 20
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
            chosen = random.choice(len(self.labels), rows + NEW, replace=False)
            yield self.at(chosen[:rows]), self.at(chosen[rows:])

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
    counts = np.bincount(labels, minlength=len(flora.classes))
    pool = Pool(scores=flora.posterior("val"), labels=labels, counts=counts)
    print(f"{splits} calibrations on {ROWS} photos, measured on {NEW} others; delta = 0.1.\n")
    print("| claim | promised | measured | standard error |\n|---|---|---|---|")
    tables = sizes(pool, splits), coverages(pool, splits), by_class(pool, splits // 5)
    for line in chain(*tables, choices(splits)):
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
    kept = measured(pool, splits, hit_rate, rule="coverage", coverage=0.9)
    yield Line(claim="`coverage`, `min_size=1`: hit rate", promised=">= 0.9", values=kept)
    sure = measured(pool, splits, hit_rate, rule="coverage", coverage=0.9, min_size=0, delta=0.1)
    yield Line(claim="`coverage`, `delta=0.1`: hit rate", promised=">= 0.9", values=sure)
    for how, delta, promised in (
        ("without `delta`", None, "about 0.5"),
        ("`delta=0.1`", 0.1, "<= 0.1"),
    ):
        known = measured(
            pool, splits, true_mass, rule="coverage", coverage=0.9, min_size=0, delta=delta
        )
        claim = f"`coverage`, {how}: share of calibrations that cover less than 0.9"
        yield Line(claim=claim, promised=promised, values=1.0 * (known < 0.9))
    balanced = measured(
        pool, splits, hit_rate, rule="balanced_coverage", coverage=0.9, class_counts=pool.counts
    )
    yield Line(claim="`balanced_coverage`: hit rate", promised=">= 0.9", values=balanced)
    for policy in ("always", "marginal"):
        for figure, name, promised in (
            (macro_hit_rate, "hit rate over classes", ">= 0.9"),
            (size, "mean size", ""),
        ):
            found = measured(
                pool, splits // 5, figure, rows=4000, rule="class_coverage", coverage=0.9,
                small_classes=policy,
            )  # fmt: skip
            claim = f"`class_coverage`, 4,000 photos, small classes `{policy}`: {name}"
            yield Line(claim=claim, promised=promised, values=found)


def by_class(pool: Pool, splits: int) -> Iterator[Line]:
    """What ``class_coverage`` promises at 0.9: each class with nine photos or more."""
    rates = np.full((splits, len(pool.counts)), np.nan)
    for rate, (calibration, new) in zip(rates, pool.splits(splits, 4000), strict=True):
        rule = calibrate(
            "class_coverage", calibration.scores, calibration.labels, coverage=0.9,
            small_classes="marginal", min_size=0,
        )  # fmt: skip
        held = np.bincount(new.labels, hits(rule.sets(new.scores), new), minlength=rate.size)
        photos = np.bincount(new.labels, minlength=rate.size)
        enough = np.bincount(calibration.labels, minlength=rate.size) >= FEWEST
        chosen = enough & (photos > 0)
        rate[chosen] = held[chosen] / photos[chosen]
    often = np.flatnonzero(np.isfinite(rates).mean(axis=0) > 0.5)
    worst = rates[:, often[np.nanmean(rates[:, often], axis=0).argmin()]]
    claim = f"`class_coverage`, 4,000 photos: hit rate of the classes with {FEWEST} or more"
    yield Line(claim=claim, promised=">= 0.9", values=np.nanmean(rates, axis=1))
    claim = f"the same, of the lowest of the {often.size} classes that mostly have as many"
    yield Line(claim=claim, promised=">= 0.9", values=worst[np.isfinite(worst)])


def choices(splits: int) -> Iterator[Line]:
    """Promises about the hit rate of the best of ten equally good heads on 600 photos."""
    random = np.random.default_rng(2)
    found = [choose(random.random((10, 600)) < 0.8) for _ in range(splits)]
    naive = np.array([choice.hit_rate for choice in found]) - 0.8
    honest = np.array([choice.honest_hit_rate for choice in found]) - 0.8
    yield Line(claim="best of ten heads: its own hit rate, too good by", promised="", values=naive)
    yield Line(claim="best of ten heads: the nested one, too good by", promised="0", values=honest)


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
    found: NDArray[np.bool_] = members[np.arange(len(photos.labels)), photos.labels]
    return found


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
