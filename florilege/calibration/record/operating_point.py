"""A calibrated threshold in use, its figures from what was counted, and their origin."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from florilege.calibration.certificate import Certificate, Evidence, certificate
from florilege.calibration.intervals import Z95, mean_interval, wilson
from florilege.calibration.record.measurement import Measurement, size_bins
from florilege.calibration.record.schema import Counts, Origin, Table
from florilege.calibration.record.statement import statement
from florilege.calibration.rules import RULES, LabelNoise
from florilege.calibration.sets import Floats, Guarantee, SetRule, largest_set
from florilege.calibration.view import Setting


@dataclass(frozen=True, kw_only=True)
class Row:
    """One threshold and its figures.

    To add a figure, add it here, to :meth:`figures` and to :func:`row_of`; what it follows from
    must be in :class:`.schema.Counts`. The commands follow. For the server's answers, add it to
    ``OperatingPoint.estimates``, and to ``SetInfo`` and ``Point`` in the schemas of the server.
    """

    value: float  # the requested K or coverage
    lambda_val: float | None  # the threshold; None for ``top_k``
    size: float  # mean set size, with its 95 % interval
    size_low: float
    size_high: float
    size_deviation: float  # standard deviation of the set size
    size_rows: float  # independent rows that would tell the mean size as well
    empty_rate: float  # share of empty sets
    ties: int  # scores kept beyond the rank
    size_histogram: tuple[int, ...]  # sets in each bin of ``size_bins``, without trailing zeros
    hit_rate: float | None = None  # with its 95 % interval; None where the photos have no labels
    hit_low: float | None = None
    hit_high: float | None = None
    hit_rows: float | None = None  # independent rows that would give an interval as wide

    @property
    def figures(self) -> dict[str, Any]:
        """The figures that commands print, by name; intervals are named ``NAME_ci95``."""
        return {
            "mean_set_size": self.size,
            "mean_set_size_ci95": (self.size_low, self.size_high),
            "hit_rate": self.hit_rate,
            "hit_rate_ci95": None if self.hit_rate is None else (self.hit_low, self.hit_high),
            "empty_rate": self.empty_rate,
        }


def row_of(counts: Counts, rows: int, noise: LabelNoise | None, bounds: tuple[int, int]) -> Row:
    """The figures of one threshold.

    Args:
        counts: What was counted.
        rows: Photos, or groups of photos, that were counted.
        noise: The assumption about wrong labels; None where they are taken as they are.
        bounds: The smallest and the largest size that a set can have.
    """
    size, (fewest, most) = counts.size_sum / rows, bounds
    deviation = sqrt(max(0, rows * counts.size_squares - counts.size_sum**2)) / rows
    skewness = _skewness(counts.sizes, size, deviation, most)
    low, high = mean_interval(
        size, deviation, counts.size_rows, lowest=fewest, highest=most, skewness=skewness
    )
    return Row(
        value=counts.value,
        lambda_val=counts.lambda_val,
        size=size,
        size_low=low,
        size_high=high,
        size_deviation=deviation,
        size_rows=counts.size_rows,
        empty_rate=counts.sizes[0] / rows,
        ties=counts.ties,
        size_histogram=counts.sizes,
        **({} if counts.hit_rows is None else _hits(counts, counts.hit_rows, noise)),
    )


def _skewness(sizes: Sequence[int], mean: float, deviation: float, most: int) -> float:
    """Skewness of set sizes up to ``most``, from the sets in each bin.

    Sets lie equally far into their bins, so that their mean is right: as sizes, the lower edges
    turn a skewness of 4.6 into 3.
    """
    if deviation == 0:
        return 0.0
    # Up to 2 ** n there are always more than n bins, since the widest grow by half.
    edges = size_bins(2 ** len(sizes))[: len(sizes) + 1].astype(np.float64)
    weights, lower = np.array(sizes, dtype=np.float64), edges[:-1]  # np.average takes twice as long
    widths, total = np.maximum(np.minimum(edges[1:] - 1, most) - lower, 0), weights.sum()
    room = float((widths * weights).sum() / total)
    far = (mean - float((lower * weights).sum() / total)) / room if room else 0.0
    third = ((lower + far * widths - mean) ** 3 * weights).sum() / total
    return float(third) / deviation**3


class _HitShare(NamedTuple):
    """A share of sets that hold the true class, with its 95 % interval."""

    value: float
    low: float
    high: float


def hit_share(
    hits: int, sets: int, effective: float, noise: LabelNoise | None, chance: float
) -> _HitShare:
    """The share of some sets that hold the true class, where ``hits`` hold the label.

    ``chance`` sums their chance of a class drawn from the label's group. Labels were counted, so
    the interval is that of their share, and its ends are corrected as the share is.
    """
    value = hits / sets
    low, high = wilson(hits, sets, effective=effective)
    if noise is not None:
        value = noise.corrected(value, chance / sets)
        low, high = noise.interval(low, high, chance / sets)
    # The ends are corrected at other rates of wrong labels than the share, and still must enclose
    # it.
    return _HitShare(value, min(low, value), max(high, value))


def _hits(counts: Counts, effective: float, noise: LabelNoise | None) -> dict[str, Any]:
    """The fields of a row that need labels, corrected for wrong ones if there are any."""
    sets, chance = sum(counts.sizes), sum(counts.chance)
    rate, low, high = hit_share(counts.label_hits, sets, effective, noise, chance)
    # Rows that would give an interval as long: Wilson's formula for its lower end, solved for the
    # rows.
    if noise is not None and low < rate:
        effective = min(effective, Z95**2 * low * (1 - low) / (rate - low) ** 2)
    return {"hit_rate": rate, "hit_low": low, "hit_high": high, "hit_rows": effective}


class NotCalibrated(ValueError):
    """No threshold was calibrated for the request.

    Attributes:
        allowed: The values of K, or the coverages, that are calibrated for the rule.
    """

    def __init__(self, message: str, *, allowed: list[float]) -> None:
        super().__init__(message)
        self.allowed = allowed


@dataclass(frozen=True, kw_only=True)
class _Estimate:
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
    """A calibrated rule in use, with its figures, their origin, and what is promised."""

    guarantee: Guarantee | None  # of the coverage, or of a mean size of at most ``k``
    counts: Counts  # the threshold and what was counted
    table: Table  # of its threshold, with its view and its scoring
    classes: int  # that are scored
    size_bins: Sequence[int]  # lower edges of the bins of the histograms
    measured: Origin  # the photos that the figures were measured on
    evidence: Evidence  # what a promise of new photos depends on

    @cached_property
    def row(self) -> Row:
        """The threshold and its figures."""
        return row_of(self.counts, self.rows, self.table.label_noise, self.size_bounds)

    def row_on(self, measurement: Measurement, index: int) -> Row:
        """The threshold and its figures on other photos; it is this rule of a measurement."""
        counts, noisy = measurement.counts(index, self.counts.value), measurement.noise
        noise = None if noisy is None else noisy.noise
        return row_of(counts, measurement.rows, noise, self.size_bounds)

    @property
    def size_bounds(self) -> tuple[int, int]:
        """The smallest and the largest size that a set can have."""
        most = self.classes
        if self.top_k is not None:
            return min(self.top_k, most), min(self.top_k, most)
        unweighted = self.class_weights is None and self.class_thresholds is None
        if unweighted and self.lambda_val is not None:
            most = largest_set(most, self.table.scoring.score_kind, self.lambda_val)
        return self.min_size, min(most, self.max_size or most)

    @cached_property
    def certificate(self) -> Certificate:
        """What is promised of new photos."""
        labelled = self.counts.hit_rows is not None and self.lambda_val is not None
        return certificate(
            self.table.view,
            self.setting,
            self.evidence,
            delta=self.delta,
            macro_weight=self.macro_weight,
            label_hits=self.counts.label_hits if labelled else None,
            chance=self.counts.mean_chance,
        )

    @property
    def setting(self) -> Setting:
        """What was asked for."""
        return Setting(self.rule, self.counts.value, self.guarantee)

    @property
    def on_request(self) -> bool:
        """Whether its guarantee is one that a request must ask for."""
        return self.guarantee != RULES[self.rule].guarantee

    @property
    def delta(self) -> float | None:
        """For ``probability``: the share of calibrations that may break the guarantee."""
        return self.table.delta if self.guarantee == "probability" else None

    @property
    def guaranteed(self) -> bool:
        """Whether its guarantee holds."""
        return self.certificate.guaranteed

    @property
    def least_coverage(self) -> float | None:
        """The coverage on new photos that holds in 9 of 10 calibrations for every K at once."""
        return self.certificate.least_coverage

    @property
    def k(self) -> float | None:
        """The requested mean set size (size of every set for ``top_k``), or None."""
        return self.counts.value if RULES[self.rule].asks == "k" else None

    @property
    def coverage(self) -> float | None:
        """The requested coverage, or None."""
        return self.counts.value if RULES[self.rule].asks == "coverage" else None

    @property
    def independent_rows(self) -> float:
        """About how many observations chose a threshold with a promise, as its table shows them."""
        if self.table.independent or self.measured.observations is None:
            return self.rows
        return self.rows * self.measured.observations / self.measured.rows

    @property
    def requested_value(self) -> tuple[str, float]:
        """The requested value with its name in JSON, ``k`` or ``level``."""
        return "level" if self.k is None else "k", self.counts.value

    @property
    def asked(self) -> dict[str, Any]:
        """What was asked for, as commands print it."""
        name, value = self.requested_value
        return {"rule": self.rule, name: value, "guarantee": self.guarantee}

    def to_plain(self) -> dict[str, Any]:
        """The JSON object of ``calibrate --json``."""
        return {
            **self.asked,
            "guaranteed": self.guaranteed,
            "reasons": list(self.certificate.reasons),
            "delta": self.delta,
            "max_size": self.max_size,
            "macro_weight": self.macro_weight,
            "least_coverage": self.least_coverage,
            "lambda_val": self.lambda_val,
            **self.row.figures,
            "ties": self.row.ties,
            "rows": self.rows,
        }

    @cached_property
    def estimates(self) -> dict[str, _Estimate | None]:
        """The figures of an answer by name; None for those not measured."""
        row = self.row
        return {
            "expected_size": self._estimate(row.size, row.size_low, row.size_high, self.rows),
            "hit_rate": self._estimate(row.hit_rate, row.hit_low, row.hit_high, self.rows),
        }

    def hit_rate_at_size(self, size: int) -> _Estimate | None:
        """How often sets of about this size held the true class; None where there was none.

        Sets of 9 classes and more share a bin with sizes up to half larger. The interval
        allows for several photos of one observation as that of the whole hit rate does.
        """
        counts = self.counts
        index = int(np.searchsorted(np.asarray(self.size_bins), size, side="right")) - 1
        sets, misses, chance = (
            values[index] if index < len(values) else 0
            for values in (counts.sizes, counts.misses, counts.chance)
        )
        if counts.hit_rows is None or not sets:
            return None
        effective = min(1.0, counts.hit_rows / self.rows) * sets
        share = hit_share(int(sets - misses), int(sets), effective, self.table.label_noise, chance)
        return self._estimate(*share, int(sets))

    def _estimate(
        self, value: float | None, low: float | None, high: float | None, rows: int
    ) -> _Estimate | None:
        if value is None or low is None or high is None:
            return None
        measured = self.measured
        return _Estimate(
            value=value,
            ci95=(low, high),
            split=measured.split,
            rows=rows,
            selection_split=measured.selection_split,
        )

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

    def rejecting(self) -> "OperatingPoint":
        """The same for a request that rejects suspect photos; nothing is promised of it."""
        return replace(self, evidence=replace(self.evidence, rejecting=True))

    def among(self, classes: NDArray[np.intp]) -> "OperatingPoint":
        """The same threshold for the scores of some classes, ascending; not calibrated for them."""
        arrays = (self.class_weights, self.class_thresholds)
        weights, thresholds = (None if values is None else values[classes] for values in arrays)
        return replace(self, class_weights=weights, class_thresholds=thresholds)

    def scores(
        self,
        logits: ArrayLike,
        lift: Floats | None = None,
        classes: NDArray[np.intp] | None = None,
        prior: Floats | None = None,
    ) -> Floats:
        """One row of scores from all photos of a request, for :meth:`compare` and :meth:`sets`.

        ``logits`` are those of the head, ``(photos, classes)``; the other arguments and the errors
        are those of :meth:`.view.Scoring.scores`. A threshold for single photos is compared with
        the mean of the scores of several.
        """
        values = np.asarray(logits)[np.newaxis]
        scoring = self.table.scoring
        row: Floats = scoring.scores(values, lift=lift, classes=classes, prior=prior)[0]
        return row
