"""What the place and season of a photo add, with records that are complete, biased or useless.

    python -m benchmarks.sets.places DATA --name NAME --weights FILE --out FOLDER [--draws N]
                               [--image-size N] [--noise RATE]
    python -m benchmarks.sets.places --out FOLDER

Places are simulated, since no free set of photos names them: each class lives in some of 40 regions
and is seen around one month, drawn at random for each draw (``--spread``: the smaller, the fewer
regions). Photos of val and test get a place of their class. Records are drawn

- ``complete``: 300 a class, from where and when it lives;
- ``biased``: as many, but regions differ in observers by a factor of 20, half of the classes have
  5 records, and one class in ten none;
- ``useless``: from places that have nothing to do with the class.

``calibrate`` chooses the strength on val, and everything is measured on test, on other photos. The
head is that of ``benchmarks.sets.heads`` (cross-entropy). ``FOLDER/places.csv`` keeps a row a draw.
"""

import argparse
import csv
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.sets.head_methods import DECAY, FIRST_SEED, Bench, Row, append
from florilege.calibration.calibrate.fit import fit_record
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.calibrate.score_sources import PhotoPlaces
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.view import View
from florilege.models.regions import MONTHS, Occurrences, Place
from florilege.models.runtime import silence_telemetry

REGIONS = 40
RECORDS = 300
FEW = 5
SPREADS = (0.05, 0.5)
KINDS = ("complete", "biased", "useless")
KS = (1.0, 2.0, 3.0, 5.0)
HEAD = "linear"


def lives(random: np.random.Generator, classes: int, spread: float) -> NDArray[np.float64]:
    """Probability of each region and month for photos of each class, ``(classes, cells)``."""
    regions = random.dirichlet(np.full(REGIONS, spread), size=classes)
    apart = np.abs(np.arange(MONTHS) - random.integers(MONTHS, size=(classes, 1)))
    months = np.exp(-0.5 * (np.minimum(apart, MONTHS - apart) / 1.5) ** 2)
    months /= months.sum(axis=1, keepdims=True)
    return np.asarray((regions[:, :, np.newaxis] * months[:, np.newaxis]).reshape(classes, -1))


def cells(
    random: np.random.Generator, of: NDArray[np.float64], labels: NDArray[np.int64]
) -> NDArray[np.int64]:
    """A region and month for each label, as the index of a cell."""
    drawn = [random.choice(of.shape[1], p=of[label] / of[label].sum()) for label in labels]
    return np.array(drawn, dtype=np.int64)


def places(drawn_cells: NDArray[np.int64]) -> list[Place]:
    """The place of each cell."""
    return [Place(f"r{cell // MONTHS}", int(cell % MONTHS) + 1) for cell in drawn_cells.tolist()]


def records(
    random: np.random.Generator, of: NDArray[np.float64], kind: str
) -> tuple[Occurrences, float]:
    """A table of occurrences of this kind, and the share of classes without any record."""
    classes = len(of)
    counts = np.full(classes, RECORDS)
    if kind == "useless":
        of = lives(random, classes, 0.5)
    if kind == "biased":
        effort = np.repeat(20.0 ** random.random(REGIONS), MONTHS)
        of = of * effort
        counts[random.random(classes) < 0.5] = FEW
        counts[random.random(classes) < 0.1] = 0
    labels = np.repeat(np.arange(classes), counts)
    where = places(cells(random, of, labels))
    regions, months = zip(*where, strict=True)
    ones = np.ones(len(labels))
    table = Occurrences.of(regions, months, labels, ones, classes=classes)
    return table, float((counts == 0).mean())


def outputs_of(
    bench: Bench, logits: NDArray[np.float32], part: str, rows: NDArray[np.int64]
) -> SplitOutputs:
    """The outputs that `calibrate` reads."""
    labels = bench.features[part].split.labels[rows]
    outputs = SplitOutputs({HEAD: logits.shape[1]}, labels, split=part)
    outputs.append({HEAD: logits[rows]})
    outputs.data_sha256 = part
    return outputs


def hit_rates(
    record: CalibrationRecord,
    logits: NDArray[np.float32],
    labels: NDArray[np.int64],
    occurrences: Occurrences | None = None,
    where: Sequence[Place] = (),
) -> tuple[list[float], list[float]]:
    """Percent of sets with the true class and mean sizes by ``KS``; without places if None."""
    prior, hits, sizes = record.place_prior, [], []
    for k in KS:
        kind = where[0].kind if where and prior and prior.strength else None
        point = record.point(View(place=kind), record.setting("average_k", k))
        lifts: list[NDArray[np.float64] | None] = [None] * len(labels)
        if kind is not None and occurrences is not None and prior is not None:
            lifts = [prior.strength * occurrences.log_lift(place) for place in where]
        scores = np.array(
            [point.scores(row[np.newaxis], lift) for row, lift in zip(logits, lifts, strict=True)]
        )
        inside = point.sets(scores)
        hits.append(100 * float(inside[np.arange(len(labels)), labels].mean()))
        sizes.append(float(inside.sum(axis=1).mean()))
    return hits, sizes


