"""Sentences of the documentation have the figures of the CSV files."""

import re
from collections.abc import Iterable
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from benchmarks.figures import threshold
from benchmarks.results import read

ROOT = Path(__file__).parents[2]
SMALL = "grocery-plants"
TAIL = {"part": "test", "data": "invented-1000"}


def column(file: str, name: str, **cells: str) -> NDArray[np.float64]:
    """A column of the rows with these cells; what was not run is left out."""
    values = [float(row[name]) for row in read(file) if cells.items() <= row.items()]
    return np.array([value for value in values if np.isfinite(value)])


def of_readme() -> Iterable[float]:
    """What the picture of the same run says."""
    text = threshold.FILE.read_text("utf-8")
    figures = re.search(r"of (\d+) photos: ([\d.]+) .*?>([\d.]+) %.*?>(\d+)<", text, re.DOTALL)
    assert figures
    return map(float, figures.groups())


def rare() -> Iterable[float]:
    cells = {**TAIL, "loss": "cross_entropy", "coverage": "0.9"}
    rules = ({"rule": "coverage"}, {"rule": "balanced_coverage", "parameter": "0.98"})
    (plain, macro), (large, small) = (
        [100 * column("front", "macro", **cells, **rule)[0] for rule in rules],
        [column("front", "size", **cells, **rule)[0] for rule in rules[::-1]],
    )
    return plain, macro, large, small


def interpolation() -> Iterable[float]:
    gaps, errors = (column("front", f, **TAIL, rule="Interp-Q") for f in ("ahead", "ahead_error"))
    return (gaps > errors).sum(), len(gaps), (gaps < -errors).sum()


def fuzzy() -> Iterable[float]:
    kinds = [f"fuzzy, {kind}" for kind in ("rarity", "genus", "class means")]
    groceries = {"part": "test", "data": "grocery-plants", "coverage": "0.8"}
    for sign, cells in ((-1, groceries), (1, TAIL)):
        yield max(100 * (sign * column("front", "ahead", **cells, rule=k)).max() for k in kinds)


def band() -> Iterable[float]:
    for photos in ("3,000", "30,000"):
        gaps = column("coverage_band", "gap", **{"calibration photos": photos})
        yield from (gaps.min(), gaps.max())


def places() -> Iterable[float]:
    cells = {"data": "grocery-plants", "spread": "0.05"}
    for name, records in (("plain", "complete"), ("both", "complete"), ("both", "biased")):
        yield column("places", f"{name}_3", records=records, **cells).mean()


def temperature() -> Iterable[float]:
    gains: dict[tuple[str, ...], list[float]] = {}
    for row in read("temperature"):
        at = [row[f"at_{float(t):g}"].split() for t in (row["temperature"], "1")]
        gain = np.subtract(*np.array(at, dtype=float)).mean()
        gains.setdefault((row["data"], row["noise"], row["method"]), []).append(gain)
    return len(gains), -min(float(np.mean(gain)) for gain in gains.values())


def learnt_sizes() -> Iterable[float]:
    cases = product((2, 3, 5), {row["data"] for row in read("rivals")}, ("0.0", "0.5"))
    methods = ("cross_entropy", "size_choice")
    gaps = [
        np.subtract(*(column("rivals", f"average_{k}", **cells, method=m).mean() for m in methods))
        for k, data, noise in cases
        for cells in [{"data": data, "noise": noise}]
    ]
    return min(gaps), max(gaps)


def decays() -> Iterable[float]:
    cells = {"data": SMALL, "method": "cross_entropy", "noise": "0.4", "val_labels": "clean"}
    return (column("decays", "average_2", **cells, parameter=p).mean() for p in ("0.01", "0.3"))


FIGURES = {
    ("README.md", "On {:.0f} photos it had never seen, the sets for K = 3 held {:.2f} kinds on "
     "average and {:.1f} % of them the right one; the first guess alone was right for 72.6 %. "
     "Clear photos get short answers: {:.0f} of the sets held a single kind"): of_readme,
    ("docs/calibration.md", "from {:.0f} to {:.0f} %, for sets of {:.1f} instead of {:.1f} "): rare,
    ("docs/calibration.md", "3,000 photos it lies {:.1f} to {:.1f} points below the true rate, "
     "with 30,000 {:.1f} to {:.1f} "): band,
    ("docs/front.md", "in {} of {} comparisons, and fewer in {},"): interpolation,
    ("docs/front.md", "up to {:.1f} points ahead at 80 %, but up to {:.0f} behind"): fuzzy,
    ("docs/places.md", "from {:.1f} to {:.1f} %; with biased records, where observers differ by a "
     "factor of 20, to {:.1f} %."): places,
    ("docs/results.md", "all {} combinations with noise 0, 0.2 and 0.5, the mean over K = 2, 3 and "
     "5 falls by at most {:.2f} points."): temperature,
    ("docs/losses.md", "hits {:.0f} % at K = 2 with `cross_entropy` and a decay of 0.01, "
     "and {:.0f} % with the 0.3 that val finds"): decays,
    ("docs/results.md", "beats a learnt size by {:.0f} to {:.0f} points"): learnt_sizes,
}  # fmt: skip


@pytest.mark.parametrize(("page", "sentence"), FIGURES)
def test_a_sentence_has_the_figures_of_its_file(page: str, sentence: str) -> None:
    text = " ".join((ROOT / page).read_text("utf-8").split())
    assert sentence.format(*FIGURES[page, sentence]()) in text
