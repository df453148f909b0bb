"""Several photos of one species as one row of scores: which way of fusing them hits most?

    python -m benchmarks.sets.fusion BUNDLE --data DATA [--k 3] [--strangers 0.3]

The test photos are put into groups of 1, 2, 3 and 5 of one species (of one plant where the data
know plants), in new groups each time. Every fusion gets sets of mean size K by a threshold chosen
on these very groups without labels (average-K), or the K best classes (top-K). Prints hit rates
and, for each fusion but the first, the difference to it with a 95 % interval for the groups of
one draw, pair by pair. ``--strangers`` puts random photos of the set in the place of that share
of the second and later photos.
"""

import argparse
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.photo_outputs import outputs_of
from florilege.calibration.intervals import wilson
from florilege.calibration.marginals import top_k_marginals
from florilege.calibration.photo_groups import groups_of
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import EXPONENTS, fuse, scores
from florilege.data.sources import open_dataset
from florilege.models.bundle import open_bundle
from florilege.models.runtime import silence_telemetry
from florilege.models.session import Session

NUMBERS = (1, 2, 3, 5)
PRODUCTS = {f"product^{exponent:g}": exponent for exponent in EXPONENTS}
FUSIONS = ("mean_score", *PRODUCTS, "mean_marginal", "mean_logit", "max_score")
"""Those that may serve, the mean of top-k marginals, the scores of the mean logits, and the best of
the photos' scores."""

Labels = NDArray[np.int64]


def main() -> None:
    """Measure and print."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("--data", required=True)
    parser.add_argument("--k", type=int, default=3)
    parser.add_argument("--strangers", type=float, default=0.0)
    parser.add_argument("--draws", type=int, default=20)
    arguments = parser.parse_args()
    bundle = open_bundle(arguments.bundle)
    record = read_record(bundle)
    photos = open_dataset(arguments.data, splits=["test"], classes=bundle.classes).split("test")
    outputs = outputs_of(Session(bundle, device="cpu"), photos)
    with closing(outputs):
        logits = np.concatenate([values for (values,), _ in outputs.blocks(record.head)])
    print(f"| rule | photos | groups | {' | '.join(FUSIONS)} |\n|{'---|' * (3 + len(FUSIONS))}")
    for rule in ("average_k", "top_k"):
        for size in NUMBERS:
            draws = [
                shown_groups(photos.labels, size, photos.observations, arguments.strangers, seed)
                for seed in range(arguments.draws)
            ]
            hits = partial(_hits, logits, rule=rule, k=arguments.k, record=record)
            rates = {
                fusion: np.array([hits(*draw, fusion=fusion) for draw in draws])
                for fusion in FUSIONS
            }  # (draws, groups) each
            print(f"| {rule} | {size} | {len(draws[0][0]):,} | {_cells(rates)} |", flush=True)


def shown_groups(
    labels: Labels, size: int, observations: Any, strangers: float, seed: int
) -> tuple[Labels, Labels]:
    """Rows of the photos of each group, and what the group shows."""
    rows = groups_of(labels, size=size, observations=observations, seed=seed).rows
    random = np.random.default_rng(seed)
    strange = random.random(rows.shape) < strangers
    strange[:, 0] = False
    return np.where(strange, random.integers(0, len(labels), rows.shape), rows), labels[rows[:, 0]]


def _hits(
    logits: NDArray[Any],
    rows: Labels,
    labels: Labels,
    *,
    rule: str,
    k: int,
    record: CalibrationRecord,
    fusion: str,
) -> NDArray[np.bool_]:
    """Whether the set of each group holds its species."""
    fused = _fused(record.scoring.scaled(logits[rows]), record, fusion, k)
    query = {"average_k": k} if rule == "average_k" else {"k": k}
    sets = calibrate(rule, fused, **query).sets(fused)
    result: NDArray[np.bool_] = sets[np.arange(len(labels)), labels]
    return result


def _fused(
    logits: NDArray[Any], record: CalibrationRecord, fusion: str, k: int
) -> NDArray[np.float64]:
    """Scores of each group, from the scaled logits of its photos, ``(groups, photos, classes)``."""
    score_kind = record.score_kind
    if fusion == "mean_logit":
        return scores(logits.astype(np.float64).mean(axis=1), score_kind)
    if fusion == "max_score":
        single = scores(logits.reshape(-1, logits.shape[2]), score_kind).reshape(logits.shape)
        return np.asarray(single.max(axis=1))
    if fusion == "mean_marginal":
        marginals = top_k_marginals(logits.reshape(-1, logits.shape[2]), k).reshape(logits.shape)
        return np.asarray(marginals.mean(axis=1))
    exponent = PRODUCTS.get(fusion) if score_kind == "softmax" else None
    return fuse(logits, score_kind=score_kind, fusion=exponent, prior=record.prior)


def _cells(hits: dict[str, NDArray[np.bool_]]) -> str:
    first, *others = hits.values()
    rate, groups = first.mean(), first.shape[1]
    low, high = wilson(round(rate * groups), groups)
    cells = [f"{rate:.3f} ({low:.3f}-{high:.3f})"]
    for other in others:
        differences = other.astype(np.float64) - first
        error = 1.96 * differences.std(axis=1).mean() / np.sqrt(groups)
        cells.append(f"{other.mean():.3f} ({differences.mean():+.3f} ± {error:.3f})")
    return " | ".join(cells)


if __name__ == "__main__":
    main()
