"""The calibration record, the content of ``calibration.json``: thresholds, figures and origin.

Floats are written with all digits, so that reading the file gives exactly the chosen thresholds.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache, partial
from itertools import product
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from florilege.calibration.certificate import Evidence
from florilege.calibration.metrics import shot_groups
from florilege.calibration.record.measurement import Measurement as Measurement
from florilege.calibration.record.measurement import ShotGroup as ShotGroup
from florilege.calibration.record.measurement import measure_by_shots as measure_by_shots
from florilege.calibration.record.measurement import size_bins as size_bins
from florilege.calibration.record.operating_point import NotCalibrated as NotCalibrated
from florilege.calibration.record.operating_point import OperatingPoint as OperatingPoint
from florilege.calibration.record.operating_point import Row as Row
from florilege.calibration.record.schema import SCHEMA_VERSION, dump, parse
from florilege.calibration.record.schema import TRAFFIC as TRAFFIC
from florilege.calibration.record.schema import ByClass as ByClass
from florilege.calibration.record.schema import CalibratedList as CalibratedList
from florilege.calibration.record.schema import Origin as Origin
from florilege.calibration.record.schema import PlacePrior as PlacePrior
from florilege.calibration.record.schema import Selection as Selection
from florilege.calibration.record.schema import Table as Table
from florilege.calibration.record.schema import Thresholds as Thresholds
from florilege.calibration.rejection import RejectionRule
from florilege.calibration.rules import (
    PREFERRED_K,
    RULES,
    class_prior,
    class_weights,
    usual_guarantee,
)
from florilege.calibration.scores import Distribution, ScoreKind
from florilege.calibration.sets import Bools, Floats, Guarantee
from florilege.calibration.view import PLAIN, Scoring, Setting, View

_VIEWS_KEPT: Final = 512


class _TableKey(NamedTuple):
    """Identifies thresholds of the served scores."""

    view: View
    rule: str
    guarantee: Guarantee | None


class Served(NamedTuple):
    """The thresholds of a rule, and the table of their view."""

    table: Table
    thresholds: Thresholds


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord:
    """Everything that ``calibration.json`` holds.

    Attributes:
        schema_version: Version of the file's format.
        calibration_id: SHA-256 of the record without this field.
        created: UTC time in ISO 8601.
        classes: Number of classes.
        scoring: How the logits of single photos become the served scores.
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
            training images; empty where the numbers of training images are unknown, or labels are
            wrong.
        lists: The lists of classes with thresholds of their own.
        place_prior: How much the place of a photo counts; None without a table of occurrences.
        tables: All thresholds: the full grid for the plain view of the served scores, and only the
            requested values for other views, or another head, kind of score or temperature.
    """

    # From a factory, since `dump` leaves out what equals a plain default: this is always written.
    schema_version: int = field(default_factory=lambda: SCHEMA_VERSION)
    calibration_id: str
    created: str
    classes: int
    scoring: Scoring
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
        values = self.values("average_k")
        if not values or self.default_k not in values:
            raise ValueError(f"no average_k table for {self.scoring} at the first of asked_k")
        if self.size_bins != tuple(size_bins(self.classes).tolist()):
            raise ValueError(f"size_bins are not those of {self.classes} classes")
        if any(region.classes[-1] >= self.classes for region in self.lists):
            raise ValueError(f"a list holds a class index beyond the {self.classes} classes")
        if len(self._lists) != len(self.lists):
            raise ValueError("two lists have the same name")
        self._check_tables()

    @property
    def default_k(self) -> float:
        """3 if it is calibrated, else the first requested value."""
        ks = self.values("average_k")
        return PREFERRED_K if PREFERRED_K in ks else (self.asked_k or tuple(ks))[0]

    @property
    def default_point(self) -> OperatingPoint:
        """The threshold of ``average_k`` at the default K, for single photos."""
        return self.point(PLAIN, self.setting("average_k"))

    @cached_property
    def shot_groups(self) -> dict[str, Bools]:
        """Classes by training photos, see :func:`.metrics.shot_groups`; empty where unknown."""
        return shot_groups(self.class_counts) if self.class_counts_from == "train" else {}

    @property
    def head(self) -> str:
        """The served head."""
        return self.scoring.head

    @property
    def score_kind(self) -> ScoreKind:
        """The served kind of score."""
        return self.scoring.score_kind

    @property
    def temperature(self) -> float:
        """Logits are divided by this before they become scores."""
        return self.scoring.temperature

    @cached_property
    def served(self) -> dict[_TableKey, Served]:
        """The thresholds of the served scores."""
        served = dict[_TableKey, Served]()
        for table in self.tables:
            if table.scoring.single == self.scoring:
                for rule in table.rules:
                    if rule.rule in RULES:
                        key = _TableKey(table.view, rule.rule, rule.guarantee)
                        served.setdefault(key, Served(table, rule))
        return served

    @property
    def views(self) -> tuple[View, ...]:
        """The views that have thresholds, the plain one first."""
        return tuple(dict.fromkeys(key.view for key in self.served))

    @cached_property
    def photos(self) -> tuple[int, ...]:
        """The calibrated numbers of photos of one observation, ascending."""
        return tuple(sorted({view.photos for view in self.views}))

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that are calibrated for the plain view."""
        keys = (key for key in self.served if key.view.single)
        return tuple(key.rule for key in keys if key.guarantee == usual_guarantee(key.rule))

    @property
    def promises(self) -> tuple[tuple[str, Guarantee], ...]:
        """The rules with further guarantees, for the plain view: each rule and guarantee."""
        return tuple(
            (key.rule, key.guarantee)
            for key in self.served
            if key.view.single and key.guarantee not in (None, usual_guarantee(key.rule))
        )

    @cached_property
    def prior(self) -> Floats:
        """Share of each class among the photos of ``class_counts``, above 0, ``(classes,)``."""
        return class_prior(self.class_counts)

    def values(
        self, rule: str, guarantee: Guarantee | None = None, view: View = PLAIN
    ) -> list[float]:
        """The calibrated values of K (coverages for a coverage rule), ascending."""
        served = self.served.get(_TableKey(view, rule, guarantee or usual_guarantee(rule)))
        return [] if served is None else served.thresholds.values

    def setting(
        self, rule: str, value: float | None = None, guarantee: Guarantee | None = None
    ) -> Setting:
        """What is asked, with every default filled in.

        Args:
            rule: A name in :data:`florilege.calibration.rules.RULES`.
            value: K or the coverage; by default :attr:`default_k`, the first coverage requested at
                the calibration, or the first calibrated value.
            guarantee: The guarantee for new photos; by default the usual one of the rule.
        """
        if value is None:
            calibrated = self.values(rule, guarantee)
            covers = rule in RULES and RULES[rule].asks == "coverage"
            defaults = self.asked_coverage if covers else (self.default_k,)
            preferred = [default for default in defaults[:1] if default in calibrated]
            value = next(iter(preferred or calibrated), next(iter(defaults), 0.0))
        return Setting.of(rule, value, guarantee)

    def point(self, view: View, setting: Setting) -> OperatingPoint:
        """The threshold of a view for a setting: the only look-up.

        Raises:
            NotCalibrated: There is no such threshold; ``allowed`` holds the calibrated values.
        """
        point = self._points.get((view, setting))
        if point is not None:
            return point
        special = setting.guarantee if setting.guarantee != usual_guarantee(setting.rule) else None
        conditions = "" if special is None else f" with guarantee={special}"
        conditions += f" {view}" if str(view) else ""
        allowed = self.values(setting.rule, setting.guarantee, view)
        what = f"{setting.asks} = {setting.value:g}" if allowed else f"rule {setting.rule!r}"
        of_rule = f" for rule {setting.rule!r}" if allowed else ""
        raise NotCalibrated(f"{what} is not calibrated{of_rule}{conditions}", allowed=allowed)

    def points(self, view: View, setting: Setting) -> dict[int, OperatingPoint]:
        """The thresholds of a view for a setting by number of photos; other numbers have that of 1.

        Where a view has none, it is that of the most similar view that has one: its table names it.

        Raises:
            NotCalibrated: Not even the plain view has such a threshold.
        """
        # Raises if not even the plain view has it, which every search below falls back to.
        self.point(PLAIN, setting)
        return self._nearest(view, setting)

    def requested_points(self, view: View = PLAIN) -> list[OperatingPoint]:
        """The thresholds of a view at the values last requested, those of :attr:`promises` last."""
        values = {"k": sorted(self.asked_k), "coverage": sorted(self.asked_coverage)}
        usual = ((rule, usual_guarantee(rule)) for rule in self.rules)
        requested = (
            (view, Setting(rule, value, guarantee))
            for rule, guarantee in (*usual, *self.promises)
            for value in values[RULES[rule].asks]
        )
        return [self._points[key] for key in requested if key in self._points]

    def scores(self, logits: ArrayLike) -> Floats:
        """Scores of single photos from the logits of the served head, ``(rows, classes)``."""
        return self.scoring.scores(np.asarray(logits)[:, np.newaxis])

    def compared(self, k: float) -> dict[tuple[str, ScoreKind, float], float]:
        """Hit rate of ``average_k`` at this K by head, kind and temperature, best first."""
        rates = {
            (scoring.head, scoring.score_kind, scoring.temperature): counts.hit_rate(noise)
            for table in self.tables
            for scoring, noise in [(table.scoring, table.label_noise)]
            for rule in table.rules
            if (rule.rule, rule.guarantee, table.view) == ("average_k", None, PLAIN)
            for counts in rule.counts
            if counts.value == k and counts.hit_rows is not None
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
        if unknown := {table.view.list for table in self.tables} - {None, *self._lists}:
            raise ValueError(f"tables for lists that do not exist: {unknown}")
        rules = [rule for table in self.tables for rule in table.rules]
        by_class = (len(thresholds.own) for rule in rules for thresholds in rule.by_class)
        if wrong := set(by_class) - {self.classes}:
            raise ValueError(f"{wrong} thresholds for {self.classes} classes")
        largest = max(len(counts.sizes) for rule in rules for counts in rule.counts)
        if largest > len(self.size_bins):
            raise ValueError(f"counts of {largest} sizes for {len(self.size_bins)} size_bins")

    @cached_property
    def _weights(self) -> Floats:
        return class_weights(self.class_counts, self.macro_weight)

    @cached_property
    def _lists(self) -> dict[str, CalibratedList]:
        return {region.name: region for region in self.lists}

    @cached_property
    def _points(self) -> dict[tuple[View, Setting], OperatingPoint]:
        points = dict[tuple[View, Setting], OperatingPoint]()
        for key, served in self.served.items():
            weights = self._weights
            if key.view.list is not None:
                classes = np.array(self._lists[key.view.list].classes)
                weights = class_weights(np.array(self.class_counts)[classes], self.macro_weight)
            for index, value in enumerate(served.thresholds.values):
                setting = Setting(key.rule, value, key.guarantee)
                points.setdefault((key.view, setting), self._point(served, index, weights))
        return points

    @cached_property
    def _nearest(self) -> Callable[[View, Setting], dict[int, OperatingPoint]]:
        """`_nearest_points` with a cache that goes with the record."""
        # On the record, not the function: a cache of the module would hold replaced records.
        return lru_cache(_VIEWS_KEPT)(partial(_nearest_points, self._points, self.photos))

    def _point(self, served: Served, index: int, weights: Floats) -> OperatingPoint:
        table, thresholds = served
        spec, counts = RULES[thresholds.rule], thresholds.counts[index]
        return OperatingPoint(
            rule=thresholds.rule,
            lambda_val=counts.lambda_val,
            min_size=table.min_size,
            rows=table.rows,
            top_k=min(round(counts.value), weights.size) if spec.takes == "k" else None,
            class_weights=weights if spec.balanced else None,
            class_thresholds=thresholds.by_class[index].thresholds() if spec.by_class else None,
            max_size=table.max_size if thresholds.guarantee and spec.asks == "k" else None,
            macro_weight=self.macro_weight if spec.balanced else None,
            achieved=counts.size_sum / table.rows,
            guarantee=thresholds.guarantee,
            counts=counts,
            table=table,
            classes=weights.size,
            size_bins=self.size_bins,
            measured=self.measured,
            evidence=self._evidence(table),
        )

    def _evidence(self, table: Table) -> Evidence:
        """The photos behind the thresholds of a table."""
        measured, prior = self.measured, self.place_prior
        return Evidence(
            rows=table.rows,
            independent=table.independent,
            train_photos=measured.train_photos,
            chose_checkpoint=measured.chose_checkpoint,
            networks=measured.networks,
            candidates=table.candidates,
            label_noise=table.label_noise,
            places_drawn=prior is not None and prior.simulated,
            same_species=table.made_from == "same_class",
            traffic=measured.split == TRAFFIC,
            class_counts_from_photos=self.class_counts_from != "train",
            counts_fuse=table.scoring.fusion is not None,
        )


def _nearest_points(
    points: Mapping[tuple[View, Setting], OperatingPoint],
    numbers: Iterable[int],
    view: View,
    setting: Setting,
) -> dict[int, OperatingPoint]:
    """For each number of photos the point of a view, else of one that leaves something out.

    The most alike comes first: a list changes the scores most, a place least.
    """
    nearest = {}
    for number in numbers:
        choices = product((view.list, None), (number, 1), (view.place, None))
        keys = ((View(photos, name, place), setting) for name, photos, place in choices)
        nearest[number] = next(points[key] for key in keys if key in points)
    return nearest
