"""Which loss for a head on frozen features? What ``train --freeze backbone`` gives with each.

    python -m benchmarks.sets.heads DATA --name NAME --weights FILE --out FOLDER [--backbone NAME]
                               [--image-size N] [--methods NAME,NAME] [--noise 0,0.2,0.5]
                               [--seeds N] [--search]
    python -m benchmarks.sets.heads --out FOLDER

Heads are trained by the code and with the settings of the product (recipe ``frozen``) on train,
with wrong labels; val, with clean labels, chooses the epoch. Methods are the losses, ``LOSS+lda``
for a head with a quarter of the linear discriminant, and ``blend``. For each, val then chooses
head, kind of score and sharpness, the same four values for all (``sharpened``), or head and kind
alone. With ``--search`` val also chooses the weight decay, of the same three for every loss.

Average-K accuracy is that of the clean test photos, with ``min_size`` 1 and the threshold from
their scores (which takes no labels), so that every method has sets of exactly K on average.
``FOLDER/heads.csv`` has a row for each method, rate of noise and seed; what is there is not
measured again. Without DATA the tables of the file are printed.
"""

import argparse
import csv
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.sets.head_methods import BLEND, DECAY, DECAYS, FIRST_SEED, SIZES, Bench, Row
from florilege.models.runtime import silence_telemetry
from florilege.training.losses import LOSSES

METHODS = (*LOSSES, "generalised_cross_entropy+lda", "cross_entropy+lda", BLEND)
BASELINES = ("cross_entropy", "generalised_cross_entropy", "assume_negative")
SEARCHED = ", weight decay chosen"
KEY = ("data", "method", "noise", "seed", "decays", "sharpened")


def main() -> None:
    """Measure what is missing, or print the tables."""
    silence_telemetry()
    arguments = _arguments()
    result = arguments.out / "heads.csv"
    rows = list(csv.DictReader(result.open())) if result.exists() else []
    if arguments.data is None:
        print(tables(rows))
        return
    reference = {tuple(row[key] for key in KEY) for row in rows}
    arguments.out.mkdir(parents=True, exist_ok=True)
    names = ("data", "weights", "backbone", "image_size")
    flags = {name: getattr(arguments, name) for name in names}
    flags["features"] = str(arguments.features or arguments.out / "features")
    bench = Bench.open(flags, arguments.out / arguments.name)
    decays = DECAYS if arguments.search else (DECAY,)
    seeds = range(FIRST_SEED, FIRST_SEED + arguments.seeds)
    for seed, noise, method in itertools.product(seeds, arguments.noise, arguments.methods):
        for sharpened in (False, True):
            values = (arguments.name, method, noise, seed, len(decays), int(sharpened))
            if tuple(map(str, values)) in reference:
                continue
            row = bench.measure(method, noise, seed, decays=decays, sharpened=sharpened)
            append(result, {"data": arguments.name, **row})
        print(f"{arguments.name}, seed {seed}, noise {noise:g}, {method}", flush=True)


def append(path: Path, row: Row) -> None:
    """Add a row to a table, with its heading where it is the first."""
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if not file.tell():
            writer.writeheader()
        writer.writerow(row)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("data", nargs="?")
    parser.add_argument("--name", default="photos")
    parser.add_argument("--weights")
    parser.add_argument("--backbone", default="timm:tf_efficientnet_lite0")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--features", type=Path)
    parser.add_argument("--methods", type=lambda text: text.split(","), default=METHODS)
    numbers = lambda text: [float(part) for part in text.split(",")]  # noqa: E731  # as above
    parser.add_argument("--noise", type=numbers, default=[0.0, 0.2, 0.5])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--search", action="store_true")
    return parser.parse_args()


def tables(rows: Sequence[Mapping[str, str]]) -> str:
    """For each data set accuracy, what the sharpness adds, and what the blend is ahead by."""
    text = list[str]()
    for data in dict.fromkeys(row["data"] for row in rows):
        ours = [row for row in rows if row["data"] == data]
        of = Figures(ours)
        text += [f"\n### {data}", "\nAverage-K accuracy, sharpness chosen on val\n", *of.accuracy()]
        text += ["\nWhat choosing the sharpness adds, and what is chosen\n", *of.sharpness()]
        text += ["\nThe blend, less each other method\n", *of.ahead()]
    return "\n".join(text)


