"""Photos of three classes as random features, in a benchmark of few epochs."""

import numpy as np
import torch

from benchmarks.head_bench import FIRST_SEED, Bench, Rows

CLASSES = 8
NOISE = 0.5


def rows(count: int, seed: int) -> Rows:
    """Features of classes that overlap a little."""
    random = np.random.default_rng(seed)
    centres = np.random.default_rng(7).normal(0, 1, (CLASSES, 6))
    labels = random.integers(0, CLASSES, count)
    values = centres[labels] + random.normal(0, 0.4, (count, 6))
    return Rows(torch.from_numpy(values).float(), labels)


def bench(*, seeds: int = 2, epochs: int = 4) -> Bench:
    """A benchmark with clean labels and with half of them drawn anew."""
    train, noisy = rows(160, 0), {}
    for seed in (0, *range(FIRST_SEED, FIRST_SEED + seeds)):
        random = np.random.default_rng(seed)
        other = random.integers(0, CLASSES, len(train.labels))
        noisy[0.0, seed] = train.labels
        noisy[NOISE, seed] = np.where(random.random(len(other)) < NOISE, other, train.labels)
    return Bench(train, rows(120, 1), noisy, CLASSES, epochs)
