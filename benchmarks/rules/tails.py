"""Does training for rare species gain what the rule for rare species cannot?

    python -m benchmarks.rules.tails --out FOLDER [--set DATA=NAME ...] [--weights FILE]

Three ways to favour rare classes meet at equal mean sizes of the sets. All use the rule
``balanced_average_k``, which weights scores by prevalence; ``plain`` uses nothing else.
``sampling`` draws training photos so that classes count alike (``class``) or by the root of their
number (``sqrt``); for a head that is solved for this is a weight of each class in the loss, the
setting ``class_weight_power`` of 1 or 0.5. ``logit adjustment`` (arXiv 2007.07314) subtracts a
share of the logarithm of the prior from the logits of the plain head.

The aim is (1 - w) times the hit rate over photos plus w times that over species. For every w and
size, val chooses the weight decay, the share and the weight of the rule; no front of the two rates
is further out than another unless it is better at some w. Thresholds come from the scores of test
photos, without labels, so that all sets have K classes on average. Data are 1,000 invented species
with a long tail and the sets that are named. ``FOLDER/tails.csv`` is written anew.
"""

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.rules.front_scores import INVENTED, InventedSpecies
from benchmarks.sets.head_methods import FIRST_SEED, Bench
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import scores as scores_of
from florilege.models.runtime import silence_telemetry

HEAD = ("data", "method", "K", "w", "aim", "ahead", "error", "micro", "macro", "chosen")
KS = (1.5, 3.0)
AIMS = (0.0, 0.5, 1.0)
RULE_WEIGHTS = (0.0, 0.5, 0.9, 1.0)
DECAYS = (0.1, 0.03, 0.01, 0.003, 0.001)
SHARES = (0.5, 1.0)
PLAIN, ADJUSTED = "plain", "logit adjustment"
POWERS = {PLAIN: 0.0, "sampling, sqrt": 0.5, "sampling, class": 1.0}
ROWS = {"train": 10_000, "val": 4_000, "test": 5_000}  # of the invented species
Floats = NDArray[np.float64]


class Candidate(NamedTuple):
    """Scores of one head, of val and test."""

    name: str
    val: Floats  # (rows, classes)
    test: Floats


class Option(NamedTuple):
    """Whether sets of a candidate hold the truth, 0 or 1 for each photo of val and of test."""

    name: str
    val: Floats
    test: Floats


class World(NamedTuple):
    """A data set with the scores of every method."""

    name: str
    labels: Mapping[str, NDArray[np.int64]]
    counts: NDArray[np.int64]  # training photos of each class
    methods: Mapping[str, Sequence[Candidate]]


def main() -> None:
    """Measure, print and write."""
    silence_telemetry()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--set", action="append", default=[], metavar="DATA=NAME")
    parser.add_argument("--weights")
    parser.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
    words = parser.parse_args()
    words.out.mkdir(parents=True, exist_ok=True)
    benches: dict[str, Bench] = {INVENTED: InventedSpecies.draw(words.out / INVENTED, rows=ROWS)}
    for pair in words.set:
        data, _, name = pair.rpartition("=")
        flags = {"data": data, "weights": words.weights, "backbone": words.backbone}
        flags["features"] = str(words.out / "features")
        benches[name] = Bench.open(flags, words.out / name)
    with (words.out / "tails.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(HEAD)
        for name, bench in benches.items():
            for line in lines(world(name, bench)):
                writer.writerow(line)
                print(*line, sep=", ", flush=True)


def world(name: str, bench: Bench) -> World:
    """Solve for all heads."""
    classes = len(bench.dataset.classes)
    counts = np.bincount(bench.features["train"].split.labels, minlength=classes)
    log_prior = np.log(np.maximum(counts, 1) / counts.sum())
    methods = dict[str, list[Candidate]]()
    for method, power in POWERS.items():
        weighted = bench.with_flags({"class_weight_power": power}, f"power-{power:g}")
        for decay in DECAYS:
            fit = weighted.fit("cross_entropy", decay, 0.0, FIRST_SEED)
            logits = [weighted.logits(fit, part)["linear"] for part in ("val", "test")]
            values = [scores_of(part, "softmax") for part in logits]
            methods.setdefault(method, []).append(Candidate(f"decay {decay:g}", *values))
            for share in SHARES if method == PLAIN else ():
                values = [scores_of(part - share * log_prior, "softmax") for part in logits]
                adjusted = Candidate(f"decay {decay:g}, share {share:g}", *values)
                methods.setdefault(ADJUSTED, []).append(adjusted)
    labels = {part: bench.features[part].split.labels for part in ("val", "test")}
    return World(name, labels, counts, methods)


def lines(world: World) -> Iterator[list[str]]:
    """A line for each size, aim and method."""
    for k in KS:
        hits = {
            method: [
                _option(world, candidate, k, weight)
                for candidate in candidates
                for weight in RULE_WEIGHTS
            ]
            for method, candidates in world.methods.items()
        }
        for aim in AIMS:
            weights = {part: photo_weights(labels, aim) for part, labels in world.labels.items()}
            best = {
                method: max(options, key=lambda option: float(option.val @ weights["val"]))
                for method, options in hits.items()
            }
            for method, option in best.items():
                gains = (option.test - best[PLAIN].test) * weights["test"]
                rates = [
                    float(option.test @ photo_weights(world.labels["test"], end)) for end in (0, 1)
                ]
                error = float(np.sqrt(len(gains)) * gains.std())
                aimed = float(option.test @ weights["test"])
                cells = [f"{100 * x:.1f}" for x in (aimed, float(gains.sum()), error, *rates)]
                yield [world.name, method, f"{k:g}", f"{aim:g}", *cells, option.name]


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """What each method is ahead of the plain head by, at each aim."""
    head = ["data", "mean size", "method", *(f"w = {aim:g}" for aim in AIMS)]
    lines = dict.fromkeys((row["data"], row["K"], row["method"]) for row in rows)
    body = []
    for line in lines:
        ours = [row for row in rows if (row["data"], row["K"], row["method"]) == line]
        if line[2] != PLAIN:
            body.append([*line, *(f"{row['ahead']} ± {row['error']}" for row in ours)])
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body))


def photo_weights(labels: NDArray[np.int64], aim: float) -> Floats:
    """What a hit on each photo counts: ``aim`` is the share of the mean over species."""
    rows = np.bincount(labels)
    of_species: Floats = 1 / (np.count_nonzero(rows) * rows[labels])
    return (1 - aim) / len(labels) + aim * of_species


def _option(world: World, candidate: Candidate, k: float, weight: float) -> Option:
    """Sets of k classes on average, of val and of test."""

    def hits(values: Floats, labels: NDArray[np.int64]) -> Floats:
        rule = calibrate(
            "balanced_average_k", values, average_k=k, class_counts=np.maximum(world.counts, 1),
            macro_weight=weight,
        )  # fmt: skip
        return rule.sets(values)[np.arange(len(labels)), labels].astype(np.float64)

    on_val, on_test = (hits(getattr(candidate, p), world.labels[p]) for p in ("val", "test"))
    return Option(f"{candidate.name}, rule {weight:g}", on_val, on_test)


if __name__ == "__main__":
    main()
