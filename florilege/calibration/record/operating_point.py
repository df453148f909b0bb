"""A calibrated threshold in use, with its figures and their origin."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.fusion import fuse
from florilege.calibration.guarantees import Guarantee
from florilege.calibration.intervals import least_coverage
from florilege.calibration.record.origin import Origin
from florilege.calibration.record.schema import Row, Table
from florilege.calibration.record.statement import statement
from florilege.calibration.rules import RULES
from florilege.calibration.scores import scale_logits
from florilege.calibration.sets import SetRule
from florilege.calibration.validation import Floats


class NotCalibrated(ValueError):
    """No threshold was calibrated for the request.

    Attributes:
        allowed: The values of K, or the coverages, that are calibrated for the rule.
    """

    def __init__(self, message: str, *, allowed: list[float]) -> None:
        super().__init__(message)
        self.allowed = allowed


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A measured figure with its 95 % interval and where it was measured.

    ``selection_split`` says whether some of the photos also trained or chose the network or head;
    None where unknown.
    """

    value: float
    ci95: tuple[float, float]
    split: str
    rows: int
    selection_split: bool | None


@dataclass(frozen=True, kw_only=True, eq=False)
class OperatingPoint(SetRule):
    """A calibrated rule in use, with its figures and their origin.

    Its guarantee holds if none of the photos trained the network or chose its checkpoint or head;
    with several photos, each group must also show a single plant.
    """

    table: Table  # of its threshold, with head, kind of score, number of photos and guarantee
    row: Row  # the threshold and its figures
    measured: Origin  # the photos that the figures were measured on
    guaranteed: bool  # whether its guarantee holds
    candidates: int  # scores that were compared on the photos

    @property
    def delta(self) -> float | None:
        """For ``probability``: the share of calibrations that may break the guarantee."""
        return self.table.delta

    @property
    def guarantee(self) -> Guarantee | None:
        """The kind of guarantee, of the coverage or of a mean size of at most ``k``."""
        return self.table.guarantee

    @property
    def k(self) -> float | None:
        """The requested mean set size (size of every set for ``top_k``), or None."""
        return self.row.value if RULES[self.rule].asks == "k" else None

    @property
    def coverage(self) -> float | None:
        """The requested coverage, or None."""
        return self.row.value if RULES[self.rule].asks == "coverage" else None

    @property
    def requested_value(self) -> tuple[str, float]:
        """The requested value with its name in JSON, ``k`` or ``level``."""
        return "level" if self.k is None else "k", self.row.value

    @cached_property
    def estimates(self) -> dict[str, Estimate | None]:
        """The figures of an answer by name; None for those not measured."""
        row, measured = self.row, self.measured
        figures: dict[str, tuple[Any, Any, Any]] = {
            "expected_size": (row.size, row.size_low, row.size_high),
            "hit_rate": (row.hit_rate, row.hit_low, row.hit_high),
        }
        return {
            name: None
            if value is None
            else Estimate(
                value=value,
                ci95=(low, high),
                split=measured.split,
                rows=self.rows,
                selection_split=measured.selection_split,
            )
            for name, (value, low, high) in figures.items()
        }

    @property
    def least_coverage(self) -> float | None:
        """Coverage on new photos that holds in 9 of 10 calibrations for every K at the same time.

        So K may be chosen after looking at the figures. None for rules without a K and a threshold,
        for several photos, and where it cannot be promised: the photos trained the network or chose
        its checkpoint, have no labels, or show one plant several times.
        """
        measured, rate = self.measured, self.row.hit_rate
        independent = measured.observations in (None, measured.rows) and self.table.images == 1
        if self.k is None or self.lambda_val is None or self.guarantee or not independent:
            return None
        if rate is None or measured.chose_checkpoint is not False:
            return None
        return least_coverage(round(rate * self.rows), self.rows, candidates=self.candidates)

    @cached_property
    def sentences(self) -> dict[str, str]:
        """The sentences of `statement` by language code, as far as they were asked for.

        They go with the point: a cache of the module would hold the tables of replaced records.
        """
        return {}

    @property
    def statement(self) -> str:
        """The figures in one plain sentence."""
        return statement(self)

    def among(self, classes: NDArray[np.intp]) -> "OperatingPoint":
        """The same threshold for the scores of some classes, ascending; not calibrated for them."""
        arrays = (self.class_weights, self.class_thresholds)
        weights, thresholds = (None if each is None else each[classes] for each in arrays)
        return replace(self, class_weights=weights, class_thresholds=thresholds)

    def scaled(self, logits: ArrayLike) -> NDArray[Any]:
        """Logits ``(..., classes)`` of the table's head, divided by the temperature."""
        return scale_logits(logits, self.table.temperature)

    def fused_scores(self, logits: ArrayLike, lift: Floats | None = None) -> Floats:
        """One row of scores from all photos of a request, for :meth:`compare` and :meth:`sets`.

        For one photo these are :func:`florilege.calibration.scores.scores`, bit for bit. A
        threshold for single photos is compared with the mean of the scores of several.

        ``logits`` are those of the table's head, ``(photos, classes)``, photos in any order. The
        place adds ``lift`` to them once they are scaled. It and the scores are ``(classes,)``.

        Raises:
            ValueError: A wrong shape, no photo, or logits that are NaN or +inf.
        """
        values = self.scaled(logits)[np.newaxis]
        values = values if lift is None else values + lift
        k = self.top_k if self.table.fusion == "mean_marginal" else None
        return fuse(values, score_kind=self.table.score_kind, k=k).reshape(-1)
