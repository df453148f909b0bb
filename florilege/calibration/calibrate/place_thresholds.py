"""Thresholds for photos whose place, or place and month, is known.

A table of occurrences says how much more common each class is there
(:meth:`florilege.models.occurrences.Occurrences.log_lift`). This is multiplied by a strength and
added to the logits of the network. The photos choose the strength. Each kind of place has its own
thresholds, since its scores are distributed differently.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from itertools import compress, islice
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np

from florilege.calibration.calibrate.calibration_settings import CalibrationPlan
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.calibrate.score_sources import Block, Source
from florilege.calibration.calibrate.threshold_tables import sets_by_k, tabulate
from florilege.calibration.nested_cross_validation import choose_simplest
from florilege.calibration.record.origin import PlacePrior
from florilege.calibration.record.schema import Table
from florilege.calibration.scores import scale_logits, scores
from florilege.calibration.validation import Floats, Ints
from florilege.data.layouts.manifest import demand_columns
from florilege.errors import DataError, first
from florilege.models.classes import ClassTable
from florilege.models.occurrences import COLUMNS, Occurrences, Place, PlaceKind, month_of
from florilege.models.species_names import SpeciesNames
from florilege.tables import read_table

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)  # 1 is Bayes' rule, if observers were everywhere
FEWEST_PLACES = 100


def read_occurrences(path: Path, classes: ClassTable, say: Callable[[str], None]) -> Occurrences:
    """Read ``region,month,class_id,weight``; ``say`` is called about species the model lacks.

    A species is named by its class id, GBIF key or scientific name, as `SpeciesNames` reads them.

    Raises:
        DataError: The file is unreadable, a month or weight is invalid, or no species is a class.
    """
    table = read_table(path)
    demand_columns(str(path), table, COLUMNS)
    names = SpeciesNames(classes)
    unknown = [name for name in dict.fromkeys(table["class_id"]) if names.index(name) is None]
    rows = []
    for number, cells in enumerate(zip(*(table[name] for name in COLUMNS), strict=True), 2):
        try:
            place, weight = _checked(cells)
        except ValueError as error:
            raise DataError(f"{path}, row {number}: {error}") from error
        if (class_index := names.index(cells[2])) is not None:
            rows.append((*place, class_index, weight))
    if not rows:
        raise DataError(
            f"{path}: none of its species is a class of the model, by id, GBIF key or scientific "
            f"name: {first(unknown) or 'it has no rows'}"
        )
    if unknown:
        say(f"{len(unknown):,} species of {path} are not among the classes of the model")
    return Occurrences.of(*zip(*rows, strict=True), classes=len(classes))


def _checked(cells: Sequence[str]) -> tuple[Place, float]:
    region, month, _, weight = (cell.strip() for cell in cells)
    if not region:
        raise ValueError("the region is empty")
    if not 0 < float(weight) < np.inf:
        raise ValueError(f"the weight must be above 0, got {weight}")
    return Place(region, month_of(month)) if month else Place(region), float(weight)


class PhotoPlaces(NamedTuple):
    """The places of the photos of a split."""

    occurrences: Occurrences
    places: Sequence[Place | None]  # one for each photo
    simulated: bool  # whether they were drawn from the records of the photo's species

    @classmethod
    def of(
        cls, occurrences: Occurrences, places: Sequence[Place | None] | None, labels: Ints
    ) -> "PhotoPlaces":
        """The places that the data name; drawn if there are fewer than 100 with records."""
        usable = [
            place if place and occurrences.knows(place.region) else None for place in places or ()
        ]
        if len(usable) - usable.count(None) < FEWEST_PLACES:
            return cls(occurrences, occurrences.draw(labels), simulated=True)
        return cls(occurrences, usable, simulated=False)


def place_tables(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    single: Source,
    photos: PhotoPlaces,
    weights: Floats,
) -> tuple[PlacePrior, list[Table]]:
    """The strength of the prior, and tables of every rule at the requested K and coverages.

    There are tables for photos with a region and for those with region and month, if 100 photos or
    more have one; none where the prior gains nothing. ``single`` are the served scores of single
    photos, ``weights`` those of the balanced rules, ``(classes,)``.
    """
    source = partial(_source, outputs, single, photos)
    kinds = [kind for kind in get_args(PlaceKind) if source(kind, 0).rows >= FEWEST_PLACES]
    strength, gain = 0.0, 0.0
    if kinds:
        hits = np.stack([sets_by_k(source(kinds[-1], each), plan)[1] for each in STRENGTHS])
        choice, gains = choose_simplest(hits, plants=source(kinds[-1], 0).plants)
        strength, gain = STRENGTHS[choice], float(gains[plan.compared.index(plan.default_k)])
    tables = list[Table]()
    for kind in kinds if strength else ():
        tables += tabulate(source(kind, strength), plan, plan.compared, weights=weights).tables
    prior = PlacePrior(
        strength=strength,
        gain=gain,
        rows=source(kinds[-1], 0).rows if kinds else 0,
        simulated=photos.simulated,
        occurrences_sha256=photos.occurrences.sha256,
    )
    return prior, tables


def _source(
    outputs: SplitOutputs, single: Source, photos: PhotoPlaces, kind: PlaceKind, strength: float
) -> Source:
    """The scores of the photos of which this much is known."""
    places = [each or Place("") for each in photos.places]
    if kind == "region":
        places = [Place(each.region) for each in places]
    mask = np.array([(each.kind, bool(each.region)) == (kind, True) for each in places])
    lift = lru_cache(photos.occurrences.log_lift)

    def blocks() -> Iterator[Block]:
        lifts = (lift(place) for place in compress(places, mask))
        for (logits,), labels in outputs.blocks(single.head, among=mask):
            scaled = scale_logits(logits, single.temperature)
            added = strength * np.stack(list(islice(lifts, len(labels))))
            yield scores(scaled + added, single.score_kind), labels

    return single.of_rows(mask, blocks, place=kind)
