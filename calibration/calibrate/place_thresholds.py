"""Thresholds for photos whose place, or place and month, is known.

Their logits are those of the network plus a strength times how much more common each class is
there (:meth:`florilege.models.occurrences.Occurrences.log_lift`). The photos choose the strength,
and each kind of place has thresholds of its own, since the scores have other sizes.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.calibration_settings import CalibrationPlan
from florilege.calibration.calibrate.photo_outputs import SplitOutputs
from florilege.calibration.calibrate.threshold_tables import (
    Block,
    Source,
    sets_by_k,
    tabulate,
)
from florilege.calibration.nested_cross_validation import choose_simplest
from florilege.calibration.record.origin import PlacePrior
from florilege.calibration.record.schema import Table
from florilege.calibration.scores import scale_logits, scores
from florilege.errors import DataError, first
from florilege.models.classes import ClassTable
from florilege.models.occurrences import ALL_MONTHS, Occurrences, Place, PlaceKind, month_of
from florilege.tables import read_table

STRENGTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""1 is what Bayes' rule says if records are complete; observers are not everywhere."""
COLUMNS = ("region", "month", "class_id", "weight")
FEWEST_PLACES = 100


class PhotoPlaces(NamedTuple):
    """The places of the photos of a split."""

    occurrences: Occurrences
    places: Sequence[Place | None]  # one for each photo
    simulated: bool  # whether they were drawn from the records of the photo's species


def read_occurrences(path: Path, classes: ClassTable) -> tuple[Occurrences, str | None]:
    """Read ``region,month,class_id,weight``, and a warning about species the model lacks.

    A species is named by the class id, the GBIF key or the scientific name.

    Raises:
        DataError: The file is unreadable, a month or weight is none, or no species is a class.
    """
    table = read_table(path)
    if missing := [name for name in COLUMNS if name not in table]:
        raise DataError(f"{path} lacks the columns {first(missing)}")
    index_of = {info.scientific_name: at for at, info in enumerate(classes)}
    index_of |= {info.gbif: at for at, info in enumerate(classes) if info.gbif}
    index_of |= dict(classes.index_of)
    rows, unknown = list[tuple[str, int, int, float]](), dict[str, None]()
    for number, cells in enumerate(zip(*(table[name] for name in COLUMNS), strict=True), 2):
        try:
            region, month, weight = _checked(cells)
        except ValueError as error:
            raise DataError(f"{path}, row {number}: {error}") from error
        if cells[2] in index_of:
            rows.append((region, month, index_of[cells[2]], weight))
        else:
            unknown[cells[2]] = None
    if not rows:
        raise DataError(
            f"{path}: none of its species is a class of the model, by id, GBIF key or scientific "
            f"name: {first(list(unknown)) or 'it has no rows'}"
        )
    occurrences = Occurrences.of(*zip(*rows, strict=True), classes=len(classes))
    warning = f"{len(unknown):,} species of {path} are not among the classes of the model"
    return occurrences, warning if unknown else None


def _checked(cells: Sequence[str]) -> tuple[str, int, float]:
    """Region, month and weight of a row."""
    region, month, _, weight = (cell.strip() for cell in cells)
    if not region:
        raise ValueError("the region is empty")
    if not 0 < float(weight) < np.inf:
        raise ValueError(f"the weight must be above 0, got {weight}")
    return region, month_of(month) if month else ALL_MONTHS, float(weight)


def photo_places(
    occurrences: Occurrences, places: Sequence[Place | None] | None, labels: NDArray[np.int64]
) -> PhotoPlaces:
    """The places that the data name; drawn if there are fewer than 100 with records."""
    known = [place is not None and occurrences.knows(place.region) for place in places or ()]
    if places is None or sum(known) < FEWEST_PLACES:
        return PhotoPlaces(occurrences, occurrences.draw(labels), simulated=True)
    usable = [place if known[row] else None for row, place in enumerate(places)]
    return PhotoPlaces(occurrences, usable, simulated=False)


def place_tables(
    outputs: SplitOutputs,
    plan: CalibrationPlan,
    single: Source,
    photos: PhotoPlaces,
    *,
    weights: NDArray[np.float64],
) -> tuple[PlacePrior, list[Table]]:
    """The strength of the prior, and tables of every rule at the requested K and coverages.

    There are tables for photos with a region and for those with region and month, if 100 photos or
    more have one; none where the prior gains nothing.

    Args:
        single: The served scores of single photos.
        weights: Of the balanced rules, ``(classes,)``.
    """

    def source(kind: PlaceKind, strength: float) -> Source:
        return _source(outputs, single, photos, kind, strength)

    kinds = [kind for kind in get_args(PlaceKind) if source(kind, 0).rows >= FEWEST_PLACES]
    strength, gain = 0.0, 0.0
    if kinds:
        hits = np.stack([sets_by_k(source(kinds[-1], each), plan)[1] for each in STRENGTHS])
        choice, gains = choose_simplest(hits, plants=source(kinds[-1], 0).plants)
        strength, gain = STRENGTHS[choice], float(gains[plan.compared.index(plan.default_k)])
    tables = list[Table]()
    for kind in kinds if strength else ():
        tables += tabulate(source(kind, strength), plan, plan.compared).tables
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
    places = [each and (Place(each.region) if kind == "region" else each) for each in photos.places]
    mask = np.array([place is not None and place.kind == kind for place in places])
    lift = lru_cache(photos.occurrences.log_lift)

    def blocks() -> Iterator[Block]:
        start = 0
        for (logits,), labels in outputs.blocks(single.head):
            rows = np.flatnonzero(mask[start : start + len(labels)])
            lifts = [lift(place) for row in rows if (place := places[start + row]) is not None]
            if lifts:
                scaled = scale_logits(logits[rows], single.temperature)
                yield scores(scaled + strength * np.stack(lifts), single.score_kind), labels[rows]
            start += len(labels)

    plants = None if single.plants is None else single.plants[mask]
    return replace(single, blocks=blocks, rows=int(mask.sum()), place=kind, plants=plants)
