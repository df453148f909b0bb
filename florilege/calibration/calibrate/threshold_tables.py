"""Choose and measure the thresholds of every rule, on scores read block by block."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple

import numpy as np

from florilege.calibration.calibrate.calibration_settings import CalibrationPlan
from florilege.calibration.calibrate.score_sources import Source
from florilege.calibration.guarantees import Guarantee
from florilege.calibration.intervals import mean_interval, wilson
from florilege.calibration.measurement import Measurement
from florilege.calibration.photo_groups import one_of_each
from florilege.calibration.record.schema import ByClass, Columns, Row, Table
from florilege.calibration.rules import RULES
from florilege.calibration.rules.score_summary import Evidence
from florilege.calibration.scores import ScoreKind
from florilege.calibration.sets import SetRule, size_bounds
from florilege.calibration.threshold import next_above
from florilege.calibration.validation import Bools, Floats, Ints

NO_SCORE = next_above(1.0)  # no softmax or sigmoid score reaches it: sets hold only the best class


class _RuleGroup(NamedTuple):
    rules: Sequence[SetRule]
    values: Sequence[float]  # the K or coverage of each
    guarantee: Guarantee | None = None  # None for the usual one of the rule


class Tabulated(NamedTuple):
    """A table for each rule, and the sets of ``average_k`` at the default K."""

    source: Source
    tables: list[Table]
    sizes: Ints  # size of each set, (rows,)
    hits: Bools  # whether it holds the true class, (rows,)


def tabulate(
    source: Source, plan: CalibrationPlan, ks: Sequence[float], *, weights: Floats | None = None
) -> Tabulated:
    """Calibrate and measure every rule: the balanced ones only if there are weights.

    ``ks`` are ascending and include the default K, ``weights`` have the shape ``(classes,)``. For
    groups of photos ``top_k`` is left out, since it uses marginals.
    """
    plain = _tabulate(source, plan, ks, None)
    balanced = [] if weights is None else _tabulate(source, plan, ks, weights).tables
    return plain._replace(tables=[*plain.tables, *balanced])


def _tabulate(
    source: Source, plan: CalibrationPlan, ks: Sequence[float], weights: Floats | None
) -> Tabulated:
    """The balanced rules if there are weights, else the others."""
    balanced = weights is not None
    evidence = _evidence(source, plan, min(ks[-1], source.classes), class_weights=weights)
    groups = list[_RuleGroup]()  # average_k or its balanced form, which is watched, comes first
    for name, spec in RULES.items():
        if spec.choose is not None and spec.balanced == balanced:
            values = ks if spec.asks == "k" else plan.coverages
            possible = [min(value, source.classes) for value in values]  # a list may have few
            rules = [spec.choose(evidence, value, rule=name) for value in possible]
            groups.append(_RuleGroup(rules, values))
    del evidence  # frees memory before the measurement
    if source.images == 1 and not balanced:
        groups.append(_top_k_rules(source, ks))
    return _measure_groups(source, plan, groups, watched=[ks.index(plan.default_k)])


def sets_by_k(source: Source, plan: CalibrationPlan) -> tuple[Ints, Bools]:
    """Sizes of the ``average_k`` sets and their hits, both ``(rows, ks)``, for each compared K."""
    evidence = _evidence(source, plan, plan.compared[-1])
    rules = [evidence.average_k(k) for k in plan.compared]
    return measure(source, rules, watched=range(len(rules))).row_by_row()


def promised_tables(source: Source, plan: CalibrationPlan, weights: Floats) -> list[Table]:
    """Tables of ``average_k`` with both guarantees, ``coverage`` with probability and, for single
    photos, ``class_coverage``.

    Their thresholds are chosen on one photo of each plant, since these guarantees need independent
    photos, and measured on all photos. Memory grows by two bytes for each of the ``max_size`` best
    scores of a row.
    """
    mask = None if source.plants is None else one_of_each(source.plants)
    ks, levels = plan.compared, sorted(plan.coverages)
    evidence = _evidence(source, plan, ks[-1], max_size=plan.largest_set, mask=mask)
    groups = list[_RuleGroup]()
    for guarantee in ("mean", "probability"):
        rules = [evidence.guaranteed_average_k(k, guarantee, delta=plan.delta) for k in ks]
        rules = [replace(rule, lambda_val=min(rule.lambda_val or 0.0, NO_SCORE)) for rule in rules]
        groups.append(_RuleGroup(rules, ks, guarantee))
    if levels:
        rules = [evidence.coverage(level, delta=plan.delta) for level in levels]
        groups.append(_RuleGroup(rules, levels, "probability"))
        if source.images == 1:
            weight = plan.macro_weight
            evidence = _evidence(source, plan, plan.min_size, class_weights=weights, mask=mask)
            rules = [evidence.class_coverage(level, macro_weight=weight) for level in levels]
            groups.append(_RuleGroup(rules, levels))
    del evidence  # frees memory before the measurement
    return _measure_groups(source, plan, groups).tables


def top_k_tables(sources: Mapping[int, Source], plan: CalibrationPlan) -> list[Table]:
    """The table of ``top_k``, if there is any K, where each K has its own source of scores."""
    rows = []
    for k, source in sources.items():
        group = _top_k_rules(source, [k])
        rows.append(row_of(measure(source, group.rules), 0, k, source.score_kind))
    return [_table_of(source, plan, group, rows)] if rows else []


def _top_k_rules(source: Source, ks: Sequence[float]) -> _RuleGroup:
    """Rules for sets of exactly K classes, or all classes, for the whole numbers among ``ks``."""
    whole = [int(k) for k in ks if k >= 1 and k == int(k)]
    rule = SetRule(rule="top_k", lambda_val=None, min_size=1, rows=source.rows)
    return _RuleGroup([replace(rule, top_k=min(k, source.classes)) for k in whole], whole)


def measure(
    source: Source,
    rules: Sequence[SetRule],
    *,
    watched: Sequence[int] = (),
    advance: Callable[[int], object] = lambda rows: None,
) -> Measurement:
    """Measure the sets of some rules in one pass; ``watched`` as in :class:`Measurement`."""
    measurement = Measurement(rules, source.classes, watched=watched, plants=source.plants)
    for scores, labels in source.blocks():
        measurement.update(scores, labels)
        advance(len(scores))
    return measurement


def _table_of(
    source: Source, plan: CalibrationPlan, group: _RuleGroup, rows: Sequence[Row]
) -> Table:
    """A table of the record from the measured rows of a group of rules."""
    rule = group.rules[0]
    arrays = [each.class_thresholds for each in group.rules if each.class_thresholds is not None]
    by_class = ByClass(thresholds=tuple(tuple(each.tolist()) for each in arrays))
    return Table(
        rule=rule.rule,
        head=source.head,
        score_kind=source.score_kind,
        temperature=source.temperature,
        place=source.place,
        list_name=source.list_name,
        images=source.images,
        fusion=source.fusion,
        rows=source.rows,
        made_from=source.made_from,
        min_size=plan.min_size,
        guarantee=group.guarantee or RULES[rule.rule].guarantee,
        delta=plan.delta if group.guarantee == "probability" else None,
        max_size=rule.max_size,
        by_class=by_class if arrays else None,
        columns=Columns.of(sorted(rows, key=lambda row: row.value)),
    )


def row_of(measurement: Measurement, index: int, value: float, score_kind: ScoreKind) -> Row:
    """The measured row of one rule; ``value`` is its K or coverage."""
    rule, rows = measurement.rules[index], measurement.rows
    size, deviation = measurement.mean_size(index), measurement.size_deviation(index)
    fewest, most = size_bounds(rule, measurement.class_rows.size, score_kind)
    size_rows, hit_rows = measurement.effective_rows(index)
    size_low, size_high = mean_interval(size, deviation, size_rows, lowest=fewest, highest=most)
    hits, labelled = int(measurement.hits[index]), measurement.labelled
    hit_low, hit_high = wilson(hits, rows, effective=hit_rows) if labelled else (None, None)
    return Row(
        value=float(value),
        lambda_val=rule.lambda_val,
        size=size,
        size_low=size_low,
        size_high=size_high,
        size_deviation=deviation,
        hit_rate=hits / rows if labelled else None,
        hit_low=hit_low,
        hit_high=hit_high,
        macro_hit_rate=measurement.macro_hit_rate(index),
        empty_rate=int(measurement.empty[index]) / rows,
        ties=rule.ties,
        size_histogram=tuple(np.trim_zeros(measurement.histogram[index], "b").tolist()),
    )


def _measure_groups(
    source: Source,
    plan: CalibrationPlan,
    groups: Sequence[_RuleGroup],
    *,
    watched: Sequence[int] = (),
) -> Tabulated:
    """Measure all rules in one pass; groups without rules get no table."""
    rules = [rule for group in groups for rule in group.rules]
    measurement = measure(source, rules, watched=watched)
    index, tables = count(), list[Table]()
    for group in groups:
        rows = [row_of(measurement, next(index), k, source.score_kind) for k in group.values]
        tables += [_table_of(source, plan, group, rows)] if rows else []
    sizes, hits = measurement.row_by_row()
    return Tabulated(source, tables, sizes.reshape(-1), hits.reshape(-1))


def _evidence(
    source: Source,
    plan: CalibrationPlan,
    largest_k: float,
    *,
    class_weights: Floats | None = None,
    max_size: int | None = None,
    mask: Bools | None = None,
) -> Evidence:
    """Evidence of the rows under ``mask``, by default all."""
    used = np.ones(source.rows, dtype=np.bool_) if mask is None else mask
    largest_plant = 1
    if mask is None and source.plants is not None:
        largest_plant = int(np.unique(source.plants, return_counts=True)[1].max())
    evidence = Evidence(
        rows=int(used.sum()),
        classes=source.classes,
        max_average_k=largest_k,
        min_size=plan.min_size,
        class_weights=class_weights,
        max_size=max_size,
        largest_plant=largest_plant,
    )
    first = 0
    for values, labels in source.blocks():
        rows = used[first : first + len(values)]
        first += len(values)
        if rows.any():
            evidence.update(values[rows], None if labels is None else labels[rows])
    return evidence
