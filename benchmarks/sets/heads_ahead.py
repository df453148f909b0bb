"""How far is each method of ``benchmarks.sets.decays`` ahead of one of them, with intervals?

    python -m benchmarks.sets.heads_ahead --out FOLDER [--baseline cross_entropy]

FOLDER is that of ``decays``, whose hits on test photos it reads. Differences are paired over seeds
and photos, and an interval draws both again, 1,000 times. ``all`` is the mean over all data sets,
where both methods have them. ``FOLDER/heads_ahead.csv`` is written anew.
"""

import argparse
import csv
import itertools
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.sets.head_methods import SIZES

KINDS = (("0", "clean"), ("0.4", "clean"), ("0.4", "wrong"))
TITLES = ("clean labels", "40 % wrong, clean val", "40 % wrong, wrong val")
DRAWS = 1000
ASKED = tuple(k for k in SIZES if k > 1)
EVERY = "all"
Gains = NDArray[np.float64]


def main() -> None:
    """Write the file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--baseline", default="cross_entropy")
    words = parser.parse_args()
    rows = list(lines(words.out / "hits", words.baseline))
    with (words.out / "heads_ahead.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def lines(folder: Path, baseline: str) -> Iterator[dict[str, str]]:
    """A row for each method, data set and kind of labels."""
    names = [path.stem.split("+") for path in sorted(folder.glob("*.npy"))]
    data, methods = (list(dict.fromkeys(name[place] for name in names)) for place in (0, 1))
    random = np.random.default_rng(0)
    for method, kind in itertools.product(methods, KINDS):
        means, drawn = list[Gains](), list[Gains]()
        for name in data if method != baseline else ():
            gains = paired(
                hits_of(folder, name, method, kind), hits_of(folder, name, baseline, kind)
            )
            if gains is not None:
                means.append(gains.mean((0, 2)))
                drawn.append(draws(gains, random))
                facts = {"method": method, "data": name, "noise": kind[0], "val_labels": kind[1]}
                yield {**facts, "seeds": str(len(gains)), **figures(means[-1], drawn[-1])}
        if len(drawn) == len(data) > 1:
            facts = {"method": method, "data": EVERY, "noise": kind[0], "val_labels": kind[1]}
            yield {**facts, "seeds": "", **figures(np.mean(means, axis=0), np.mean(drawn, axis=0))}


def hits_of(folder: Path, data: str, method: str, kind: tuple[str, str]) -> dict[str, Gains]:
    """What was hit, by seed, ``(sizes, photos)``."""
    paths = folder.glob(f"{data}+{method}+{kind[0]}+*+{kind[1]}.npy")
    return {path.stem.split("+")[3]: np.load(path).astype(np.float64) for path in paths}


def paired(ours: Mapping[str, Gains], theirs: Mapping[str, Gains]) -> Gains | None:
    """Differences in percent, ``(seeds, sizes, photos)``; None if no seed is shared."""
    seeds, sizes = sorted(ours.keys() & theirs.keys()), [SIZES.index(k) for k in ASKED]
    if not seeds:
        return None
    return np.stack([100 * (ours[seed] - theirs[seed])[sizes] for seed in seeds])


def draws(gains: Gains, random: np.random.Generator) -> Gains:
    """Mean differences of seeds and photos that are drawn again, ``(DRAWS, sizes)``."""
    seeds, _, photos = gains.shape
    return np.array(
        [
            gains[random.integers(seeds, size=seeds)].mean(0)[
                :, random.integers(photos, size=photos)
            ].mean(1)
            for _ in range(DRAWS)
        ]
    )  # fmt: skip


def figures(mean: Gains, drawn: Gains) -> dict[str, str]:
    """The differences and the ends of their intervals, by size."""
    low, high = np.percentile(drawn, [2.5, 97.5], axis=0)
    columns = {"": mean, "_low": low, "_high": high}
    return {
        f"ahead_{k}{name}": f"{values[place]:+.2f}"
        for place, k in enumerate(ASKED)
        for name, values in columns.items()
    }


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """A line for each method and data set."""
    body = []
    for method, data in dict.fromkeys((row["method"], row["data"]) for row in rows):
        cells = []
        for noise, val in KINDS:
            place = {"method": method, "data": data, "noise": noise, "val_labels": val}
            ours = [row for row in rows if place.items() <= row.items()]
            cells.append(" / ".join(map(cell, ASKED, itertools.repeat(ours[0]))) if ours else "")
        body.append(f"| `{method}` | {data} | {' | '.join(cells)} |")
    return "\n".join([f"| method | data | {' | '.join(TITLES)} |", "|---" * 5 + "|", *body])


def cell(k: int, row: Mapping[str, str]) -> str:
    """One difference with its interval."""
    ahead, low, high = (float(row[f"ahead_{k}{end}"]) for end in ("", "_low", "_high"))
    return f"{ahead:+.1f} ({low:+.1f} to {high:+.1f})"


if __name__ == "__main__":
    main()
