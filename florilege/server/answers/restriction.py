"""Restrict an answer to some classes: a list of the server, or those a request names."""

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.record.record import CalibrationRecord
from florilege.models.class_lists import RegionList
from florilege.models.classes import ClassInfo, ClassTable
from florilege.server.answers.query import IdentifyQuery, SetQuery
from florilege.server.problems import Code, Problem
from florilege.suggestions import KnownNames, nearest

log = logging.getLogger("florilege.server")

MAX_UNKNOWN_LISTED = 10  # names in an error message
MAX_SUGGESTED_FOR = 3  # unknown names; finding others takes up to a millisecond each


@dataclass(frozen=True, kw_only=True, eq=False)
class Restriction:
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
    by_name: Mapping[str, Restriction]

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

    def restriction(self, query: SetQuery) -> Restriction | None:
        """The restriction of a query, to the classes that are in both ``list`` and ``only``.

        Raises a `Problem` if there is no such list, class, genus or family, or no class is left.
        """
        listed = None if query.list is None else self.by_name.get(query.list)
        if query.list is not None and listed is None:
            names = sorted(self.by_name)
            detail = f"no list is named {query.list[:80]!r}"
            detail += "" if names else "; this server has no lists"
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

    def always(self, query: IdentifyQuery, restriction: Restriction | None) -> set[str]:
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
            elif name not in groups:  # one family in all its spellings would take a second
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

    def _restriction(self, classes: tuple[int, ...]) -> Restriction:
        infos = tuple(self.table[index] for index in classes)
        calibrated_as = self.calibrated.get(classes)
        return Restriction(classes=np.array(classes), infos=infos, calibrated_as=calibrated_as)
