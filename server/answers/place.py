"""Where and when a photo was taken, as a request says it, and what that changes in an answer."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

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
from florilege.server.schemas import Warned

REMEMBERED_PLACES = 512


class PlaceEffect(NamedTuple):
    """What a place changes."""

    place: Place
    kind: PlaceKind | None  # of the thresholds to use; None where the place is not used
    lift: NDArray[np.float64] | None  # added to the scaled logits, (classes,)
    in_range: list[bool | None]  # whether each class was recorded there
    warnings: list[Warned]


@dataclass(frozen=True, kw_only=True)
class PlaceWeights:
    """The table of occurrences of a bundle, and how much it counts."""

    occurrences: Occurrences | None
    strength: float
    effect_of: Callable[[Place], PlaceEffect] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "effect_of", lru_cache(REMEMBERED_PLACES)(self._effect))

    def effect(self, query: IdentifyQuery) -> PlaceEffect | None:
        """What the place of a query changes; None if it names none.

        Raises:
            Problem: The parameters name no place, or the bundle has no table of occurrences.
        """
        place = _place(query, self.occurrences)
        return None if place is None else self.effect_of(place)

    def _effect(self, place: Place) -> PlaceEffect:
        assert self.occurrences is not None  # `_place` refuses a query without it
        in_range = self.occurrences.in_range(place)
        why = None
        if not self.occurrences.knows(place.region):
            why = f"nothing was recorded in the region {place.region[:80]!r}"
        elif not self.strength:
            why = "it gained no hits when the model was calibrated"
        if why is not None:
            return PlaceEffect(place, None, None, in_range, [_not_used(why)])
        lift = self.strength * self.occurrences.log_lift(place)
        return PlaceEffect(place, place.kind, lift, in_range, [])


def _place(query: IdentifyQuery, occurrences: Occurrences | None) -> Place | None:
    """The place that a query names.

    Raises:
        Problem: Its parameters contradict each other or lack one, or there is no table.
    """
    by_grid = query.latitude is not None or query.longitude is not None
    if query.region is None and not by_grid:
        if query.month is not None or query.date is not None:
            raise _invalid("month and date need a region, or latitude and longitude")
        return None
    if occurrences is None:
        raise _invalid(
            "this model has no table of occurrences, so no place can be given: its operator adds "
            "one with `florilege calibrate --occurrences`"
        )
    if query.month is not None and query.date is not None:
        raise _invalid("give month or date, not both")
    try:
        month = month_of(query.date) if query.date is not None else query.month or ALL_MONTHS
    except ValueError as error:
        raise _invalid(f"date: {error}") from error
    return Place(_region(query, occurrences, by_grid=by_grid), month)


def _region(query: IdentifyQuery, occurrences: Occurrences, *, by_grid: bool) -> str:
    if not by_grid:
        return query.region or ""
    if query.region is not None or query.latitude is None or query.longitude is None:
        raise _invalid("give region, or both latitude and longitude")
    degrees = occurrences.cell_degrees
    if degrees is None:
        names = ", ".join(occurrences.regions[:10])
        raise _invalid(f"this model knows named regions, no grid: give region, such as {names}")
    return cell_name(query.latitude, query.longitude, degrees)


def _invalid(detail: str) -> Problem:
    return Problem(Code.INVALID_PARAMETER, detail)


def _not_used(why: str) -> Warned:
    return Warned(code="place_not_used", detail=f"the place of the photo was not used: {why}")
