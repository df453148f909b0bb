"""From the logits of a split to a calibration record."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

from calibration.balance import class_weights
from calibration.columns import Columns, Row
from calibration.distribution import Distribution, DistributionOf
from calibration.evidence import Evidence
from calibration.intervals import mean_interval, wilson
from calibration.logits import Scoring
from calibration.measure import Measurement, size_bins
from calibration.nested import choose
from calibration.record import CalibrationRecord, Measured, Selection, Table
from calibration.scores import ScoreKind, scores
from calibration.sets import SetRule
from calibration.settings import Settings

Scored = tuple[NDArray[np.float32], NDArray[np.float64], NDArray[np.int64]]
"""Logits ``(batch, classes)``, scores ``(batch, classes)`` and labels ``(batch,)``."""


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """Thresholds and what they do.

    Attributes:
        tables: One for each rule.
        hits: Whether each set at the default K holds the truth, shape ``(rows,)``.
    """

    tables: list[Table]
    hits: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Fit:
    """One head and kind of score of a scored split, read as often as wanted.

    Attributes:
        scoring: The logits.
        head: Which head.
        score_kind: How its logits become scores.
        advance: Called with the number of rows after each block.
    """

    scoring: Scoring
    head: str
    score_kind: ScoreKind
    advance: Callable[[int], None]

    def blocks(self) -> Iterator[Scored]:
        """Logits, scores and labels, rows in order."""
        for logits, labels in self.scoring.logits.blocks(self.head):
            yield logits, scores(logits, self.score_kind), labels
            self.advance(len(labels))

    def fitted(
        self,
        settings: Settings,
        ks: Sequence[float],
        *,
        weights: NDArray[np.float64] | None = None,
    ) -> Fitted:
        """Calibrate and measure every rule: with weights the balanced ones, else the others."""
        name = "balanced_" if weights is not None else ""
        evidence = self._evidence(settings, max(ks), weights)
        by_size = [evidence.average_k(k, rule=f"{name}average_k") for k in ks]
        by_level = [evidence.coverage(c, rule=f"{name}coverage") for c in settings.coverages]
        fixed = [] if name else [top_k_rule(k, evidence.rows) for k in settings.sizes(ks)]
        watched = ks.index(settings.default_k)
        free = Measurement([*by_size, *by_level], settings.classes, watched=watched)
        exact = Measurement(fixed, settings.classes)
        for _, values, labels in self.blocks():
            free.update(values, labels)
            exact.update(values, labels)
        rows = rows_of(free, [*ks, *settings.coverages])
        tables = [(f"{name}average_k", rows[: len(ks)]), (f"{name}coverage", rows[len(ks) :])]
        if fixed:
            tables.append(("top_k", rows_of(exact, settings.sizes(ks))))
        return Fitted(
            tables=[self._table(rule, settings, found) for rule, found in tables if found],
            hits=free.watched_hits,
        )

    def _evidence(
        self, settings: Settings, largest_k: float, weights: NDArray[np.float64] | None
    ) -> Evidence:
        evidence = Evidence(
            rows=len(self.scoring.logits.labels),
            classes=settings.classes,
            max_average_k=largest_k,
            min_size=settings.min_size,
            class_weights=weights,
        )
        for _, values, labels in self.blocks():
            evidence.update(values, labels)
        return evidence

    def _table(self, rule: str, settings: Settings, rows: Sequence[Row]) -> Table:
        return Table(
            rule=rule,
            head=self.head,
            score_kind=self.score_kind,
            images=1,
            min_size=settings.min_size,
            columns=Columns.of(sorted(rows, key=lambda row: row.value)),
        )


def fit_record(
    scoring: Scoring,
    settings: Settings,
    *,
    class_counts: NDArray[np.int64] | None,
    chose_checkpoint: bool | None,
    advance: Callable[[int], None] = lambda rows: None,
) -> CalibrationRecord:
    """Calibrate every rule, choose what serves, and measure it all.

    Args:
        scoring: Logits of the calibration split.
        settings: What is asked for.
        class_counts: Training images a class, shape ``(classes,)``; where None, the photos of
            the split itself are counted.
        chose_checkpoint: Whether the split also chose the checkpoint, where known.
        advance: Called with the number of rows after each block; in all
            ``passes(scoring, settings)`` times the rows.
    """
    labels = scoring.logits.labels
    counts = class_counts
    if counts is None:
        counts = np.bincount(labels, minlength=settings.classes)
    candidates = [
        Fit(scoring=scoring, head=head, score_kind=kind, advance=advance)
        for head, kind in settings.candidates(scoring.logits.heads)
    ]
    compared = [fit.fitted(settings, settings.compared) for fit in candidates]
    choice = choose([fitted.hits for fitted in compared])
    served = candidates[choice.best]
    weights = class_weights(counts, settings.micro_weight)
    tables = served.fitted(settings, settings.grid).tables
    tables += served.fitted(settings, settings.grid, weights=weights).tables
    for index, others in enumerate(compared):
        tables += others.tables if index != choice.best else []
    return CalibrationRecord(
        calibration_id="",
        created=datetime.now(UTC).isoformat(),
        classes=settings.classes,
        head=served.head,
        score_kind=served.score_kind,
        asked_k=settings.ks,
        asked_coverage=settings.coverages,
        measured=Measured(
            split=scoring.split,
            rows=len(labels),
            classes_seen=np.unique(labels).size,
            data_sha256=scoring.data_sha256,
            model_sha256=scoring.model_sha256,
            chose_checkpoint=chose_checkpoint,
            chose_head=len(candidates) > 1,
        ),
        selection=Selection(
            k=settings.default_k,
            candidates=len(candidates),
            hit_rate=choice.hit_rate,
            honest_hit_rate=choice.honest_hit_rate,
        ),
        class_counts=tuple(counts.tolist()),
        class_counts_from=scoring.split if class_counts is None else "train",
        micro_weight=settings.micro_weight,
        size_bins=tuple(size_bins(settings.classes).tolist()),
        distribution=distribution_of(served),
        tables=tuple(tables),
    ).named()


def passes(scoring: Scoring, settings: Settings) -> int:
    """How often :func:`fit_record` reads all rows."""
    return 2 * len(settings.candidates(scoring.logits.heads)) + 5


def top_k_rule(k: int, rows: int) -> SetRule:
    """Sets of exactly ``k`` classes."""
    return SetRule(rule="top_k", lambda_val=None, min_size=1, top_k=k, rows=rows)


def rows_of(measurement: Measurement, values: Sequence[float]) -> list[Row]:
    """What was measured for each rule; ``values`` are the K or coverages they were made for."""
    return [_row(measurement, index, float(value)) for index, value in enumerate(values)]


def distribution_of(fit: Fit) -> Distribution:
    """How the scores are distributed."""
    gathered = DistributionOf()
    for logits, values, _ in fit.blocks():
        gathered.update(logits, values)
    return gathered.result()


def _row(measurement: Measurement, index: int, value: float) -> Row:
    rule, rows = measurement.rules[index], measurement.rows
    size, deviation = measurement.mean_size(index), measurement.size_deviation(index)
    size_low, size_high = mean_interval(size, deviation, rows)
    hits = int(measurement.hits[index])
    hit_low, hit_high = wilson(hits, rows)
    macro = measurement.macro_hit_rate(index)
    return Row(
        value=value,
        lambda_val=rule.lambda_val,
        size=size,
        size_low=size_low,
        size_high=size_high,
        size_deviation=deviation,
        hit_rate=hits / rows,
        hit_low=hit_low,
        hit_high=hit_high,
        macro_hit_rate=0.0 if macro is None else macro,
        empty_rate=int(measurement.empty[index]) / rows,
        ties=rule.ties,
        size_histogram=_without_end(measurement.histogram[index]),
    )


def _without_end(counts: NDArray[np.int64]) -> tuple[int, ...]:
    """The counts without the zeros at their end."""
    return tuple(np.trim_zeros(counts, "b").tolist())
