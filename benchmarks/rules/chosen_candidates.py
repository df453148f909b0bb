"""What a promise costs if the photos that calibrate also chose the scores, and whether it holds.

    python -m benchmarks.rules.chosen_candidates [--calibrations 1000] [--photos 200,1000,3000]

Draws calibration photos of an invented world with 30 species and a long tail, lets them choose the
scores with the most hits at K = 3 among several candidates (heads that err differently, each at
eight temperatures), and calibrates a coverage of 0.9 on

- ``ignored``: the same photos, as if nothing had been chosen;
- ``counted``: the same photos, with a rank that allows for the number of candidates;
- ``split``: four fifths of the photos, after the other fifth chose.

Prints the mean coverage of new photos with its standard error, the share of calibrations below 0.9
for the promise with probability (it may be 0.1), and the mean size of the sets.
"""

import argparse
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.conformal import conformal_rank, pac_rank

Floats = NDArray[np.float32]
SPECIES, POOL, LEVEL, DELTA, K = 30, 40_000, 0.9, 0.1, 3
TEMPERATURES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
HEADS = {8: 1, 40: 5, 160: 20}  # heads for so many candidates


def main() -> None:
    """Simulate and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calibrations", type=int, default=1000)
    parser.add_argument("--photos", default="200,1000,3000,10000")
    arguments = parser.parse_args()
    print("| candidates | photos | method | coverage, mean | below .9, probability | size |")
    print("|---|---|---|---|---|---|")
    for candidates, heads in HEADS.items():
        scores, labels = world(heads)
        for photos in map(int, arguments.photos.split(",")):
            for line in measured(scores, labels, photos, arguments.calibrations):
                print(f"| {candidates} | {photos:,} | {line} |", flush=True)


def world(heads: int) -> tuple[list[NDArray[np.float32]], NDArray[np.int64]]:
    """Scores of every candidate for a pool of photos, and the species of these."""
    random = np.random.default_rng(0)
    prior = 1 / np.arange(1, SPECIES + 1)
    labels = random.choice(SPECIES, POOL, p=prior / prior.sum())
    clear = random.uniform(0.5, 5, (POOL, 1))  # photos differ in how clear they are
    logits = random.normal(size=(POOL, SPECIES)) + np.log(prior)
    logits[np.arange(POOL), labels] += clear[:, 0]
    candidates = []
    for _ in range(heads):
        own = logits + random.normal(0, 0.7, logits.shape)
        for temperature in TEMPERATURES:
            powers = np.exp(own / temperature - (own / temperature).max(axis=1, keepdims=True))
            candidates.append((powers / powers.sum(axis=1, keepdims=True)).astype(np.float32))
    return candidates, labels


def measured(
    scores: list[NDArray[np.float32]], labels: NDArray[np.int64], photos: int, calibrations: int
) -> Iterator[str]:
    """A line for each method."""
    random, everyone = np.random.default_rng(photos), np.arange(POOL)
    true = np.stack([values[everyone, labels] for values in scores])  # (candidates, pool)
    ordered = [np.sort(values.reshape(-1)) for values in scores]
    results: dict[str, list[tuple[float, float, float]]] = {}
    for _ in range(calibrations):
        rows = random.integers(POOL, size=photos)
        fifth, others = rows[: photos // 5], rows[photos // 5 :]
        chosen, apart = best(scores, true, rows), best(scores, true, fifth)
        for method, index, on, candidates in (
            ("ignored", chosen, rows, 1),
            ("counted", chosen, rows, len(scores)),
            ("split", apart, others, 1),
        ):
            ascending = np.sort(true[index, on])
            ranks = (
                conformal_rank(LEVEL, len(on), candidates=candidates),
                pac_rank(LEVEL, len(on), DELTA, candidates=candidates),
            )
            cuts = [float(ascending[rank - 1]) if rank else -1.0 for rank in ranks]
            coverage, likely = (float((true[index] >= cut).mean()) for cut in cuts)
            size = (ordered[index].size - np.searchsorted(ordered[index], cuts[0])) / POOL
            results.setdefault(method, []).append((coverage, float(likely < LEVEL), float(size)))
    for method, values in results.items():
        coverage, below, size = np.array(values).T
        error = coverage.std(ddof=1) / np.sqrt(calibrations)
        cells = (
            f"{coverage.mean():.4f} ± {error:.4f}",
            f"{below.mean():.3f}",
            f"{size.mean():.2f}",
        )
        yield " | ".join((method, *cells))


def best(scores: list[NDArray[np.float32]], true: Floats, rows: NDArray[np.int64]) -> int:
    """The candidate whose sets of mean size K hit most on these photos."""
    hits = []
    for values, of_truth in zip(scores, true, strict=True):
        sample = values[rows].reshape(-1)
        rank = K * len(rows)
        cut = np.partition(sample, sample.size - rank)[sample.size - rank]
        hits.append((of_truth[rows] >= cut).mean())
    return int(np.argmax(hits))


if __name__ == "__main__":
    main()
