"""Where and when a photo was taken, as a request says it, and what that changes in an answer."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilege.models.occurrences import (
    ALL_MONTHS,
    Occurrences,
    Place,
    PlaceKind,
    cell_name,
    month_of,
)
from florilege.server.answers.query import IdentifyQuery
from florilege.server.problems import Code, Problem

_PLACES_KEPT: Final = 512


class PlaceEffect(NamedTuple):
    """What the place of a photo changes; by default it is unknown and changes nothing."""

    region: str | None = None
    month: int | None = None
    kind: PlaceKind | None = None  # of the thresholds to use; None where the place is not used
    lift: NDArray[np.float64] | None = None  # added to the scaled logits, (classes,)
    in_range: Sequence[bool | None] | None = None  # whether each class was recorded there
    why_unused: str | None = None

    def was_recorded(self, index: int) -> bool | None:
        """Whether a class was recorded there; None if unknown."""
        return None if self.in_range is None else self.in_range[index]

    def among(self, classes: NDArray[np.intp]) -> "PlaceEffect":
        """The same for some classes, output indices ``(listed,)``."""
        return self._replace(
            lift=None if self.lift is None else self.lift[classes],
            in_range=None if self.in_range is None else [self.in_range[at] for at in classes],
        )


_PLACE_UNKNOWN = PlaceEffect()


@dataclass(frozen=True, kw_only=True, eq=False)
class PlaceWeights:
    """The table of occurrences of a bundle, and how much it counts."""

    occurrences: Occurrences | None
    strength: float

    def effect(self, query: IdentifyQuery) -> PlaceEffect:
        """What the place of a query changes. Raises a `Problem` if it cannot be used."""
        if (query.region, query.latitude, query.longitude) == (None, None, None):
            if query.month is not None or query.date is not None:
                raise _invalid("month and date need a region, or latitude and longitude")
            return _PLACE_UNKNOWN
        if self.occurrences is None:
            raise _invalid(
                "this model has no table of occurrences, so no place can be given: its operator "
                "adds one with `florilege calibrate --occurrences`"
            )
        return self._effect(Place(_region(query, self.occurrences), _month(query)))

    @cached_property
    def _effect(self) -> Callable[[Place], PlaceEffect]:
        """`_effect_of` with a cache, which goes when a reload replaces this object: a cache of the
        class would hold the tables of all bundles that were ever served."""
        assert self.occurrences is not None  # `effect` refuses a query without it
        return lru_cache(_PLACES_KEPT)(partial(_effect_of, self.occurrences, self.strength))


def _effect_of(occurrences: Occurrences, strength: float, place: Place) -> PlaceEffect:
    in_range = occurrences.in_range(place)
    effect = PlaceEffect(place.region, place.month or None, in_range=in_range)
    if not strength:
        return effect._replace(why_unused="it gained no hits when the model was calibrated")
    if not occurrences.knows(place.region):
        why = f"nothing was recorded in the region {place.region[:80]!r}"
        return effect._replace(why_unused=why)
    return effect._replace(kind=place.kind, lift=strength * occurrences.log_lift(place))


def _region(query: IdentifyQuery, occurrences: Occurrences) -> str:
    """The region that a query names; a `Problem` if it names no place or two."""
    corner = (query.latitude, query.longitude)
    if query.region is not None and corner == (None, None):
        return query.region
    if query.region is not None or query.latitude is None or query.longitude is None:
        raise _invalid("give region, or both latitude and longitude")
    degrees = occurrences.cell_degrees
    if degrees is None:
        names = ", ".join(occurrences.regions[:10])
        raise _invalid(f"this model knows named regions, no grid: give region, such as {names}")
    return cell_name(query.latitude, query.longitude, degrees)


def _month(query: IdentifyQuery) -> int:
    """The month that a query names, or ALL_MONTHS; a `Problem` if its date is invalid."""
    if query.date is None:
        return query.month or ALL_MONTHS
    if query.month is not None:
        raise _invalid("give month or date, not both")
    try:
        return month_of(query.date)
    except ValueError as error:
        raise _invalid(f"date: {error}") from error


def _invalid(detail: str) -> Problem:
    return Problem(Code.INVALID_PARAMETER, detail)
