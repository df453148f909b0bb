"""Sets on traffic that is not like the validation photos: what thresholds from traffic restore.

    python -m benchmarks.shift BUNDLE [--rows N]

BUNDLE serves softmax scores on the flora. Thresholds are chosen from N pictures without labels and
measured on N others: usual pictures, species of other frequencies, and blurred pictures. Prints
a Markdown table, and after how many pictures the monitor gave an alarm, and about what.
"""

import argparse
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

from calibration.calibrating import read_record
from calibration.distribution import logsumexp
from calibration.drift import Monitor, expected_of
from calibration.point import OperatingPoint
from calibration.record import CalibrationRecord
from calibration.traffic import recalibrate
from calibration.traffic_scores import Guard
from data.flora import Flora
from data.flora_table import prior
from models.bundle import open_bundle
from models.runtime import silence_telemetry
from models.session import Session

SEED = 77
K = 3.0
AT_ONCE = 64

Logits = NDArray[np.float32]
Labels = NDArray[np.int64]
Traffic = tuple[Logits, Labels]


def main() -> None:
    """Measure and print."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--rows", type=int, default=4000)
    given = parser.parse_args()
    bundle = open_bundle(given.bundle)
    record, session = read_record(bundle), Session(bundle, device="cpu")
    flora = Flora(SEED, {"test": 2 * given.rows})
    print(f"K = {K:g}, {given.rows:,} pictures to choose thresholds from, as many to measure.\n")
    print("| traffic | threshold from | mean size | hit rate | alarms after pictures |")
    print("|---|---|---|---|---|")
    for name, traffic in _kinds(flora, session, record.head).items():
        half = given.rows
        live, new = (tuple(part[at] for part in traffic) for at in (slice(half), slice(half, None)))
        for line in _lines(name, live, new, record):
            print(line, flush=True)


def _kinds(flora: Flora, session: Session, head: str) -> Mapping[str, Traffic]:
    """Logits and labels of every kind of traffic, two halves that share no picture."""
    labels, half = flora.labels("test"), flora.rows["test"] // 2
    usual = _logits(flora, session, head, lambda picture: picture)
    random, weights = np.random.default_rng(0), 1 / prior()[labels]
    even = np.concatenate(
        [
            start + random.choice(half, half, p=part / part.sum())
            for start, part in ((0, weights[:half]), (half, weights[half:]))
        ]
    )
    blurred = {radius: _logits(flora, session, head, _blur(radius)) for radius in (0.7, 1.5)}
    return {
        "usual": (usual, labels),
        "all species as frequent": (usual[even], labels[even]),
        **{f"blurred by {radius:g} pixels": (found, labels) for radius, found in blurred.items()},
    }


def _blur(radius: float) -> Callable[[NDArray[np.uint8]], NDArray[np.uint8]]:
    blurring = ImageFilter.GaussianBlur(radius)
    return lambda picture: np.asarray(Image.fromarray(picture).filter(blurring))


def _logits(
    flora: Flora,
    session: Session,
    head: str,
    change: Callable[[NDArray[np.uint8]], NDArray[np.uint8]],
) -> Logits:
    rows = range(flora.rows["test"])
    batches = [rows[at : at + AT_ONCE] for at in range(0, len(rows), AT_ONCE)]
    return np.concatenate(
        [
            session.logits(np.stack([change(flora.picture("test", row)) for row in batch]))[head]
            for batch in batches
        ]
    )


def _lines(name: str, live: Any, new: Any, record: CalibrationRecord) -> Iterator[str]:
    point = record.point("average_k", k=K)
    size, hits = _measured(point, point.lambda_val, None, new)
    yield f"| {name} | validation | {size:.2f} | {hits:.3f} | {_alarms(point, new[0], record)} |"
    judge = record.rejection and record.rejection.from_logits
    guard = None if judge is None else Guard(method=judge.method, threshold=judge.threshold)
    for title, old_prior in (("traffic", None), ("traffic, corrected", record.mean_scores)):
        found = recalibrate(
            lambda: iter([live[0][:, np.newaxis]]), record, ks=[K], guard=guard, old_prior=old_prior
        )
        threshold = found.thresholds[0]
        size, hits = _measured(point, threshold.new_lambda, found.log_ratios, new)
        note = "" if found.shift is None or found.shift.evident else " (no change is evident)"
        yield f"| {name} | {title}{note} | {size:.2f} | {hits:.3f} | |"


def _measured(
    point: OperatingPoint, lambda_val: float | None, log_ratios: Any, new: Any
) -> tuple[float, float]:
    """Mean size and hit rate on new traffic at a threshold, of corrected scores or as they are."""
    changed = replace(
        point,
        lambda_val=lambda_val,
        log_ratios=None if log_ratios is None else np.array(log_ratios),
    )
    logits, labels = new
    sets = changed.sets(np.stack([changed.fused_scores(row[np.newaxis]) for row in logits]))
    return float(sets.sum(axis=1).mean()), float(sets[np.arange(len(labels)), labels].mean())


def _alarms(point: OperatingPoint, logits: Logits, record: CalibrationRecord) -> str:
    served = np.stack([point.fused_scores(row[np.newaxis]) for row in logits])
    monitor = Monitor(expected_of(record, k=K))
    monitor.update(point.sets(served).sum(axis=1), served.max(axis=1), logsumexp(logits))
    return ", ".join(f"{alarm.watched} {alarm.row:,}" for alarm in monitor.alarms) or "none"


if __name__ == "__main__":
    main()
