"""Simulate every sentence that a certificate can say, and others that answers and commands say.

    python -m benchmarks.promises.simulation [--calibrations 1000] [--only TEXT] [--photos N]
                                             [--first 0]

Writes ``promises.csv``: circumstance, sentence, photos, what is promised of the simulated mean
(``>= 0.9``, ``<= 0.1``, or a figure that it should be), the mean over the calibrations, its
standard error and how many calibrations there were. With ``--only`` and ``--photos`` other lines
stay. A line that nearly misses its promise is tested by more, other calibrations, from ``--first``.
"""

import argparse
import csv
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.promises import deployment
from benchmarks.promises.calibrations import Circumstance, Figures, Sentence
from benchmarks.promises.pools import Pool, invented
from florilege.calibration.view import View

OUT = Path(__file__).with_name("promises.csv")
HEAD = ("circumstance", "sentence", "photos", "promised", "measured", "error", "calibrations")
FREE: dict[str, Any] = {}  # head, kind of score and temperature are chosen
AT_WEIGHT_1 = {"head": "linear", "score_kind": "softmax", "macro_weight": 1.0}
FEW, MORE, MANY = (200, 1000, 3000), (200, 1000, 3000, 10_000), (200, 1000, 3000, 10_000, 30_000)
ONE, TWO, SOME = (1000,), (200, 1000), (1000, 3000)
Simulation = Callable[[np.random.Generator, int], Figures]
Simulated = tuple[str, Simulation, tuple[int, ...]]


def circumstances() -> Iterator[Simulated]:
    """What is simulated, and with how many photos."""
    alone = invented()
    yield from calibrations(alone)
    for name, pool in (("independent", alone), ("four of each plant", invented(a_plant=4))):
        world = Circumstance(name=f"later photos, {name}", pool=pool)
        yield world.name, partial(later, world), ONE
    yield "strangers", partial(deployment.strangers, deployment.familiarity(alone)), MORE
    yield "unknown species", deployment.unknown_species, FEW
    yield "an audit", deployment.audits, (200,)


def calibrations(alone: Pool) -> Iterator[Simulated]:
    """What a calibration can meet."""

    def of(name: str, pool: Pool, photos: tuple[int, ...], **fields: Any) -> Simulated:
        return name, partial(calibrated, Circumstance(name=name, pool=pool, **fields)), photos

    four, both = invented(a_plant=4), invented(a_plant=4, places=True)
    yield of("independent photos", alone, MANY)
    two = invented(networks=2, error=0.8)
    yield of("head and temperature chosen", two, TWO, settings=FREE)
    epochs = invented(networks=12, error=0.5)
    readme = (1000, 1500, 3000, 10_000)  # 1,500 as after the commands of the README
    yield of("12 epochs compared, temperature chosen", epochs, readme, epochs=12, settings=FREE)
    fifth = "12 epochs compared by a fifth, temperature chosen"
    yield of(fifth, epochs, readme[1:], epochs=12, apart=True, settings=FREE)
    yield of("four photos of each plant", four, ONE)
    unequal = invented(photos=64_000, a_plant=64)
    yield of("1 to 64 photos of each plant", unequal, FEW, equal=False)
    yield of("scores in tenths", invented(step=0.1), ONE)
    yield of("1,081 species", invented(photos=8000, species=1081, dimensions=12), (300,))
    yield of("macro_weight 1", alone, ONE, settings=AT_WEIGHT_1)
    yield of("5 % wrong labels", alone, ONE, noise=("uniform", 0.05))
    yield of("20 % wrong within the genus", alone, ONE, noise=("genus", 0.2))
    yield of("5 % wrong by a review of 200", alone, ONE, noise=("uniform", 0.05), reviewed=200)
    yield of("a list", alone, ONE, view=View(list="half"))
    yield of(
        "a region, its strength chosen", invented(places=True), (3000,), view=View(place="region")
    )
    pair = View(photos=2)
    yield of("two photos, fusion chosen", invented(a_plant=4, error=0.5), SOME, view=pair)
    yield of("two photos, region, list", both, (3000,), view=View(2, "half", "region"))


def calibrated(world: Circumstance, random: np.random.Generator, photos: int) -> Figures:
    """What a calibration says."""
    return world.figures(world.calibrated(random, photos))


def later(world: Circumstance, random: np.random.Generator, photos: int) -> Figures:
    """What is said of photos that come after a calibration."""
    record = world.calibrated(random, photos)
    for what in (deployment.alarms, deployment.contradictions, deployment.traffic):
        yield from what(random, world, record)


def lines(name: str, simulation: Simulation, photos: int, numbers: range) -> Iterator[list[str]]:
    """A line for each sentence of one circumstance with so many photos."""
    values: dict[Sentence, list[float]] = {}
    for number in numbers:
        # A generator of its own, so that parts of a long run can be made apart.
        random = np.random.default_rng((zlib.crc32(name.encode()), photos, number))
        for sentence, value in simulation(random, photos):
            values.setdefault(sentence, []).append(float(value))
    for sentence, every in values.items():
        shown = np.array(every)[np.isfinite(every)]
        error = shown.std(ddof=1) / np.sqrt(shown.size)
        figures = f"{shown.mean():.5f}", f"{error:.5f}"
        yield [name, sentence.text, str(photos), sentence.promised, *figures, str(len(numbers))]


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calibrations", type=int, default=1000)
    parser.add_argument("--only", default="")
    parser.add_argument("--photos", type=int)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    numbers = range(arguments.first, arguments.first + arguments.calibrations)
    for name, simulation, sizes in circumstances():
        for photos in sizes if arguments.only in name else ():
            if arguments.photos in (None, photos):
                begin, made = perf_counter(), list[list[str]]()
                for line in lines(name, simulation, photos, numbers):
                    made.append(line)
                    print(*line, sep=" | ", flush=True)
                print(f"# {perf_counter() - begin:.0f} s", flush=True)
                write(name, photos, made)


def write(name: str, photos: int, made: Sequence[Sequence[str]]) -> None:
    """Replace the lines of a circumstance and number in the file; others stay in their order."""
    rows = list[Sequence[str]]()
    if OUT.exists():
        with OUT.open(encoding="utf-8", newline="") as file:
            rows = [row for row in csv.reader(file) if row[0] != HEAD[0]]
            rows = [row for row in rows if (row[0], row[2]) != (name, str(photos))]
    with OUT.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([HEAD, *rows, *made])


if __name__ == "__main__":
    main()
