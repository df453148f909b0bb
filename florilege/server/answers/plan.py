"""What a query asks, resolved once: which classes, which place, which setting.

A :class:`Planner` is what a bundle offers: its thresholds, lists and places. It makes a
:class:`Plan` of what a query takes of them.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.record import CalibrationRecord, NotCalibrated, OperatingPoint
from florilege.calibration.rules import RULES
from florilege.calibration.view import View
from florilege.errors import KnownNames, nearest
from florilege.models.classes import ClassInfo, ClassTable
from florilege.models.regions import (
    ALL_MONTHS,
    Occurrences,
    Place,
    PlaceKind,
    RegionList,
    cell_name,
)
from florilege.server.answers.query import IdentifyQuery, SetQuery, fallback_chain
from florilege.server.problems import Code, Problem

log = logging.getLogger("florilege.server")

_PLACES_KEPT: Final = 512

MAX_UNKNOWN_LISTED = 10  # names in an error message
MAX_SUGGESTED_FOR = 3  # unknown names; finding others takes up to a millisecond each


class _PlaceEffect(NamedTuple):
    """What the place of a photo changes; by default it is unknown and changes nothing."""

    region: str | None = None
    month: int | None = None
    kind: PlaceKind | None = None  # of the thresholds to use; None where the place is not used
    lift: NDArray[np.float64] | None = None  # added to the scaled logits, (classes,)
    in_range: Sequence[bool | None] | None = None  # whether each class was recorded there
    why_unused: str | None = None


_PLACE_UNKNOWN = _PlaceEffect()


def _effect_of(occurrences: Occurrences, strength: float, place: Place) -> _PlaceEffect:
    in_range = occurrences.in_range(place)
    effect = _PlaceEffect(place.region, place.month or None, in_range=in_range)
    if not strength:
        return effect._replace(why_unused="it gained no hits when the model was calibrated")
    if not occurrences.knows(place.region):
        why = f"nothing was recorded in the region {place.region[:80]!r}"
        return effect._replace(why_unused=why)
    return effect._replace(kind=place.kind, lift=strength * occurrences.log_lift(place))


def _place(query: IdentifyQuery, occurrences: Occurrences) -> Place:
    """The place that a query names; a `Problem` if it names none or two."""
    corner = _corner(query, occurrences)
    if query.date is not None and query.month is not None:
        raise _invalid("give month or date, not both")
    # Of a date the query has kept the month alone.
    month = query.month or int(query.date or ALL_MONTHS)
    return Place(cell_name(*corner) if corner else query.region or "", month)


def _corner(query: IdentifyQuery, occurrences: Occurrences) -> tuple[float, float, float] | None:
    """Latitude, longitude, and the size of a cell; None where a region is named."""
    latitude, longitude, degrees = query.latitude, query.longitude, occurrences.cell_degrees
    if query.region is not None and latitude is None and longitude is None:
        return None
    if query.region is not None or latitude is None or longitude is None:
        raise _invalid("give region, or both latitude and longitude")
    if degrees is None:
        names = ", ".join(occurrences.regions[:10])
        raise _invalid(f"this model knows named regions, no grid: give region, such as {names}")
    return latitude, longitude, degrees


def _invalid(detail: str) -> Problem:
    return Problem(Code.INVALID_PARAMETER, detail)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Restriction:
    """The classes that an answer is restricted to."""

    classes: NDArray[np.intp]  # their output indices, ascending, (listed,)
    infos: tuple[ClassInfo, ...]  # their names and taxa
    calibrated_as: str | None  # the record's list of exactly these classes with thresholds
    only: list[str] | None = None  # their ids, if single classes were requested


@dataclass(frozen=True, kw_only=True, eq=False)
class ClassLists:
    """The lists that requests may name: those of the calibration and further ones."""

    table: ClassTable
    calibrated: Mapping[tuple[int, ...], str]  # names in the record by their classes
    by_name: Mapping[str, _Restriction]

    @classmethod
    def of(cls, table: ClassTable, record: CalibrationRecord) -> "ClassLists":
        """Those of the calibration."""
        calibrated = {region.classes: region.name for region in record.lists if region.rows}
        return cls(table=table, calibrated=calibrated, by_name={})._with(record.lists)

    def adding(self, lists: Sequence[RegionList]) -> "ClassLists":
        """Add lists, which replace those of the same name; differences are logged."""
        for region in lists:
            calibrated = self.by_name.get(region.name)
            if calibrated is not None and tuple(calibrated.classes.tolist()) != region.classes:
                log.warning(
                    "list %s differs from the list of that name in the bundle's calibration, and "
                    "is not calibrated: calibrate again with --list",
                    region.name,
                )
        return self._with(lists)

    @property
    def classes(self) -> dict[str, list[int]]:
        """The classes of each list, by its name."""
        return {name: restriction.classes.tolist() for name, restriction in self.by_name.items()}

    def restriction(self, query: SetQuery) -> _Restriction | None:
        """The restriction of a query, to the classes that are in both ``list`` and ``only``.

        Raises a `Problem` if there is no such list, class, genus or family, or no class is left.
        """
        listed = None if query.list is None else self.by_name.get(query.list)
        if query.list is not None and listed is None:
            names = sorted(self.by_name)
            detail = f"no list is named {query.list[:80]!r}"
            detail += "" if names else "; there are no lists"
            raise Problem(Code.UNKNOWN_LIST, detail, allowed=names)
        if query.only is None:
            return listed
        classes = self._find_classes("only", query.only)
        if listed is not None:
            classes &= set(listed.classes.tolist())
        if not classes:
            where = "" if listed is None else f" that is in the list {query.list!r}"
            raise Problem(Code.INVALID_PARAMETER, f"parameter `only`: it names no class{where}")
        single = self._restriction(tuple(sorted(classes)))
        return replace(single, only=[info.id for info in single.infos])

    def always(self, query: IdentifyQuery, restriction: _Restriction | None) -> set[str]:
        """The ids of the classes to report, whatever they score.

        Raises a `Problem` if there is no such class, genus or family, or it is not scored.
        """
        classes = self._find_classes("always", query.always or [])
        if restriction is not None and (left_out := classes - set(restriction.classes.tolist())):
            raise Problem(
                Code.INVALID_PARAMETER,
                f"parameter `always`: {self.table.ids[min(left_out)]!r} is not scored, because "
                "`list` or `only` leaves it out",
            )
        return {self.table.ids[index] for index in classes}

    def names_at_most(self, query: SetQuery, limit: int) -> bool:
        """Whether a query names no more than ``limit`` classes, and knows them all."""
        count = 0
        for word in [*(query.only or ()), *(getattr(query, "always", None) or ())]:
            group = self._groups.get(word.casefold(), ())
            count += 1 if word in self.table.index_of else len(group)
            if count > limit or not (group or word in self.table.index_of):
                return False
        return True

    def _find_classes(self, parameter: str, words: list[str]) -> set[int]:
        classes, unknown, groups = set[int](), list[str](), set[str]()
        for word in dict.fromkeys(words):
            if word in self.table.index_of:
                classes.add(self.table.index_of[word])
            elif (name := word.casefold()) not in self._groups:
                unknown.append(word)
            # One family in all its spellings, each a set of thousands, would take a second.
            elif name not in groups:
                groups.add(name)
                classes |= self._groups[name]
        if unknown:
            raise self._unknown(parameter, unknown)
        return classes

    def _unknown(self, parameter: str, words: list[str]) -> Problem:
        listed, unlisted = words[:MAX_UNKNOWN_LISTED], words[MAX_UNKNOWN_LISTED:]
        suggestions = dict.fromkeys(
            name for word in listed[:MAX_SUGGESTED_FOR] for name in nearest(word[:80], self._names)
        )
        detail = (
            f"parameter `{parameter}`: no class id, genus or family is named "
            + ", ".join(repr(word[:80]) for word in listed)
            + (f", and {len(unlisted)} more are unknown" if unlisted else "")
        )
        return Problem(Code.UNKNOWN_CLASS, detail, allowed=list(suggestions) or None)

    @cached_property
    def _names(self) -> KnownNames:
        """All that a query may name: ids, genera and families."""
        groups = (name for info in self.table for name in (info.genus, info.family) if name)
        return KnownNames([*self.table.ids, *dict.fromkeys(groups)])

    @cached_property
    def _groups(self) -> dict[str, set[int]]:
        """Output indices by genus and by family, their names in lower case."""
        groups = dict[str, set[int]]()
        for index, info in enumerate(self.table):
            for name in (info.genus, info.family):
                if name is not None:
                    groups.setdefault(name.casefold(), set()).add(index)
        return groups

    def _with(self, lists: Iterable[RegionList]) -> "ClassLists":
        added = {region.name: self._restriction(region.classes) for region in lists}
        return replace(self, by_name={**self.by_name, **added})

    def _restriction(self, classes: tuple[int, ...]) -> _Restriction:
        infos = tuple(self.table[index] for index in classes)
        calibrated_as = self.calibrated.get(classes)
        return _Restriction(classes=np.array(classes), infos=infos, calibrated_as=calibrated_as)


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A query that can be answered, for any number of photos."""

    planner: "Planner"  # that made it
    query: IdentifyQuery
    view: View  # of one photo; without a list, if none was calibrated for its classes
    points: Mapping[int, OperatingPoint]  # thresholds by number of photos, as `record.points`
    restriction: _Restriction | None  # the classes that are scored; None for all
    effect: _PlaceEffect  # what the place changes
    always: Collection[str]  # ids of the classes to report whatever they score
    lang: str  # the most preferred language of the common names
    languages: Sequence[str]  # those to try, as `fallback_chain`


