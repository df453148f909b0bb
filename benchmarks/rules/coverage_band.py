"""Coverage that holds for every threshold at once: critical values, and the gap to the truth.

    python -m benchmarks.rules.coverage_band [--splits N]
    python -m benchmarks.rules.coverage_band --critical

The first form calibrates on photos drawn from 60,000 of the flora, with their exact posterior, and
prints, for numbers of photos and K, the promised coverage (``least_coverage``, delta 0.1), the true
one of all 60,000, the gap, and how often any of 39 values of K broke its promise, or the one that
was chosen after looking (the smallest K that hits 95 %). It also prints the interval of
a fixed K (Wilson). The second simulates the table ``BAND_CRITICAL`` of
``florilege.calibration.intervals``.
"""

import argparse

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.intervals import BAND_DELTAS, BAND_ROWS, least_coverage, wilson
from florilege.calibration.selection import TopScores
from florilege.data.flora import Flora

POOL = 60_000
GRID = np.arange(1.0, 20.5, 0.5)
SHOWN = (1.5, 2, 3, 5, 10)
DELTA = 0.1
WISH = 0.95  # hit rate that whoever looks wants to reach
SIMULATIONS = {50: 200_000, 100: 200_000, 1000: 100_000, 10_000: 40_000, 100_000: 8000}


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--splits", type=int, default=1000)
    parser.add_argument("--critical", action="store_true")
    arguments = parser.parse_args()
    if arguments.critical:
        for rows in BAND_ROWS:
            print(rows, np.quantile(statistics(rows), 1 - np.array(BAND_DELTAS)).round(3).tolist())
        return
    flora = Flora(rows={"val": POOL})
    scores, labels = flora.posterior("val"), flora.labels("val")
    print(
        "| photos | K | hit rate | promised | true | gap | fixed K: gap | any K broken | chosen |"
    )
    print("|---" * 9 + "|")
    for rows in (300, 938, 3000, 10_000, 30_000):
        for line in gaps(scores, labels, rows, arguments.splits):
            print(line, flush=True)


def statistics(rows: int) -> NDArray[np.float64]:
    """Berk and Jones' one-sided statistic of uniform samples, for shares below one half."""
    random, below = np.random.default_rng(rows), np.arange(rows // 2 + 1) / rows
    entropy = np.where(below > 0, below * np.log(np.maximum(below, 1e-300)), 0.0)
    entropy += (1 - below) * np.log1p(-below)
    values = np.empty(SIMULATIONS.get(rows, 1500))
    for index in range(len(values)):
        spacings = random.standard_exponential(rows + 1).cumsum()
        order = spacings[: len(below)] / spacings[-1]  # of the smallest values
        divergence = entropy - below * np.log(order) - (1 - below) * np.log1p(-order)
        values[index] = rows * np.where(order > below, divergence, 0.0).max()
    return values


def gaps(
    scores: NDArray[np.float64], labels: NDArray[np.int64], rows: int, splits: int
) -> list[str]:
    """A line for each K of ``SHOWN``."""
    random, results = np.random.default_rng(rows), []
    true = scores[np.arange(len(labels)), labels]
    for _ in range(splits):
        ours = random.integers(len(labels), size=rows)
        top = TopScores(rows, GRID[-1])
        top.update(scores[ours])
        thresholds = [top.threshold(k).lambda_val for k in GRID]
        hits = [int((true[ours] >= value).sum()) for value in thresholds]
        truth = [float((true >= value).mean()) for value in thresholds]
        promise = [least_coverage(count, rows, delta=DELTA) for count in hits]
        fixed = [wilson(count, rows)[0] for count in hits]
        results.append([np.array(hits) / rows, promise, truth, fixed])
    rate, promise, truth, fixed = np.array(results).transpose(1, 0, 2)  # (splits, ks)
    broken = promise > truth
    looked = (rate >= WISH).argmax(axis=1)
    chosen = broken[np.arange(splits), looked].mean()
    lines = []
    for k in SHOWN:
        at = int(np.flatnonzero(np.isclose(k, GRID))[0])
        means = (100 * value[:, at].mean() for value in (rate, promise, truth))
        gap, of_fixed = (100 * (truth - value)[:, at].mean() for value in (promise, fixed))
        figures = " | ".join(f"{value:.2f}" for value in (*means, gap, of_fixed))
        lines.append(
            f"| {rows:,} | {k:g} | {figures} | {broken.any(axis=1).mean():.3f} | {chosen:.3f} |"
        )
    return lines


if __name__ == "__main__":
    main()
