"""Every view of plants of the flora at once: are its figures true, and are its promises kept?

    python -m benchmarks.promises.flora_views [--calibrations 250]

All photos there are show 600 plants of the flora, five photos each with their exact posterior. A
plant has a region and a month: regions have species of their own, species a season, and records
differ from where plants grow in 30 of 100 sightings. Each calibration draws 500 plants. The code of
``calibrate`` makes the tables of every combination of 1 to 5 photos, a list of every second species
or none, and region, region and month or neither, and chooses the strength of a place and the way to
fuse photos. All photos there are tell the truth. Writes ``flora_views.csv``, a row for each view:
how often the 95 % intervals hold the hit rate and the mean size at 3, the mean coverage of
``coverage=0.9`` and the mean size of ``k=3&guarantee=mean``, and how often ``probability`` failed.
"""

import argparse
import csv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import get_args

import numpy as np

from benchmarks.promises.calibrations import GIVEN, Circumstance, FewSizes, K
from benchmarks.promises.pools import LISTED, Floats, Ints, Pool, regional
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.view import View
from florilege.data.flora.posterior import (
    HIDDEN,
    MISREAD,
    SPECIES,
    TRAITS,
    VISIBLE,
    posterior_of,
    prior,
    species_traits,
)
from florilege.models.regions import MONTHS, Occurrences, PlaceKind, RegionList

OUT = Path(__file__).with_suffix(".csv")
PLANTS, PHOTOS, DRAWN = 600, 5, 500
NUMBERS = (1, 2, 3, 4, 5)
VIEWS = [
    View(photos, name, place)
    for photos, name, place in product(NUMBERS, (None, "half"), (None, *get_args(PlaceKind)))
]
COLUMNS = {
    "hit rate's interval holds": "interval of the hit rate at 3",
    "size's interval holds": "interval of the size at 3",
    "coverage of 0.9": "`coverage` 0.9: coverage",
    "`probability` covers less": "`coverage` 0.9, `probability`: share with less",
    "size of `mean` 3": "`average_k` 3, `mean`: size",
    "`probability` has more": "`average_k` 3, `probability`: share with more",
}
"""The sentences of ``calibrations`` that are shown."""


class OneSize(FewSizes):
    """A plan for a single K."""

    @property
    def grid(self) -> tuple[float, ...]:
        """That K."""
        return (K,)


@dataclass(frozen=True, kw_only=True)
class EveryView(Circumstance):
    """A calibration of all views."""

    def _plan(self) -> OneSize:
        listed = np.flatnonzero(LISTED(np.arange(self.pool.species))).tolist()
        return OneSize(
            classes=self.pool.species,
            ks=(K,),
            coverages=(0.9,),
            rejection_method=None,
            images=NUMBERS[1:],
            lists=(RegionList(name="half", classes=tuple(listed)),),
            max_size=20,
            **GIVEN,
        )

    def of_view(self, record: CalibrationRecord, view: View) -> Iterator[tuple[str, float]]:
        """What each sentence about a view is worth."""
        for sentence, value in replace(self, view=view).figures(record):
            yield sentence.text, float(value)


def main() -> None:
    """Simulate, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--calibrations", type=int, default=250)
    count = parser.parse_args().calibrations
    world = EveryView(name="flora", pool=plants(), view=VIEWS[-1])
    values: dict[tuple[View, str], list[float]] = {}
    for number in range(count):
        # A generator of its own, so that parts of a long run can be made apart.
        record = world.calibrated(np.random.default_rng(number), DRAWN * PHOTOS)
        for view in VIEWS:
            for sentence, value in world.of_view(record, view):
                values.setdefault((view, sentence), []).append(value)
        write(values)
        print(number + 1, "of", count, flush=True)


def write(values: Mapping[tuple[View, str], Sequence[float]]) -> None:
    """Write a row for each view, after each calibration anew."""
    with OUT.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["photos", "list", "place", "calibrations", *COLUMNS])
        for view in VIEWS:
            of_view = [np.array(values.get((view, text), [np.nan])) for text in COLUMNS.values()]
            name = [str(view.photos), view.list or "", view.place or "", str(of_view[0].size)]
            writer.writerow([*name, *map(figure, of_view)])


def figure(values: Floats) -> str:
    """The mean and its standard error."""
    return f"{values.mean():.3f} ± {values.std() / np.sqrt(values.size):.3f}"


def plants() -> Pool:
    """All photos there are."""
    random = np.random.default_rng(0)
    labels, regions, of_regions = regional(random, PLANTS, prior())
    apart = np.abs(np.arange(MONTHS) - random.integers(MONTHS, size=(SPECIES, 1)))
    season = np.exp(-0.5 * (np.minimum(apart, MONTHS - apart) / 1.5) ** 2)
    season /= season.sum(axis=1, keepdims=True)
    months = [1 + int(random.choice(MONTHS, p=season[label])) for label in labels.tolist()]
    logits = np.log(np.maximum(posterior_of(shown(random, labels)), 1e-9))
    return Pool(
        logits={"linear": logits.astype(np.float32)},
        labels=np.repeat(labels, PHOTOS),
        counts=np.maximum(np.round(prior() * 20_000), 1).astype(np.int64),
        genera=species_traits()["genus"],
        a_plant=PHOTOS,
        occurrences=in_season(random, of_regions, season),
        regions=regions,
        months=np.array(months),
    )


def shown(random: np.random.Generator, labels: Ints) -> Ints:
    """The traits in each photo, ``(plants * PHOTOS, 5)``: a plant differs from its species in all
    its photos, organs are hidden in some."""
    observed = np.empty((labels.size * PHOTOS, len(TRAITS)), dtype=np.int64)
    organs = np.array([0, 0, 1, 1, 2])  # of each trait
    visible = random.random((observed.shape[0], len(VISIBLE))) < VISIBLE
    for place, (trait, names) in enumerate(TRAITS.items()):
        values = species_traits()[trait][labels]
        if not trait.endswith("_form"):
            other = (values + random.integers(1, len(names), labels.size)) % len(names)
            values = np.where(random.random(labels.size) < MISREAD, other, values)
        observed[:, place] = np.where(visible[:, organs[place]], np.repeat(values, PHOTOS), HIDDEN)
    return observed


def in_season(random: np.random.Generator, records: Occurrences, season: Floats) -> Occurrences:
    """The same records with months."""
    entries = [
        (records.regions[region], month + 1, species, float(count))
        for region, species, weight in zip(
            records.region.tolist(), records.class_index.tolist(), records.weight, strict=True
        )
        for month, count in enumerate(random.multinomial(int(weight), season[species]).tolist())
        if count
    ]
    return Occurrences.of(*zip(*entries, strict=True), classes=records.classes)


if __name__ == "__main__":
    main()