@dataclass(frozen=True, kw_only=True, eq=False)
class Planner:
    """What a bundle offers to queries: thresholds, lists of classes, and places."""

    record: CalibrationRecord
    lists: ClassLists
    occurrences: Occurrences | None  # without them a query names no place

    def plan(self, query: IdentifyQuery) -> Plan:
        """What a query asks. Raises the `Problem` of a query that no photo can satisfy."""
        effect, restriction = self._effect(query), self.lists.restriction(query)
        always = self.lists.always(query, restriction)
        _check_combination(query)
        listed = None if restriction is None else restriction.calibrated_as
        view, languages = View(list=listed, place=effect.kind), query.languages
        return Plan(
            planner=self,
            query=query,
            view=view,
            points=_points(query, self.record, view),
            restriction=restriction,
            effect=effect,
            always=always,
            lang=languages[0],
            languages=fallback_chain(languages),
        )

    def _effect(self, query: IdentifyQuery) -> _PlaceEffect:
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
        return self._effect_at(_place(query, self.occurrences))

    @cached_property
    def _effect_at(self) -> Callable[[Place], _PlaceEffect]:
        """`_effect_of` with a cache, which goes when a reload replaces this object: a cache of the
        class would hold the tables of all bundles that were ever served."""
        assert self.occurrences is not None  # `_effect` refuses a query without it
        prior = self.record.place_prior
        strength = 0.0 if prior is None else prior.strength
        return lru_cache(_PLACES_KEPT)(partial(_effect_of, self.occurrences, strength))


def _points(
    query: IdentifyQuery, record: CalibrationRecord, view: View
) -> Mapping[int, OperatingPoint]:
    value = query.k if query.coverage is None else query.coverage
    try:
        return record.points(view, record.setting(query.rule, value, query.guarantee))
    except NotCalibrated as error:
        raise Problem(Code.NOT_CALIBRATED, str(error), allowed=error.allowed) from error


def _check_combination(query: IdentifyQuery) -> None:
    asks_coverage = RULES[query.rule].asks == "coverage"
    if asks_coverage and query.k is not None:
        raise Problem(Code.INVALID_PARAMETER, f"rule {query.rule} takes coverage, not k")
    if not asks_coverage and query.coverage is not None:
        detail = f"rule {query.rule} takes k, not coverage; coverage goes with rule=coverage"
        raise Problem(Code.INVALID_PARAMETER, detail)
