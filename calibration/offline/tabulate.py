"""Thresholds of every rule for scores that are read block by block, and what they do."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from calibration.fusion import Fusion
from calibration.guarantees import Guarantee
from calibration.intervals import mean_interval, wilson
from calibration.measurement import Measurement
from calibration.offline.settings import Settings
from calibration.photo_groups import MadeFrom
from calibration.record.tables import ByClass, Columns, Row, Table
from calibration.rules import RULES
from calibration.rules.evidence import Evidence
from calibration.scores import ScoreKind
from calibration.sets import SetRule

Blocks = Callable[[], Iterator[tuple[NDArray[np.float64], NDArray[np.int64]]]]
"""Gives scores ``(batch, classes)`` and labels ``(batch,)``, each time from the start."""


@dataclass(frozen=True, kw_only=True)
class Source:
    """Scores of one head and kind, of single photos or of groups.

    Attributes:
        blocks: The scores, read twice.
        rows: Rows they have in all.
        head: Which head.
        score_kind: How its logits become scores.
        temperature: What they are divided by first.
        images: Photos in a group.
        fusion: How their scores become one row.
        made_from: What they have in common; None for single photos.
    """

    blocks: Blocks
    rows: int
    head: str
    score_kind: ScoreKind
    temperature: float
    images: int = 1
    fusion: Fusion = "mean_score"
    made_from: MadeFrom | None = None

    def table(
        self,
        rule: str,
        settings: Settings,
        rows: Sequence[Row],
        *,
        guarantee: Guarantee | None = None,
        max_size: int | None = None,
        by_class: ByClass | None = None,
    ) -> Table:
        """A table of the record; by default with the guarantee that the rule has anyway."""
        return Table(
            rule=rule,
            head=self.head,
            score_kind=self.score_kind,
            temperature=self.temperature,
            images=self.images,
            fusion=self.fusion,
            rows=self.rows,
            made_from=self.made_from,
            min_size=settings.min_size,
            guarantee=guarantee or RULES[rule].guarantee,
            delta=settings.delta if guarantee == "probability" else None,
            max_size=max_size,
            by_class=by_class,
            columns=Columns.of(sorted(rows, key=lambda row: row.value)),
        )


@dataclass(frozen=True, kw_only=True)
class Tabulated:
    """Thresholds and what they do.

    Attributes:
        tables: One for each rule.
        sizes: Size of each set at the default K, shape ``(rows,)``.
        hits: Whether it holds the truth, shape ``(rows,)``.
    """

    tables: list[Table]
    sizes: NDArray[np.int64]
    hits: NDArray[np.bool_]


def tabulate(
    source: Source,
    settings: Settings,
    ks: Sequence[float],
    *,
    weights: NDArray[np.float64] | None = None,
    fixed: bool = True,
) -> Tabulated:
    """Calibrate and measure every rule: with weights the balanced ones, else the others.

    Args:
        source: The scores.
        settings: What is asked for.
        ks: Mean set sizes, with the default K among them; ascending.
        weights: Factor of each class, shape ``(classes,)``, or None.
        fixed: Whether ``top_k`` is measured on these scores too.
    """
    name = "balanced_" if weights is not None else ""
    rules = _rules(source, settings, ks, name, weights)
    sizes = settings.sizes(ks) if fixed and not name else ()
    free = Measurement(rules, settings.classes, watched=ks.index(settings.default_k))
    exact = Measurement([top_k_rule(k, source.rows) for k in sizes], settings.classes)
    for values, labels in source.blocks():
        free.update(values, labels)
        exact.update(values, labels)
    rows = rows_of(free, [*ks, *settings.coverages])
    tables = [(f"{name}average_k", rows[: len(ks)]), (f"{name}coverage", rows[len(ks) :])]
    if sizes:
        tables.append(("top_k", rows_of(exact, sizes)))
    return Tabulated(
        tables=[source.table(rule, settings, found) for rule, found in tables if found],
        sizes=free.watched_sizes,
        hits=free.watched_hits,
    )


def top_k_rule(k: int, rows: int) -> SetRule:
    """Sets of exactly ``k`` classes."""
    return SetRule(rule="top_k", lambda_val=None, min_size=1, top_k=k, rows=rows)


def rows_of(measurement: Measurement, values: Sequence[float]) -> list[Row]:
    """What was measured for each rule; ``values`` are the K or coverages they were made for."""
    return [_row(measurement, index, float(value)) for index, value in enumerate(values)]


def _rules(
    source: Source,
    settings: Settings,
    ks: Sequence[float],
    name: str,
    weights: NDArray[np.float64] | None,
) -> list[SetRule]:
    """One for each K, then one for each coverage; the evidence is forgotten."""
    evidence = Evidence(
        rows=source.rows,
        classes=settings.classes,
        max_average_k=max(ks),
        min_size=settings.min_size,
        class_weights=weights,
    )
    for values, labels in source.blocks():
        evidence.update(values, labels)
    by_size = [evidence.average_k(k, rule=f"{name}average_k") for k in ks]
    by_level = [evidence.coverage(c, rule=f"{name}coverage") for c in settings.coverages]
    return [*by_size, *by_level]


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
