"""The table of occurrences of a calibration, and the places of its photos.

The table says how much more common each class is at a place
(:meth:`florilege.models.occurrences.Occurrences.log_lift`). This is multiplied by a strength, which
the photos choose, and added to the logits of the network.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from florilege.calibration.validation import Ints
from florilege.data.layouts.manifest import demand_columns
from florilege.errors import DataError, first
from florilege.models.classes import ClassTable
from florilege.models.occurrences import COLUMNS, Occurrences, Place, PlaceKind, month_of
from florilege.models.species_names import SpeciesNames
from florilege.tables import read_table

_FEWEST_PLACES = 100


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
        if len(usable) - usable.count(None) < _FEWEST_PLACES:
            return cls(occurrences, occurrences.draw(labels), simulated=True)
        return cls(occurrences, usable, simulated=False)

    def known(self, kind: PlaceKind) -> list[Place | None]:
        """What a request of this kind says of each photo; None where that is not known."""
        if kind == "region":
            return [place and Place(place.region) for place in self.places]
        return [place if place and place.kind == kind else None for place in self.places]
