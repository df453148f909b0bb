"""Sets on traffic that is not like the validation photos: what thresholds from traffic restore.

    python -m benchmarks.strangers.shift BUNDLE --data DATA [--repeats 10]

BUNDLE serves softmax scores; DATA has a test split. From it come usual photos, photos with other
class frequencies, and blurred ones, in a new draw and order each time. Thresholds are chosen from
half of them without labels and measured on the other half; from the very same photos where halves
would be small, which makes the mean size K by itself and leaves the hit rates honest. Prints a
Markdown table of means over the draws: mean size and hit rate (95 % for the photos of one draw) at
the threshold of the record and at that from traffic, the share of photos without a class above the
first threshold, and after how many photos the monitor gave an alarm, and in how many draws.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from florilege.calibration.drift import Monitor, expected_of
from florilege.calibration.intervals import wilson
from florilege.calibration.monitoring.recalibration import Traffic, TrafficThresholds
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.calibration.scores import logsumexp
from florilege.calibration.view import PLAIN
from florilege.cores import in_order
from florilege.data.records import Split
from florilege.data.sources import open_dataset
from florilege.models.bundle import Bundle, open_bundle
from florilege.models.images import load
from florilege.models.runtime import silence_telemetry
from florilege.models.session import Session

K = 3.0
KEPT = 0.6
ENOUGH_TO_HALVE = 2000
BLURS = (0.7, 1.0, 1.5, 2.0)
THRESHOLDS = ("validation", "traffic")

Labels = NDArray[np.int64]
Weigh = Callable[[Labels, np.random.Generator], NDArray[np.float64]]


@dataclass(frozen=True, kw_only=True)
class Photos:
    """Logits ``(rows, classes)`` of photos and what they show, ``(rows,)``."""

    logits: NDArray[Any]
    labels: Labels

    def at(self, rows: Any) -> "Photos":
        """Some of them."""
        return Photos(logits=self.logits[rows], labels=self.labels[rows])


@dataclass(frozen=True, kw_only=True)
class DrawFigures:
    """What one way to choose the threshold does on one draw of photos."""

    size: float
    hit_rate: float
    above_none: float


def main() -> None:
    """Measure and print."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--repeats", type=int, default=10)
    arguments = parser.parse_args()
    bundle = open_bundle(arguments.bundle)
    record = read_record(bundle)
    photos = open_dataset(arguments.data, splits=["test"], classes=bundle.classes).split("test")
    print(f"K = {K:g}, {len(photos):,} test photos, {arguments.repeats} draws.", end=" ")
    print(f"Calibrated on {record.measured.rows:,} photos of {record.classes} classes.\n")
    print(f"| traffic | {' | '.join(THRESHOLDS)} | none above | alarms |")
    print("|---|---|---|---|---|")
    scored = cache(partial(photos_of, bundle, photos, record.head))
    for name, blur, weigh in _kinds():
        print(_line(name, scored(blur), weigh, record, arguments.repeats), flush=True)


def _kinds() -> Iterator[tuple[str, float, Weigh | None]]:
    yield "usual", 0.0, None
    yield "all classes as frequent", 0.0, even
    yield "frequencies times e^N(0,1)", 0.0, tilted
    yield "long tail in random order", 0.0, long_tail
    for radius in BLURS:
        yield f"blurred by {radius:g} pixels", radius, None
    yield "long tail, blurred by 1.5 pixels", 1.5, long_tail


def even(counts: Labels, random: np.random.Generator) -> NDArray[np.float64]:
    """All classes as frequent."""
    del random
    return np.ones(counts.size)


def tilted(counts: Labels, random: np.random.Generator) -> NDArray[np.float64]:
    """Each frequency times a log-normal factor."""
    return counts.astype(np.float64) * np.exp(random.standard_normal(counts.size))


def long_tail(counts: Labels, random: np.random.Generator) -> NDArray[np.float64]:
    """One over the rank of the class in a random order."""
    return 1 / (1 + random.permutation(counts.size).astype(np.float64))


