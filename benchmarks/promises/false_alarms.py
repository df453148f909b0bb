"""How often the gate closes on an equally good network, and how often it stops a worse one.

``python -m benchmarks.promises.false_alarms`` simulates pairs of networks: both see the same photos
of species that are Gaussians, with errors that are partly the same, get a threshold each from
validation photos, and are compared on others. It prints Markdown tables.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.gate import NEARBY, Gate
from florilege.calibration.comparison import Comparison, ThresholdOrigin, compare
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import scores

CLASSES = 30
POOL = 120_000
TEST = 2000
KS = (1.5, 2, 3, 5)
VALS = (200, 1000, 5000)
SHARED = (0.0, 0.8, 0.97)

Floats = NDArray[np.float64]
Rows = NDArray[np.intp]


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two networks on the same photos.

    Attributes:
        labels: Shape ``(photos,)``.
        scores: Of the old network and the new one, each ``(photos, classes)``.
        plants: Which plant each photo is of.
    """

    labels: NDArray[np.int64]
    scores: tuple[Floats, Floats]
    plants: NDArray[np.int64]


def make_pair(
    shared: float, *, worse: float = 1.0, a_plant: int = 1, alike: float = 0.6, seed: int = 0
) -> Pair:
    """Many photos, seen by two networks.

    Args:
        shared: Which part of the networks' errors is the same.
        worse: How many times larger the errors of the new one are.
        a_plant: Photos of each plant.
        alike: Correlation of the errors on photos of one plant.
        seed: Of all chance.
    """
    random = np.random.default_rng(seed)
    prior = (1 / np.arange(1, CLASSES + 1)) / (1 / np.arange(1, CLASSES + 1)).sum()
    means = np.repeat(random.normal(0, 2.2, (6, 4)), 5, 0) + random.normal(0, 0.8, (CLASSES, 4))
    plants = np.repeat(np.arange(POOL // a_plant), a_plant)
    labels = random.choice(CLASSES, POOL // a_plant, p=prior)[plants]

    def errors() -> Floats:
        of_plants = random.standard_normal((POOL // a_plant, 4))[plants]
        own = random.standard_normal((POOL, 4))
        mixed: Floats = np.sqrt(alike) * of_plants + np.sqrt(1 - alike) * own
        return mixed

    common, networks = errors(), []
    for size in (1.0, worse):
        points = means[labels] + size * (np.sqrt(shared) * common + np.sqrt(1 - shared) * errors())
        # The square of each point is the same for all classes, so that it cancels in the scores.
        logits = np.log(prior) + points @ means.T - (means**2).sum(axis=1) / 2
        networks.append(scores(logits, "softmax"))
    return Pair(labels=labels, scores=(networks[0], networks[1]), plants=plants)


def comparison(
    pair: Pair, val: Rows, test: Rows, k: float, *, by_plant: bool = False
) -> Comparison:
    """Choose a threshold for each network on ``val`` and compare them on ``test``."""
    sets, origins = [], []
    labels, rows = pair.labels[test], np.arange(len(test))
    for values in pair.scores:
        rule = calibrate("average_k", values[val], average_k=k)
        assert rule.lambda_val is not None
        hits, sizes, of_test = [], [], values[test]
        best = of_test.argmax(axis=1)
        for factor in (1.0, *NEARBY):
            inside = of_test >= factor * rule.lambda_val
            inside[rows, best] = True
            hits.append(inside[rows, labels])
            sizes.append(inside.sum(axis=1))
        slope = (hits[1].mean() - hits[2].mean()) / (sizes[1].mean() - sizes[2].mean())
        sets.append((hits[0], sizes[0]))
        origins.append(
            ThresholdOrigin(
                data_sha256="val", rows=len(val), fixes="sizes", hits_per_class=float(slope)
            )
        )
    return compare(
        sets[0],
        sets[1],
        data_sha256="test",
        thresholds=origins,
        observations=pair.plants[test] if by_plant else None,
        growth=(1 - CLASSES, CLASSES - 1),
    )


def closed(
    pair: Pair, val: int, ks: Sequence[float], *, pairs: int, gate: Gate, by_plant: bool = False
) -> list[float]:
    """Share of draws of photos, by K, in which the gate closes."""
    random, plants = np.random.default_rng(1), int(pair.plants[-1]) + 1
    a_plant, count = POOL // plants, np.zeros(len(ks))
    for _ in range(pairs):
        numbers = random.choice(plants, (val + TEST) // a_plant, replace=False)
        rows = (numbers[:, np.newaxis] * a_plant + np.arange(a_plant)).reshape(-1)
        for place, k in enumerate(ks):
            result = comparison(pair, rows[:val], rows[val:], k, by_plant=by_plant)
            count[place] += bool(gate.reasons(result))
    return list(count / pairs)


def worse_by(points: float, k: float, shared: float) -> float:
    """How much larger errors must be to lose so many points of hits at K."""
    low, high = 1.0, 1.6
    for _ in range(12):
        middle, rows = (low + high) / 2, np.arange(40_000)
        result = comparison(make_pair(shared, worse=middle), rows, rows + 40_000, k)
        low, high = (middle, high) if -100 * result.hit_rate.difference < points else (low, middle)
    return low


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--pairs", type=int, default=1000)
    pairs = parser.parse_args().pairs
    print(f"Closed in {pairs} draws of val photos and {TEST} test photos.\n")
    print("| networks | errors shared | val | " + " | ".join(f"K = {k:g}" for k in KS) + " |")
    print("|---|" + "---|" * (2 + len(KS)))

    def line(name: str, shared: float, val: int, shares: Sequence[float]) -> None:
        cells = " | ".join(f"{share:.3f}" for share in shares)
        print(f"| {name} | {shared:g} | {val:,} | {cells} |", flush=True)

    for shared in SHARED:
        equal = make_pair(shared)
        for val in VALS:
            line("equal", shared, val, closed(equal, val, KS, pairs=pairs, gate=Gate()))
    four = make_pair(0.8, a_plant=4)
    for val in VALS:
        shares = closed(four, val, KS, pairs=pairs, gate=Gate(), by_plant=True)
        line("equal, 4 photos a plant", 0.8, val, shares)
    for shared in SHARED:
        worse = make_pair(shared, worse=worse_by(2, 3, shared))
        for val in VALS:
            shares = closed(worse, val, KS, pairs=pairs // 5, gate=Gate())
            line("2 points worse at K = 3", shared, val, shares)


if __name__ == "__main__":
    main()