class Figures:
    """The rows of one data set; each method with and without a search is one line."""

    def __init__(self, rows: Sequence[Mapping[str, str]]) -> None:
        self.rows: dict[tuple[str, str, str], dict[str, Mapping[str, str]]] = {}
        for row in rows:
            line = f"`{row['method']}`" + (SEARCHED if row["decays"] != "1" else "")
            by_seed = self.rows.setdefault((line, row["noise"], row["sharpened"]), {})
            by_seed[row["seed"]] = row
        self.noises = sorted({noise for _, noise, _ in self.rows}, key=float)
        lines = dict.fromkeys(line for line, _, _ in self.rows)
        self.lines = sorted(lines, key=lambda line: -self._last(line))

    def _last(self, line: str) -> float:
        """Accuracy at K = 3 and the highest rate of noise, by which lines are in order."""
        return float(self._means(self.chosen(line, self.noises[-1]))[2])

    def chosen(self, line: str, noise: str) -> dict[str, Mapping[str, str]]:
        """The rows of a line by seed, with the sharpness that val chose."""
        return self.rows.get((line, noise, "1"), {})

    @staticmethod
    def _means(by_seed: Mapping[str, Mapping[str, str]]) -> NDArray[np.float64]:
        result = [accuracies(row) for row in by_seed.values()] or [[-1.0] * len(SIZES)]
        return np.asarray(np.mean(result, axis=0))

    def _table(
        self, title: str, lines: Iterable[str], cell: Callable[[str, str], str]
    ) -> list[str]:
        head = [title, *(f"noise {float(noise):g}" for noise in self.noises)]
        body = [[line, *(cell(line, noise) for noise in self.noises)] for line in lines]
        return [f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *body)]

    def accuracy(self) -> list[str]:
        """The table of accuracies, seeds and seconds."""
        return self._table("method", self.lines, self.cell)

    def cell(self, line: str, noise: str) -> str:
        """Accuracy at K = 1 / 2 / 3 / 5, the standard error at 3; seeds and seconds."""
        by_seed = self.chosen(line, noise)
        if not by_seed:
            return ""
        at_three = [accuracies(row)[2] for row in by_seed.values()]
        seconds = np.mean([float(row["seconds"]) for row in by_seed.values()])
        of = "" if len(by_seed) == 1 else f" ({error(at_three):.1f})"
        return f"{joined(self._means(by_seed))}{of}; {len(by_seed)}, {seconds:.0f} s"

    def sharpness(self) -> list[str]:
        """What choosing it adds at K = 2 / 3 / 5, and what is chosen from seed to seed."""

        def cell(line: str, noise: str) -> str:
            choice, plain = self.chosen(line, noise), self.rows.get((line, noise, "0"), {})
            values = sorted({float(row["sharpness"]) for row in choice.values()})
            return (
                f"{gain(choice, plain)} ({', '.join(f'{v:g}' for v in values)})" if choice else ""
            )

        return self._table("method", self.lines, cell)

    def ahead(self) -> list[str]:
        """The blend less another method at K = 2 / 3 / 5, sharpness chosen on val for both."""

        def cell(line: str, noise: str) -> str:
            blend = f"`{BLEND}`{SEARCHED}" if line.endswith(SEARCHED) else f"`{BLEND}`"
            return gain(self.chosen(blend, noise), self.chosen(line, noise))

        others = [line for line in self.lines if not line.startswith(f"`{BLEND}`")]
        return self._table("less", others, cell)


def gain(ours: Mapping[str, Mapping[str, str]], theirs: Mapping[str, Mapping[str, str]]) -> str:
    """Mean difference over the seeds that both have and its standard error, at K = 2 / 3 / 5."""
    seeds = sorted(ours.keys() & theirs.keys())
    if not seeds:
        return ""
    apart = np.array([np.subtract(accuracies(ours[s]), accuracies(theirs[s])) for s in seeds])
    errors = [f" ± {error(x):.1f}" if len(x) > 1 else "" for x in apart.T[1:]]
    means = [f"{x.mean():+.1f}{spread}" for x, spread in zip(apart.T[1:], errors, strict=True)]
    return " / ".join(means)


def accuracies(row: Mapping[str, str]) -> list[float]:
    """Average-K accuracy by ``SIZES``."""
    return [float(row[f"average_{k}"]) for k in SIZES]


def joined(values: Iterable[float]) -> str:
    """Figures of several K in one cell."""
    return " / ".join(f"{value:.1f}" for value in values)


def error(values: Sequence[float] | NDArray[np.float64]) -> float:
    """The standard error of their mean."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values)))


if __name__ == "__main__":
    main()