def photos_of(bundle: Bundle, split: Split, head: str, radius: float) -> Photos:
    """The test photos, blurred."""
    session, blur = Session(bundle, device="cpu"), ImageFilter.GaussianBlur(radius)

    def look(row: int) -> NDArray[np.float32]:
        picture = Image.fromarray(load(split.read(row), bundle.preprocess)).filter(blur)
        return session.logits(np.asarray(picture)[np.newaxis])[head]

    return Photos(
        logits=np.concatenate(list(in_order(look, range(len(split))))), labels=split.labels
    )


def drawn(
    labels: Labels, weigh: Weigh | None, random: np.random.Generator, most: int | None = None
) -> NDArray[np.int64]:
    """Rows in random order, none twice: all of them, or three in five with other frequencies."""
    rows = len(labels)
    if weigh is None:
        return random.permutation(rows)[:most]
    counts = np.bincount(labels)
    weights = (weigh(counts, random) / np.maximum(counts, 1))[labels]
    expected = most or round(KEPT * rows)
    remaining = random.choice(rows, expected, replace=False, p=weights / weights.sum())
    return random.permutation(remaining)  # those of large weight were drawn first


def _line(
    name: str, every: Photos, weigh: Weigh | None, record: CalibrationRecord, repeats: int
) -> str:
    figures = defaultdict[str, list[DrawFigures]](list)
    alarms = defaultdict[str, list[int]](list)
    for draw in range(repeats):
        photos = every.at(drawn(every.labels, weigh, np.random.default_rng(draw)))
        half = len(photos.labels) // 2
        live, new = photos, photos
        if half >= ENOUGH_TO_HALVE / 2:
            live, new = photos.at(slice(half)), photos.at(slice(half, None))
        for title, thresholds in zip(THRESHOLDS, (None, recalibrated(live, record)), strict=True):
            figures[title].append(_on(new, record, thresholds))
        for watched, row in _alarms(photos, record):
            alarms[watched].append(row)
    cells = [_cell(figures[title], len(new.labels)) for title in THRESHOLDS]
    cells.append(f"{statistics.fmean(one.above_none for one in figures[THRESHOLDS[0]]):.3f}")
    rung = [f"{name} {statistics.median(rows):,.0f} ({len(rows)})" for name, rows in alarms.items()]
    return f"| {name} | {' | '.join(cells)} | {', '.join(rung) or 'none'} |"


def _cell(found: list[DrawFigures], rows: int) -> str:
    rate = statistics.fmean(one.hit_rate for one in found)
    low, high = wilson(round(rate * rows), rows)
    size = statistics.fmean(one.size for one in found)
    return f"{size:.2f}, {rate:.3f} ({low:.3f}-{high:.3f})"


def recalibrated(live: Photos, record: CalibrationRecord) -> TrafficThresholds:
    """Thresholds from live photos."""
    traffic = Traffic(
        requests=lambda: iter([live.logits[:, np.newaxis]]),
        record=record,
        judge=record.rejection and record.rejection.from_logits,
        scoring=record.scoring,
    )
    return traffic.thresholds(ks=[K])


def _on(
    new: Photos, record: CalibrationRecord, thresholds: TrafficThresholds | None
) -> DrawFigures:
    point = record.point(PLAIN, record.setting("average_k", K))
    if thresholds is not None:
        point = replace(point, lambda_val=thresholds.thresholds[0].new_lambda)
    assert point.lambda_val is not None
    values = record.scores(new.logits)
    sets = point.sets(values)
    return DrawFigures(
        size=float(sets.sum(axis=1).mean()),
        hit_rate=float(sets[np.arange(len(new.labels)), new.labels].mean()),
        above_none=float((values.max(axis=1) < point.lambda_val).mean()),
    )


def _alarms(photos: Photos, record: CalibrationRecord) -> Iterator[tuple[str, int]]:
    values = record.scores(photos.logits)
    sizes = record.point(PLAIN, record.setting("average_k", K)).sets(values).sum(axis=1)
    monitor = Monitor(expected_of(record, k=K), cluster_size=1)  # each photo is of another plant
    monitor.update(sizes, values.max(axis=1), logsumexp(photos.logits))
    yield from ((alarm.watched, alarm.row) for alarm in monitor.alarms)


if __name__ == "__main__":
    main()
