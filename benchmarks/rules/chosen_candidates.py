"""What a promise costs if the photos that calibrate also chose the scores, and whether it holds.

    python -m benchmarks.rules.chosen_candidates [--candidates 12] [--photos N,N]

Draws calibration photos of an invented world with 30 species and a long tail, lets them choose the
scores with the most hits at K = 3 among several candidates (12 epochs of a run, or heads that err
differently, each at eight temperatures), and calibrates a coverage of 0.9 on

- ``ignored``: the same photos, as if nothing had been chosen;
- ``counted``: the same photos, with a rank that allows for the number of candidates;
- ``alike``: the same, but candidates that miss the same photos count less: the rank allows for the
  largest deviation of their misses in samples drawn again (multiplier bootstrap, Chernozhukov,
  Chetverikov and Kato 2013), which holds for many photos only;
- ``uniform``: a rank that allows for every threshold of every candidate, by the inequality of
  Dvoretzky, Kiefer and Wolfowitz;
- ``split``: four fifths of the photos, after the other fifth chose.

Prints and adds to ``chosen_candidates.csv`` the mean coverage of new photos with its standard error
(``worst`` is that of the candidate that covers least, whoever chose it), the share of calibrations
below 0.9 for the promise with probability (it may be 0.1), and the mean size of the sets.
"""

import argparse
import csv
from collections.abc import Iterator
from math import floor, log, sqrt
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.conformal import conformal_rank, pac_rank

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
OUT = Path(__file__).with_suffix(".csv")
HEAD = ("candidates", "photos", "method", "coverage", "worst", "below .9, probability", "size")
SPECIES, POOL, LEVEL, DELTA, K = 30, 40_000, 0.9, 0.1, 3
TEMPERATURES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
HEADS = {8: 1, 40: 5, 160: 20}  # heads for so many candidates, each at all temperatures
RESAMPLES = 100


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--candidates", default="12")
    parser.add_argument("--calibrations", type=int, default=1000)
    parser.add_argument("--photos", default="1000,1500,3000,10000")
    arguments = parser.parse_args()
    for candidates in map(int, arguments.candidates.split(",")):
        scores, labels = world(candidates)
        for photos in map(int, arguments.photos.split(",")):
            lines = list(measured(scores, labels, photos, arguments.calibrations))
            write([[f"{candidates}", f"{photos:,}", *line] for line in lines])


def write(lines: list[list[str]]) -> None:
    """Print lines and put them in the place of those of the same numbers."""
    rows = list[list[str]]()
    if OUT.exists():
        with OUT.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row[:2] not in (lines[0][:2], [*HEAD[:2]])]
    with OUT.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *rows, *lines])
    for line in lines:
        print(" | ".join(line), flush=True)


def world(candidates: int) -> tuple[list[Floats], Ints]:
    """Scores of every candidate for a pool of photos, and the species of these."""
    random = np.random.default_rng(0)
    prior = 1 / np.arange(1, SPECIES + 1)
    labels = random.choice(SPECIES, POOL, p=prior / prior.sum())
    clear = random.uniform(0.5, 5, (POOL, 1))  # photos differ in how clear they are
    logits = random.normal(size=(POOL, SPECIES)) + np.log(prior)
    logits[np.arange(POOL), labels] += clear[:, 0]
    heads = HEADS.get(candidates, candidates)
    temperatures = TEMPERATURES if candidates in HEADS else TEMPERATURES[4:5]
    scores = []
    for _ in range(heads):
        own = logits + random.normal(0, 0.7, logits.shape)
        for temperature in temperatures:
            powers = np.exp(own / temperature - (own / temperature).max(axis=1, keepdims=True))
            scores.append((powers / powers.sum(axis=1, keepdims=True)).astype(np.float32))
    return scores, labels


def measured(
    scores: list[Floats], labels: Ints, photos: int, calibrations: int
) -> Iterator[list[str]]:
    """The cells of each method."""
    random, everyone = np.random.default_rng(photos), np.arange(POOL)
    true = np.stack([values[everyone, labels] for values in scores])  # (candidates, pool)
    ordered, of_truth = [np.sort(values.reshape(-1)) for values in scores], np.sort(true, axis=1)
    hits = np.stack([row >= cut[-K * POOL] for row, cut in zip(true, ordered, strict=True)])
    results: dict[str, list[tuple[float, ...]]] = {}
    for _ in range(calibrations):
        rows = random.integers(POOL, size=photos)
        fifth, others = rows[: photos // 5], rows[photos // 5 :]
        chosen, apart = (int(hits[:, of].mean(axis=1).argmax()) for of in (rows, fifth))
        for method, (mean_rank, likely) in ranks(true[:, rows], random).items():
            index, on = (apart, others) if method == "split" else (chosen, rows)
            ascending = np.sort(true[:, on], axis=1)
            cuts = ascending[:, mean_rank - 1] if mean_rank else np.zeros(len(true), np.float32)
            covered = 1 - np.array(
                [np.searchsorted(row, cut) for row, cut in zip(of_truth, cuts, strict=True)]
            ) / POOL  # fmt: skip
            below = np.nan
            if likely is not None:
                cut = ascending[index, likely - 1] if likely else 0.0
                below = float((true[index] >= cut).mean() < LEVEL)
            size = (ordered[index].size - np.searchsorted(ordered[index], cuts[index])) / POOL
            of_one = (covered[index], covered.min(), below, float(size))
            results.setdefault(method, []).append(of_one)
    for method, values in results.items():
        coverage, worst, shares, size = np.array(values).T
        error = coverage.std(ddof=1) / np.sqrt(calibrations)
        share = "" if np.isnan(shares).any() else f"{shares.mean():.3f}"
        least = "" if method == "split" else f"{worst.mean():.4f}"  # others choose there
        figures = (f"{coverage.mean():.4f} ± {error:.4f}", least, share, f"{size.mean():.2f}")
        yield [method, *figures]


def ranks(true: Floats, random: np.random.Generator) -> dict[str, tuple[int, int | None]]:
    """The rank of each method, and that of its promise with probability if it has one."""
    candidates, photos = true.shape
    rest = photos - photos // 5
    wide = sqrt(log(2 * candidates) / (2 * photos))
    return {
        "ignored": (conformal_rank(LEVEL, photos), pac_rank(LEVEL, photos, DELTA)),
        "counted": (
            conformal_rank(LEVEL, photos, candidates=candidates),
            pac_rank(LEVEL, photos, DELTA, candidates=candidates),
        ),
        "alike": (floor((1 - LEVEL - deviation(true, random)) * (photos + 1)), None),
        "uniform": (max(0, floor((1 - LEVEL - wide) * (photos + 1))), None),
        "split": (conformal_rank(LEVEL, rest), pac_rank(LEVEL, rest, DELTA)),
    }


def deviation(true: Floats, random: np.random.Generator) -> float:
    """Mean over samples drawn again of the largest deviation of the candidates' misses."""
    photos = true.shape[1]
    rank = conformal_rank(LEVEL, photos)
    cuts = np.partition(true, rank - 1, axis=1)[:, rank - 1 : rank]
    misses = (true <= cuts) - rank / photos
    weights = random.normal(size=(photos, RESAMPLES)).astype(np.float32)
    return float((misses.astype(np.float32) @ weights).max(axis=0).mean() / photos)


if __name__ == "__main__":
    main()
