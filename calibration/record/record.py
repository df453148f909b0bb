"""The calibration record: every threshold of a bundle, what it was measured to do, and on what.

``calibration.json`` is this record. Floats are written with all their digits, so that reading the
file gives exactly the thresholds that were chosen.
"""

import hashlib
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from calibration.distribution import Distribution
from calibration.guarantees import Guarantee
from calibration.record.by_shots import ShotGroup
from calibration.record.origin import Origin, Selection
from calibration.record.point import NotCalibrated, OperatingPoint
from calibration.record.tables import Table, dump
from calibration.rejection.verdict import Rejection
from calibration.rules import RULES, SmallClasses, class_weights, usual_guarantee
from calibration.scores import ScoreKind, adjusted, scores
from models.errors import BundleError

__all__ = [
    "CalibrationRecord",
    "Distribution",
    "NotCalibrated",
    "OperatingPoint",
    "Origin",
    "Rejection",
    "Selection",
    "Table",
]

SCHEMA_VERSION = 3
PREFERRED_K = 3.0

Asked = tuple[str, Guarantee | None, int]
"""A rule, its guarantee and the number of photos in a request."""


@dataclass(frozen=True, kw_only=True)
class CalibrationRecord:
    """Everything that ``calibration.json`` holds.

    Attributes:
        schema_version: Version of the file's format.
        calibration_id: Identifies this calibration and no other.
        created: UTC time in ISO 8601.
        classes: Number of classes.
        head: The head that serves.
        score_kind: The kind of score that serves.
        temperature: What logits are divided by before they become scores.
        asked_k: The values last given to ``--k``.
        asked_coverage: The values last given to ``--coverage``.
        measured: What the figures were measured on.
        selection: How head, kind of score and temperature were chosen. A calibration from traffic
            keeps the earlier choice, with its hit rates on the labelled photos of that time.
        class_counts: Images per class, for the balanced rules.
        class_counts_from: ``train``, or the split itself where training counts are not known.
        micro_weight: ``w`` of the balanced rules.
        size_bins: Lower edges of the bins of the set-size histograms.
        distribution: How the served scores were distributed.
        rejection: Which photos are suspect; None where that is not judged.
        log_ratios: Logs of how much more frequent each class is in the traffic the scores are
            corrected for; None where they are not corrected.
        shots: Sizes and hits at the default K for species with few, a medium number and many
            training images; empty where the numbers of training images are not known.
        tables: All thresholds: the full grid for single photos with what serves, and only the
            values asked for with several photos or another head, kind of score or temperature.
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
    micro_weight: float
    size_bins: tuple[int, ...]
    distribution: Distribution
    rejection: Rejection | None
    log_ratios: tuple[float, ...] | None
    shots: tuple[ShotGroup, ...]
    tables: tuple[Table, ...]

    def __post_init__(self) -> None:
        columns = (self._weights, self.mean_scores, self.log_ratios or self.class_counts)
        if any(len(column) != self.classes for column in columns):
            raise ValueError(f"counts, mean scores or log ratios are not {self.classes} long")
        if self._table("average_k", 1) is None:
            raise ValueError(f"no average_k table for head {self.head} and {self.score_kind}")
        for table in self.tables:
            for thresholds in () if table.by_class is None else table.by_class.thresholds:
                if len(thresholds) != self.classes:
                    raise ValueError(f"{len(thresholds)} thresholds for {self.classes} classes")

    @property
    def default_k(self) -> float:
        """3 where it is calibrated, else the first value that was asked for."""
        ks = self.ks("average_k")
        return PREFERRED_K if PREFERRED_K in ks else (self.asked_k or tuple(ks))[0]

    @cached_property
    def served(self) -> dict[Asked, Table]:
        """The tables for the head, kind of score and temperature that serve."""
        serves = (self.head, self.score_kind, self.temperature)
        found = dict[Asked, Table]()
        for table in self.tables:
            known = table.rule in RULES
            if known and (table.head, table.score_kind, table.temperature) == serves:
                found.setdefault((table.rule, table.guarantee, table.images), table)
        return found

    @property
    def rules(self) -> tuple[str, ...]:
        """The rules that were calibrated for one photo."""
        return tuple(
            rule
            for rule, guarantee, images in self.served
            if images == 1 and guarantee == usual_guarantee(rule)
        )

    @property
    def promises(self) -> tuple[tuple[str, Guarantee], ...]:
        """Rules with each further guarantee they were calibrated with, for one photo."""
        return tuple(
            (rule, guarantee)
            for rule, guarantee, images in self.served
            if images == 1 and guarantee is not None and guarantee != usual_guarantee(rule)
        )

    @property
    def small_classes(self) -> SmallClasses | None:
        """What ``class_coverage`` gives classes with too few photos; None without that rule."""
        policies = (t.by_class.small_classes for t in self.served.values() if t.by_class)
        return next(policies, None)

    @property
    def images(self) -> tuple[int, ...]:
        """The numbers of photos of one plant that are calibrated, ascending."""
        return tuple(sorted({images for _, _, images in self.served}))

    @property
    def mean_scores(self) -> NDArray[np.float64]:
        """Mean served score of each class: the class frequencies that the scores assume."""
        return np.array(self.distribution.mean_scores)

    def ks(self, rule: str, *, images: int = 1, guarantee: Guarantee | None = None) -> list[float]:
        """The values of K (the coverages for a coverage rule) that are calibrated, ascending."""
        table = self._table(rule, images, guarantee)
        return [] if table is None else list(table.columns.value)

    def point(
        self,
        rule: str,
        *,
        k: float | None = None,
        coverage: float | None = None,
        images: int = 1,
        guarantee: Guarantee | None = None,
    ) -> OperatingPoint:
        """The threshold for a rule at a K or a coverage.

        Args:
            rule: A name in :data:`calibration.rules.RULES`.
            k: Wanted size; by default :attr:`default_k`, or the first calibrated value.
            coverage: Wanted coverage, for the coverage rules; by default the first one asked for.
            images: Photos of one plant in the request.
            guarantee: What the threshold promises about new photos; by default what the rule
                promises anyway: coverage on average over calibrations (``mean``), and nothing about
                sizes.

        Raises:
            NotCalibrated: There is no such threshold; ``allowed`` holds the values there are.
        """
        table, how = self._table(rule, images, guarantee), _with(images, guarantee)
        if table is None:
            raise NotCalibrated(f"rule {rule!r} is not calibrated{how}", allowed=[])
        asks = RULES[rule].asks
        wanted = self._wanted(table, coverage if asks == "coverage" else k)
        found = self._points.get((rule, table.guarantee, images, wanted))
        if found is None:
            raise NotCalibrated(
                f"{asks} = {wanted:g} is not calibrated for rule {rule!r}{how}",
                allowed=list(table.columns.value),
            )
        return found

    def adjusted(self, logits: ArrayLike) -> NDArray[Any]:
        """Logits ``(..., classes)`` of the served head, scaled by temperature and corrected."""
        return adjusted(logits, temperature=self.temperature, log_ratios=self.log_ratios)

    def scores(self, logits: ArrayLike) -> NDArray[np.float64]:
        """Served scores of single photos from the logits of the served head, ``(rows, classes)``.

        Raises:
            ValueError: See :func:`calibration.scores.scores`.
        """
        return scores(self.adjusted(logits), self.score_kind)

    def compared(self, k: float) -> dict[tuple[str, ScoreKind, float], float]:
        """Hit rate of ``average_k`` at this K by head, kind and temperature, best first."""
        found = {
            (table.head, table.score_kind, table.temperature): rate
            for table in self.tables
            if (table.rule, table.images, table.guarantee) == ("average_k", 1, None)
            for value, rate in zip(table.columns.value, table.columns.hit_rate, strict=True)
            if value == k and rate is not None
        }
        return dict(sorted(found.items(), key=lambda pair: -pair[1]))

    def to_json(self) -> str:
        """The content of ``calibration.json``; reading it gives an equal record."""
        return dump(self)

    @classmethod
    def from_json(cls, text: str | bytes) -> "CalibrationRecord":
        """Read ``calibration.json``.

        Raises:
            BundleError: Damaged, incomplete, or of another schema version.
        """
        from pydantic_core import from_json  # here, so that the library needs only NumPy

        try:
            version = from_json(text)["schema_version"]
            if version != SCHEMA_VERSION:
                raise BundleError(_other_version(version))
            found: CalibrationRecord = _reader().validate_json(text)
        except (ValueError, TypeError, KeyError) as error:
            raise BundleError(
                f"calibration.json is damaged ({_fault(error)}): calibrate the bundle again"
            ) from error
        return found

    def named(self) -> "CalibrationRecord":
        """The same record with the ``calibration_id`` that follows from its content."""
        blank = replace(self, calibration_id="")
        return replace(blank, calibration_id=hashlib.sha256(blank.to_json().encode()).hexdigest())

    @cached_property
    def _weights(self) -> NDArray[np.float64]:
        return class_weights(self.class_counts, self.micro_weight)

    @property
    def _chose_nothing(self) -> bool:
        """Whether the calibration photos were used to choose neither the network nor its scores."""
        chosen = self.measured.chose_head or self.log_ratios is not None
        return self.measured.chose_checkpoint is False and not chosen

    def _table(self, rule: str, images: int, guarantee: Guarantee | None = None) -> Table | None:
        return self.served.get((rule, guarantee or usual_guarantee(rule), images))

    def _wanted(self, table: Table, value: float | None) -> float:
        if value is not None:
            return float(value)
        by_coverage = RULES[table.rule].asks == "coverage"
        usual = self.asked_coverage[0] if by_coverage else self.default_k
        values = table.columns.value
        return usual if usual in values else float(values[0])

    @cached_property
    def _points(self) -> dict[tuple[str, Guarantee | None, int, float], OperatingPoint]:
        found = dict[tuple[str, Guarantee | None, int, float], OperatingPoint]()
        log_ratios = None if self.log_ratios is None else np.array(self.log_ratios)
        for asked, table in self.served.items():
            for index, value in enumerate(table.columns.value):
                found.setdefault((*asked, value), self._point(table, index, log_ratios))
        return found

    def _point(
        self, table: Table, index: int, log_ratios: NDArray[np.float64] | None
    ) -> OperatingPoint:
        spec, row, by_class = RULES[table.rule], table.columns.row(index), table.by_class
        promised = table.guarantee is not None and table.made_from != "same_class"
        return OperatingPoint(
            rule=table.rule,
            lambda_val=row.lambda_val,
            min_size=table.min_size,
            rows=table.rows,
            top_k=round(row.value) if spec.takes == "k" else None,
            class_weights=self._weights if spec.balanced else None,
            class_thresholds=None if by_class is None else by_class.arrays[index],
            max_size=table.max_size,
            small_classes=0 if by_class is None else by_class.small[index],
            achieved=row.size,
            ties=row.ties,
            table=table,
            row=row,
            measured=self.measured,
            unpromised_classes=0 if by_class is None else by_class.unpromised(index),
            guaranteed=promised and self._chose_nothing,
            log_ratios=log_ratios,
        )


@cache
def _reader() -> Any:
    """Reads a record; every entry must be of exactly its declared type."""
    from pydantic import ConfigDict, TypeAdapter

    strict = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
    kind: Any = CalibrationRecord | None  # a dataclass by itself takes no configuration
    return TypeAdapter(kind, config=strict)


def _fault(error: Exception) -> str:
    """The first thing that is wrong, and where."""
    from pydantic import ValidationError

    if not isinstance(error, ValidationError):
        return str(error)
    first = error.errors(include_url=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg']}" if place else first["msg"]


def _with(images: int, guarantee: Guarantee | None) -> str:
    promise = "" if guarantee is None else f" with guarantee={guarantee}"
    return promise if images == 1 else f"{promise} with {images} photos"


def _other_version(version: object) -> str:
    older = isinstance(version, int) and version < SCHEMA_VERSION
    return (
        f"calibration.json has schema version {version}, this program reads {SCHEMA_VERSION}: "
        + ("calibrate the bundle again" if older else "update florilege")
    )