def measure(bench: Bench, logits: Mapping[str, NDArray[np.float32]], draw: int) -> list[Row]:
    """A row for each spread and kind of records."""
    classes, rows = len(bench.dataset.classes), []
    labels = {part: bench.features[part].split.labels for part in logits}
    plan = CalibrationPlan(
        classes=classes, ks=KS, coverages=(), images=(), rejection_method=None, head=HEAD,
        score_kind="softmax", temperatures=(1.0,),
    )  # fmt: skip
    for spread in SPREADS:
        random = np.random.default_rng((draw, int(100 * spread)))
        of = lives(random, classes, spread)
        where = {part: places(cells(random, of, labels[part])) for part in logits}
        for kind in KINDS:
            table, absent = records(random, of, kind)
            every = np.arange(len(labels["val"]))
            photos = PhotoPlaces(table, where["val"], simulated=False)
            record = fit_record(
                outputs_of(bench, logits["val"], "val", every), plan, class_counts=None,
                places=photos,
            )  # fmt: skip
            assert record.place_prior is not None
            ours = (record, logits["test"], labels["test"])
            plain, _ = hit_rates(*ours)
            by_region, _ = hit_rates(*ours, table, [Place(p.region) for p in where["test"]])
            by_both, sizes = hit_rates(*ours, table, where["test"])
            rows.append(
                {
                    "spread": spread, "records": kind, "draw": draw, "without": round(absent, 3),
                    "strength": record.place_prior.strength,
                    "promised_gain": round(100 * record.place_prior.gain, 3),
                    **{f"plain_{k:g}": round(x, 3) for k, x in zip(KS, plain, strict=True)},
                    **{f"region_{k:g}": round(x, 3) for k, x in zip(KS, by_region, strict=True)},
                    **{f"both_{k:g}": round(x, 3) for k, x in zip(KS, by_both, strict=True)},
                    "size_3": round(sizes[KS.index(3.0)], 3),
                }
            )  # fmt: skip
    return rows


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Means over the draws at K = 1 / 2 / 3 / 5, and the standard error of the gain at 3."""
    names = "data, regions of a class, records, strength, no place, region, region and month"
    title = f"| {names.replace(', ', ' | ')} | gain at 3 | mean size at 3 |"
    lines = [title, "|---" * 9 + "|"]
    keys = dict.fromkeys((row["data"], row["spread"], row["records"]) for row in rows)
    for key in keys:
        of = [row for row in rows if (row["data"], row["spread"], row["records"]) == key]
        cells_ = []
        for name in ("plain", "region", "both"):
            figures = np.array([[float(row[f"{name}_{k:g}"]) for k in KS] for row in of])
            cells_.append(" / ".join(f"{value:.1f}" for value in figures.mean(axis=0)))
        gain = np.array([float(row["both_3"]) - float(row["plain_3"]) for row in of])
        error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else 0.0
        size = np.mean([float(row["size_3"]) for row in of])
        strengths = ", ".join(sorted({row["strength"] for row in of}))
        few = "few" if float(key[1]) < 0.2 else "many"
        lines.append(
            f"| {key[0]} | {few} | {key[2]} | {strengths} | {' | '.join(cells_)} | "
            f"{gain.mean():+.2f} ± {error:.2f} | {size:.2f} |"
        )
    return "\n".join(lines)


def main() -> None:
    """Measure what is missing, or print the table."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--name", default="photos")
    parser.add_argument("--weights")
    parser.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--noise", type=float, default=0.0)
    arguments = parser.parse_args()
    result = arguments.out / "places.csv"
    if arguments.data is None:
        print(table(list(csv.DictReader(result.open()))))
        return
    flags = {key: getattr(arguments, key) for key in ("data", "weights", "backbone", "image_size")}
    flags["features"] = str(arguments.out / "features")
    arguments.out.mkdir(parents=True, exist_ok=True)
    bench = Bench.open(flags, arguments.out / arguments.name)
    fit = bench.fit("cross_entropy", DECAY, arguments.noise, FIRST_SEED)
    logits = {part: bench.logits(fit, part)[HEAD] for part in ("val", "test")}
    for draw in range(arguments.draws):
        for row in measure(bench, logits, draw):
            append(result, {"data": arguments.name, **row})
            print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
