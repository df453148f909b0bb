"""What ``calibrate`` gains by choosing the temperature of softmax, for every loss.

    python -m benchmarks.sets.temperature DATA --name NAME --weights FILE --out FOLDER [--seeds N]
                               [--methods NAME,NAME] [--backbone NAME] [--noise 0,0.2,0.5]
    python -m benchmarks.sets.temperature --out FOLDER

Heads on frozen features are kept in the folder. Val, with clean
labels, chooses the head and then the temperature, by the rule and from the values of the product.
Hit rates are those on test, with sets of K on average. ``FOLDER/temperature.csv`` has a row for
each method, rate of noise and seed. Without DATA the table of the file is printed: per cent at
K = 2 / 3 / 5, at temperature 1 and chosen, the mean gain, and that of the best fixed temperature.
"""

import argparse
import csv
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.sets.head_methods import DECAY, FIRST_SEED, Bench, Row, append
from florilege.calibration.comparison import choose_simplest
from florilege.calibration.rules import average_k
from florilege.calibration.scores import scores
from florilege.calibration.settings import TEMPERATURES
from florilege.models.runtime import silence_telemetry
from florilege.training.losses import LOSSES

ORDER = sorted(TEMPERATURES, key=lambda value: abs(np.log(value)))
ASKED = (1, 2, 3, 5, 10)  # that `calibrate` compares
REPORTED = [ASKED.index(k) for k in (2, 3, 5)]


def hits(logits: NDArray[np.float32], labels: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether sets hold the true class, shape ``(temperatures, rows, ks)``."""
    rows = np.arange(len(labels))
    values = (scores(logits, "softmax", temperature=temperature) for temperature in ORDER)
    return np.array(
        [[average_k(each, average_k=k).sets(each)[rows, labels] for k in ASKED] for each in values]
    ).transpose(0, 2, 1)


def measure(bench: Bench, method: str, noise: float, seed: int) -> Row:
    """Choose on val, then read test once."""
    labels = {part: bench.features[part].split.labels for part in ("val", "test")}
    (fit, *_) = bench.fits(method, (DECAY,), noise, seed)
    on_val = {head: hits(x, labels["val"]) for head, x in bench.logits(fit, "val").items()}
    head = max(on_val, key=lambda name: on_val[name][0].sum())
    index, gain = choose_simplest(on_val[head])
    rates = 100 * hits(bench.logits(fit, "test")[head], labels["test"]).mean(axis=1)[:, REPORTED]
    return {
        "method": method,
        "noise": noise,
        "seed": seed,
        "head": head,
        "temperature": ORDER[index],
        "promised_gain": round(100 * float(gain[REPORTED].mean()), 3),
        **{
            f"at_{temperature:g}": " ".join(f"{rate:.3f}" for rate in of)
            for temperature, of in zip(ORDER, rates, strict=True)
        },
    }


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """A line for each data set, rate of noise and method."""
    title = "| data | noise | method | temperature 1 | chosen | temperatures | gain | best fixed |"
    lines = [title, "|---" * 8 + "|"]
    by = lambda row: (row["data"], row["noise"], row["method"])  # noqa: E731  # used twice
    for key, group in itertools.groupby(sorted(rows, key=by), key=by):
        of = list(group)
        rates = np.array([[row[f"at_{t:g}"].split() for t in ORDER] for row in of], dtype=float)
        chosen = np.array(
            [rates[i, ORDER.index(float(r["temperature"]))] for i, r in enumerate(of)]
        )
        first, fixed = rates[:, 0].mean(axis=0), rates.mean(axis=(0, 2)) - rates[:, 0].mean()
        at_one, ours = (" / ".join(f"{x:.1f}" for x in v) for v in (first, chosen.mean(axis=0)))
        used = ", ".join(f"{t:g}" for t in sorted({float(row["temperature"]) for row in of}))
        gain = chosen.mean() - first.mean()
        cells = (*key[:2], f"`{key[2]}`", at_one, ours, used, f"{gain:+.2f}", f"{fixed.max():+.2f}")
        lines.append(f"| {' | '.join(cells)} |")
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
    parser.add_argument("--methods", type=lambda text: text.split(","), default=tuple(LOSSES))
    numbers = lambda text: [float(part) for part in text.split(",")]  # noqa: E731  # as above
    parser.add_argument("--noise", type=numbers, default=[0.0, 0.2, 0.5])
    parser.add_argument("--seeds", type=int, default=3)
    arguments = parser.parse_args()
    result = arguments.out / "temperature.csv"
    rows = list(csv.DictReader(result.open())) if result.exists() else []
    if arguments.data is None:
        print(table(rows))
        return
    names = ("data", "weights", "backbone", "image_size")
    flags = {name: getattr(arguments, name) for name in names}
    flags["features"] = str(arguments.out / "features")
    arguments.out.mkdir(parents=True, exist_ok=True)
    bench = Bench.open(flags, arguments.out / arguments.name)
    present = {(row["data"], row["method"], row["noise"], row["seed"]) for row in rows}
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    for seed, noise, method in itertools.product(seeds, arguments.noise, arguments.methods):
        if (arguments.name, method, str(noise), str(seed)) not in present:
            row = {"data": arguments.name, **measure(bench, method, noise, seed)}
            append(result, row)
            print(*row.values(), flush=True)


if __name__ == "__main__":
    main()
