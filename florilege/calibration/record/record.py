"""The calibration record, the content of ``calibration.json``: thresholds, figures and origin.

Floats are written with all digits, so that reading the file gives exactly the chosen thresholds.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.distribution import Distribution
from florilege.calibration.guarantees import Guarantee
from florilege.calibration.measurement import ShotGroup
from florilege.calibration.record.operating_point import NotCalibrated, OperatingPoint
from florilege.calibration.record.origin import TRAFFIC, Origin, PlacePrior, Selection
from florilege.calibration.record.schema import SCHEMA_VERSION, CalibratedList, Table, dump, parse
from florilege.calibration.rejection.rejection_rule import RejectionRule
from florilege.calibration.rules import RULES, class_weights, usual_guarantee
from florilege.calibration.scores import ScoreKind, scores
from florilege.calibration.validation import Floats
from florilege.models.occurrences import PlaceKind

PREFERRED_K = 3.0


class _TableKey(NamedTuple):
    """Identifies a table by rule, guarantee, number of photos in a request, and list."""

    rule: str
    guarantee: Guarantee | None
    images: int = 1
    list_name: str | None = None  # None for all classes
    place: PlaceKind | None = None  # None for photos of unknown places

    @property
    def usual(self) -> bool:
        """Whether it is for one photo, all classes and an unknown place."""
        return (self.images, self.list_name, self.place) == (1, None, None)


def _key(rule: str, guarantee: Guarantee | None, *conditions: Any) -> _TableKey:
    """The key of a table: without a guarantee, the usual one of the rule."""
    return _TableKey(rule, guarantee or usual_guarantee(rule), *conditions)


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord:
    """Everything that ``calibration.json`` holds.

    Attributes:
        schema_version: Version of the file's format.
        calibration_id: SHA-256 of the record without this field.
        created: UTC time in ISO 8601.
        classes: Number of classes.
        head: The served head.
        score_kind: The served kind of score.
        temperature: Logits are divided by this before they become scores.
        asked_k: The values last given to ``--k``.
        asked_coverage: The values last given to ``--coverage``.
        measured: The photos that the figures were measured on.
        selection: The choice of head, kind of score and temperature. A calibration on traffic
            keeps the earlier choice, with its hit rates on the labelled photos of that time.
        class_counts: Images per class, for the rules for rare classes.
        class_counts_from: ``train``, or the split itself where training counts are unknown.
        macro_weight: ``w`` of the rules for rare classes.
        size_bins: Lower edges of the bins of the set-size histograms.
        distribution: Histograms of the served scores.
        rejection: The rule that marks photos as suspect, or None.
        shots: Sizes and hits at the default K for species with few, a medium number and many
            training images; empty where the numbers of training images are unknown.
        lists: The lists of classes with thresholds of their own.
        place_prior: How much the place of a photo counts; None without a table of occurrences.
        tables: All thresholds: the full grid for single photos with the served head and scores, and
            only the requested values for several photos, a list, or another head, kind of score or
            temperature.
    """

    schema_version: int = SCHEMA_VERSION
    calibration_id: str
    created: str
    classes: int
    head: str
    score_kind: ScoreKind
    temperature: float
    asked_k: tuple[float, ...]
    asked_coverage: tuple[float, ...]
    measured: Origin
    selection: Selection
    class_counts: tuple[int, ...]
    class_counts_from: str
    macro_weight: float
    size_bins: tuple[int, ...]
    distribution: Distribution
    rejection: RejectionRule | None
    shots: tuple[ShotGroup, ...]
    lists: tuple[CalibratedList, ...]
    tables: tuple[Table, ...]
    place_prior: PlacePrior | None = None

    def __post_init__(self) -> None:
        if len(self._weights) != self.classes:
            raise ValueError(f"{len(self._weights)} class counts for {self.classes} classes")
        if _TableKey("average_k", None) not in self.served:
            raise ValueError(f"no average_k table for head {self.head} and {self.score_kind}")
        if any(each.classes[-1] >= self.classes for each in self.lists):
            raise ValueError(f"a list holds a class index beyond the {self.classes} classes")
        if len(self._lists) != len(self.lists):
            raise ValueError("two lists have the same name")
        self._check_tables()

    @property
    def default_k(self) -> float:
        """3 if it is calibrated, else the first requested value."""
        ks = self.ks("average_k")
        return PREFERRED_K if PREFERRED_K in ks else (self.asked_k or tuple(ks))[0]

    @property
    def served_scores(self) -> tuple[str, ScoreKind, float]:
        """The served head, kind of score and temperature."""
        return self.head, self.score_kind, self.temperature

    @cached_property
    def served(self) -> dict[_TableKey, Table]:
        """The tables of the served scores."""
        tables, served = dict[_TableKey, Table](), self.served_scores
        for each in self.tables:
            if each.rule in RULES and (each.head, each.score_kind, each.temperature) == served:
                key = _TableKey(each.rule, each.guarantee, each.images, each.list_name, each.place)
                tables.setdefault(key, each)
        return tables

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that are calibrated for one photo."""
        keys = (key for key in self.served if key.usual)
        return tuple(key.rule for key in keys if key.guarantee == usual_guarantee(key.rule))

    @property
    def promises(self) -> tuple[tuple[str, Guarantee], ...]:
        """The rules with further guarantees, for one photo: each rule and guarantee."""
        return tuple(
            (key.rule, key.guarantee)
            for key in self.served
            if key.usual and key.guarantee not in (None, usual_guarantee(key.rule))
        )

    @property
    def images(self) -> tuple[int, ...]:
        """The calibrated numbers of photos of one plant, ascending."""
        return tuple(sorted({key.images for key in self.served}))

    def ks(
        self,
        rule: str,
        *,
        images: int = 1,
        guarantee: Guarantee | None = None,
        list_name: str | None = None,
        place: PlaceKind | None = None,
    ) -> list[float]:
        """The calibrated values of K (coverages for a coverage rule), ascending."""
        table = self.served.get(_key(rule, guarantee, images, list_name, place))
        return [] if table is None else list(table.columns.value)

    def point(
        self,
        rule: str,
        *,
        k: float | None = None,
        coverage: float | None = None,
        images: int = 1,
        guarantee: Guarantee | None = None,
        list_name: str | None = None,
        place: PlaceKind | None = None,
    ) -> OperatingPoint:
        """The threshold for a rule at a K or a coverage.

        Args:
            rule: A name in :data:`florilege.calibration.rules.RULES`.
            k: Requested size; by default :attr:`default_k`, or the first calibrated value.
            coverage: For the coverage rules; by default the first requested at the calibration.
            images: Photos of one plant in the request.
            guarantee: The guarantee for new photos; by default the usual one of the rule.
            list_name: The list whose classes are scored; None for all classes.
            place: What is known of the place of the photo.

        Raises:
            NotCalibrated: There is no such threshold; ``allowed`` holds the calibrated values.
        """
        key = _key(rule, guarantee, images, list_name, place)
        table = self.served.get(key)
        conditions = "" if guarantee is None else f" with guarantee={guarantee}"
        conditions += "" if images == 1 else f" with {images} photos"
        conditions += "" if place is None else f" for photos with {place.replace('_', ' ')}"
        conditions += "" if list_name is None else f" for the list {list_name!r}"
        if table is None:
            raise NotCalibrated(f"rule {rule!r} is not calibrated{conditions}", allowed=[])
        asks, calibrated = RULES[rule].asks, table.columns.value
        value = {"k": k, "coverage": coverage}[asks]
        if value is None:
            default = self.asked_coverage[0] if asks == "coverage" else self.default_k
            value = default if default in calibrated else calibrated[0]
        point = self._points.get((key, float(value)))
        if point is None:
            raise NotCalibrated(
                f"{asks} = {value:g} is not calibrated for rule {rule!r}{conditions}",
                allowed=list(calibrated),
            )
        return point

    def requested_points(self, list_name: str | None = None) -> list[OperatingPoint]:
        """The thresholds of :attr:`rules`, also for a list, at the values last requested."""
        return self._requested(_key(rule, None, 1, list_name) for rule in self.rules)

    def promised_points(self) -> list[OperatingPoint]:
        """The same for :attr:`promises`."""
        return self._requested(_key(rule, guarantee) for rule, guarantee in self.promises)

    def scores(self, logits: ArrayLike) -> Floats:
        """Scores of single photos from the logits of the served head, ``(rows, classes)``."""
        return scores(logits, self.score_kind, temperature=self.temperature)

    def compared(self, k: float) -> dict[tuple[str, ScoreKind, float], float]:
        """Hit rate of ``average_k`` at this K by head, kind and temperature, best first."""
        rates = {
            (table.head, table.score_kind, table.temperature): rate
            for table in self.tables
            if (table.rule, table.images, table.guarantee) == ("average_k", 1, None)
            and table.list_name is table.place is None
            for value, rate in zip(table.columns.value, table.columns.hit_rate, strict=True)
            if value == k and rate is not None
        }
        return dict(sorted(rates.items(), key=lambda pair: -pair[1]))

    def to_json(self) -> str:
        """The content of ``calibration.json``; reading it gives an equal record."""
        return dump(self) + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> "CalibrationRecord":
        """Read ``calibration.json``.

        Raises:
            BundleError: The file is damaged, incomplete, or of another schema version.
        """
        record: CalibrationRecord = parse(text, cls)
        return record

    def with_id(self) -> "CalibrationRecord":
        """The same record with the ``calibration_id`` of its content."""
        blank = replace(self, calibration_id="")
        return replace(blank, calibration_id=hashlib.sha256(blank.to_json().encode()).hexdigest())

    def _check_tables(self) -> None:
        if unknown := {table.list_name for table in self.tables} - {None, *self._lists}:
            raise ValueError(f"tables for lists that do not exist: {unknown}")
        by_class = chain(*(table.by_class.thresholds for table in self.tables if table.by_class))
        if wrong := set(map(len, by_class)) - {self.classes}:
            raise ValueError(f"{wrong} thresholds for {self.classes} classes")

    @cached_property
    def _weights(self) -> Floats:
        return class_weights(self.class_counts, self.macro_weight)

    @cached_property
    def _lists(self) -> dict[str, CalibratedList]:
        return {each.name: each for each in self.lists}

    @cached_property
    def _points(self) -> dict[tuple[_TableKey, float], OperatingPoint]:
        points = dict[tuple[_TableKey, float], OperatingPoint]()
        for key, table in self.served.items():
            weights = self._weights
            if key.list_name is not None:
                classes = np.array(self._lists[key.list_name].classes)
                weights = class_weights(np.array(self.class_counts)[classes], self.macro_weight)
            for index, value in enumerate(table.columns.value):
                points.setdefault((key, value), self._point(table, index, weights))
        return points

    def _requested(self, keys: Iterable[_TableKey]) -> list[OperatingPoint]:
        values = {"k": sorted(self.asked_k), "coverage": sorted(self.asked_coverage)}
        requested = ((key, value) for key in keys for value in values[RULES[key.rule].asks])
        return [self._points[each] for each in requested if each in self._points]

    def _point(self, table: Table, index: int, weights: Floats) -> OperatingPoint:
        spec, row, by_class = RULES[table.rule], table.columns.row(index), table.by_class
        promised = table.guarantee is not None and table.made_from != "same_class"
        # in traffic several photos may show one plant
        independent = self.measured.selection_split is False and self.measured.split != TRAFFIC
        return OperatingPoint(
            rule=table.rule,
            lambda_val=row.lambda_val,
            min_size=table.min_size,
            rows=table.rows,
            top_k=min(round(row.value), weights.size) if spec.takes == "k" else None,
            class_weights=weights if spec.balanced else None,
            class_thresholds=None if by_class is None else np.array(by_class.thresholds[index]),
            max_size=table.max_size,
            macro_weight=self.macro_weight if spec.balanced else None,
            achieved=row.size,
            ties=row.ties,
            table=table,
            row=row,
            measured=self.measured,
            guaranteed=promised and independent,
            candidates=self.selection.candidates,
        )
