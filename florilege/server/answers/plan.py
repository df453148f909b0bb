"""What a query asks, resolved once: which classes, which place, which setting."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from florilege.calibration.record.operating_point import NotCalibrated
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.rules import RULES
from florilege.calibration.view import PLAIN, Setting, View
from florilege.server.answers.place import PlaceEffect, PlaceWeights
from florilege.server.answers.query import IdentifyQuery
from florilege.server.answers.restriction import ClassLists, Restriction
from florilege.server.problems import Code, Problem


@dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A query that can be answered, for any number of photos."""

    query: IdentifyQuery
    setting: Setting
    restriction: Restriction | None  # the classes that are scored; None for all
    effect: PlaceEffect  # what the place changes
    always: Collection[str]  # ids of the classes to report whatever they score
    languages: Sequence[str]

    def view(self, photos: int) -> View:
        """What is known beside so many photos; without a list, if none was calibrated for it."""
        listed = None if self.restriction is None else self.restriction.calibrated_as
        return View(photos=photos, list=listed, place=self.effect.kind)


def resolve(
    query: IdentifyQuery, record: CalibrationRecord, lists: ClassLists, places: PlaceWeights
) -> Plan:
    """Raise the `Problem` of a query that no photo can satisfy, else say what it asks."""
    effect, restriction = places.effect(query), lists.restriction(query)
    always = lists.always(query, restriction)
    _check_combination(query)
    value = query.k if query.coverage is None else query.coverage
    setting = record.setting(query.rule, value, query.guarantee)
    try:
        record.point(PLAIN, setting)
    except NotCalibrated as error:
        raise Problem(Code.NOT_CALIBRATED, str(error), allowed=error.allowed) from error
    return Plan(
        query=query,
        setting=setting,
        restriction=restriction,
        effect=effect,
        always=always,
        languages=query.languages,
    )


def _check_combination(query: IdentifyQuery) -> None:
    asks_coverage = RULES[query.rule].asks == "coverage"
    if asks_coverage and query.k is not None:
        raise Problem(Code.INVALID_PARAMETER, f"rule {query.rule} takes coverage, not k")
    if not asks_coverage and query.coverage is not None:
        detail = f"rule {query.rule} takes k, not coverage; coverage goes with rule=coverage"
        raise Problem(Code.INVALID_PARAMETER, detail)
