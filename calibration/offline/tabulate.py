"""Thresholds of every rule for scores that are read block by block, and what they do."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

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
    balanced = weights is not None
    chosen = [
        (name, spec.choose, ks if spec.asks == "k" else settings.coverages)
        for name, spec in RULES.items()
        if spec.choose is not None and spec.balanced == balanced
    ]  # average_k or its balanced form first, which is watched
    evidence = _evidence(source, settings, ks, weights)
    rules = [choose(evidence, value) for _, choose, values in chosen for value in values]
    del evidence  # it takes more memory than what follows
    sizes = settings.sizes(ks) if fixed and not balanced else ()
    free = Measurement(rules, settings.classes, watched=ks.index(settings.default_k))
    exact = Measurement([top_k_rule(k, source.rows) for k in sizes], settings.classes)
    for values, labels in source.blocks():
        free.update(values, labels)
        exact.update(values, labels)
    rows = iter(rows_of(free, [value for _, _, asked in chosen for value in asked]))
    tables = [(name, list(islice(rows, len(asked)))) for name, _, asked in chosen]
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


def _evidence(
    source: Source, settings: Settings, ks: Sequence[float], weights: NDArray[np.float64] | None
) -> Evidence:
    evidence = Evidence(
        rows=source.rows,
        classes=settings.classes,
        max_average_k=max(ks),
        min_size=settings.min_size,
        class_weights=weights,
    )
    for values, labels in source.blocks():
        evidence.update(values, labels)
    return evidence


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
