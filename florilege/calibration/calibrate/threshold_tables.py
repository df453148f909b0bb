"""Choose and measure the thresholds of every rule, on scores read block by block."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import NamedTuple, get_args, overload

import numpy as np

from florilege.calibration.calibrate.calibration_settings import CalibrationPlan
from florilege.calibration.calibrate.score_sources import Source
from florilege.calibration.guarantees import Guarantee
from florilege.calibration.intervals import Z95, mean_interval, score_interval, wilson
from florilege.calibration.measurement import Measurement
from florilege.calibration.record.schema import ByClass, Columns, Row, Table
from florilege.calibration.rules import RULES
from florilege.calibration.rules.score_summary import ScoreSummary
from florilege.calibration.scores import ScoreKind
from florilege.calibration.sets import SetRule, size_bounds
from florilege.calibration.threshold import next_above
from florilege.calibration.validation import Bools, Floats, Ints
from florilege.errors import DataError

_CONTRADICTION = 4.0  # standard errors: hundreds of thresholds are compared
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

    ``ks`` are ascending and include the default K, ``weights`` have the shape ``(classes,)``.
    """
    plain = _tabulate(source, plan, ks, None)
    balanced = [] if weights is None else _tabulate(source, plan, ks, weights).tables
    return plain._replace(tables=[*plain.tables, *balanced])


def _tabulate(
    source: Source, plan: CalibrationPlan, ks: Sequence[float], weights: Floats | None
) -> Tabulated:
    """The balanced rules if there are weights, else the others."""
    balanced = weights is not None
    summary = _summary(source, plan, min(ks[-1], source.classes), class_weights=weights)
    independent = _of_independent(source, plan, summary)
    groups = list[_RuleGroup]()  # average_k or its balanced form, which is watched, comes first
    for name, spec in RULES.items():
        if spec.choose is not None and spec.balanced == balanced:
            sized = spec.asks == "k"
            values, rows = (ks, summary) if sized else (plan.coverages, independent)
            possible = [min(value, source.classes) for value in values]  # a list may have few
            rules = [spec.choose(rows, value, rule=name) for value in possible]
            groups.append(_RuleGroup(rules, values))
    del summary, independent  # frees memory before the measurement
    if not balanced:
        groups.append(_top_k_rules(source, ks))
    return _measure_groups(source, plan, groups, watched=[ks.index(plan.default_k)])


def _of_independent(source: Source, plan: CalibrationPlan, summary: ScoreSummary) -> ScoreSummary:
    """The summary of one row of each plant, on which every promise rests."""
    mask = source.one_of_each
    if mask is None:
        return summary
    weights = summary.class_weights
    return _summary(source, plan, plan.min_size, class_weights=weights, mask=mask)


def sets_by_k(source: Source, plan: CalibrationPlan) -> tuple[Ints, Bools]:
    """Sizes of the ``average_k`` sets and their hits, both ``(rows, ks)``, for each compared K."""
    summary = _summary(source, plan, plan.compared[-1])
    rules = [summary.average_k(k) for k in plan.compared]
    return measure(source, rules, watched=range(len(rules))).row_by_row()


def promised_tables(source: Source, plan: CalibrationPlan, weights: Floats | None) -> list[Table]:
    """Tables of ``average_k`` with both guarantees and ``coverage`` with probability; with
    ``weights`` also ``class_coverage``.

    Their thresholds are chosen on one photo of each plant, since these guarantees need independent
    photos, and measured on all photos. Memory grows by two bytes for each of the ``max_size`` best
    scores of a row.
    """
    groups = [*_promised_sizes(source, plan), *_promised_coverages(source, plan, weights)]
    return _measure_groups(source, plan, groups).tables


def _promised_sizes(source: Source, plan: CalibrationPlan) -> Iterator[_RuleGroup]:
    ks = [k for k in plan.compared if k <= source.classes]  # a list may have few
    if not ks:
        return
    most = min(plan.largest_set, source.classes)
    summary = _summary(source, plan, ks[-1], max_size=most, mask=source.one_of_each)
    for guarantee in get_args(Guarantee):
        rules = [summary.guaranteed_average_k(k, guarantee, delta=plan.delta) for k in ks]
        rules = [replace(rule, lambda_val=min(rule.lambda_val or 0.0, NO_SCORE)) for rule in rules]
        yield _RuleGroup(rules, ks, guarantee)


def _promised_coverages(
    source: Source, plan: CalibrationPlan, weights: Floats | None
) -> Iterator[_RuleGroup]:
    levels, mask = sorted(plan.coverages), source.one_of_each
    if not levels:
        return
    summary = _summary(source, plan, plan.min_size, mask=mask)
    rules = [summary.coverage(level, delta=plan.delta) for level in levels]
    yield _RuleGroup(rules, levels, "probability")
    if weights is not None:
        summary = _summary(source, plan, plan.min_size, class_weights=weights, mask=mask)
        rules = [summary.class_coverage(level, macro_weight=plan.macro_weight) for level in levels]
        yield _RuleGroup(rules, levels)


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
    measurement = Measurement(
        rules, source.classes, watched=watched, plants=source.plants, noise=source.noise
    )
    for scores, labels in source.blocks():
        measurement.update(scores, labels)
        advance(len(scores))
    return measurement


def _table_of(
    source: Source, plan: CalibrationPlan, group: _RuleGroup, rows: Sequence[Row]
) -> Table:
    """A table of the record from the measured rows of a group of rules."""
    rule = group.rules[0]
    arrays = [rule.class_thresholds for rule in group.rules if rule.class_thresholds is not None]
    by_class = ByClass(thresholds=tuple(tuple(array.tolist()) for array in arrays))
    return Table(
        rule=rule.rule,
        guarantee=group.guarantee or RULES[rule.rule].guarantee,
        view=source.view,
        scoring=source.scoring,
        rows=source.rows,
        independent=source.independent,
        made_from=source.made_from,
        candidates=source.candidates,
        label_noise=None if source.noise is None else source.noise.noise,
        min_size=plan.min_size,
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
    hits = _hits(measurement, index, hit_rows) if measurement.labelled else _UNKNOWN
    return Row(
        value=float(value),
        lambda_val=rule.lambda_val,
        size=size,
        size_low=_short(size_low),
        size_high=_short(size_high),
        size_deviation=deviation,
        hit_rate=hits.rate,
        hit_low=_short(hits.low),
        hit_high=_short(hits.high),
        hit_rows=hits.rows,
        chance=hits.chance,
        macro_hit_rate=measurement.macro_hit_rate(index),
        empty_rate=int(measurement.empty[index]) / rows,
        ties=rule.ties,
        size_histogram=tuple(np.trim_zeros(measurement.histogram[index], "b").tolist()),
        hit_histogram=hits.histogram,
    )


class _Hits(NamedTuple):
    """The figures of a row that need labels."""

    rate: float | None
    low: float | None
    high: float | None
    rows: float | None
    chance: float | None
    histogram: tuple[int, ...]


_UNKNOWN = _Hits(None, None, None, None, None, ())


def _hits(measurement: Measurement, index: int, effective: float) -> _Hits:
    """Hits of one rule, corrected for wrong labels if there are any."""
    hits, rows, noisy = int(measurement.hits[index]), measurement.rows, measurement.noise
    rate, (low, high) = hits / rows, wilson(hits, rows, effective=effective)
    histogram, chance = measurement.hit_histogram[index], None
    if noisy is not None:
        by_size, noise = measurement.chance[index], noisy.noise
        chance = float(by_size.sum()) / rows
        rate = noise.corrected(rate, chance)
        low, high = noise.interval(low, high, chance)
        low, high = min(low, rate), max(high, rate)
        if low < rate:  # Wilson's formula, solved for the rows
            effective = min(effective, Z95**2 * low * (1 - low) / (rate - low) ** 2)
        clean = np.rint((histogram - noise.rate * by_size) / (1 - noise.rate))
        histogram = np.clip(clean, 0, measurement.histogram[index]).astype(np.int64)
    bins = tuple(np.trim_zeros(histogram, "b").tolist())
    return _Hits(rate, low, high, round(float(effective), 1), chance, bins)


@overload
def _short(end: float) -> float: ...
@overload
def _short(end: float | None) -> float | None: ...
def _short(end: float | None) -> float | None:
    """The end of an interval with six decimals: the record holds thousands of them."""
    return None if end is None else round(end, 6)


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
    if source.view.single:
        _refuse_contradiction(measurement)
    index, tables = count(), list[Table]()
    for group in groups:
        kind = source.scoring.score_kind
        rows = [row_of(measurement, next(index), value, kind) for value in group.values]
        tables += [_table_of(source, plan, group, rows)] if rows else []
    sizes, hits = measurement.row_by_row()
    return Tabulated(source, tables, sizes.reshape(-1), hits.reshape(-1))


def _refuse_contradiction(measurement: Measurement) -> None:
    """Raise DataError where hits show that fewer labels are wrong than was assumed."""
    noisy, rows = measurement.noise, measurement.rows
    if noisy is None or not measurement.labelled:
        return
    chances = np.minimum(measurement.chance.sum(axis=1) / rows, 1.0)
    for index, (hits, chance) in enumerate(zip(measurement.hits, chances, strict=True)):
        effective = measurement.effective_rows(index)[1]
        share, _ = score_interval(float(hits) / rows, effective, z=_CONTRADICTION)
        most = 1 - noisy.noise.low * (1 - float(chance))  # where every set has the true class
        if share > most:
            size = measurement.mean_size(index)
            raise DataError(
                f"a label noise of {noisy.noise.low:g} contradicts these photos: "
                f"{float(hits) / rows:.1%} of sets with {size:.1f} classes on average hold the "
                f"label, and at this rate at most {most:.1%} could; give a smaller rate, such as "
                f"{(1 - share) / (1 - float(chance)):.2g}"
            )


def _summary(
    source: Source,
    plan: CalibrationPlan,
    largest_k: float,
    *,
    class_weights: Floats | None = None,
    max_size: int | None = None,
    mask: Bools | None = None,
) -> ScoreSummary:
    """ScoreSummary of the rows under ``mask``, by default all."""
    used = np.ones(source.rows, dtype=np.bool_) if mask is None else mask
    summary = ScoreSummary(
        rows=int(used.sum()),
        classes=source.classes,
        max_average_k=largest_k,
        min_size=plan.min_size,
        class_weights=class_weights,
        max_size=max_size,
        candidates=source.candidates,
        noise=source.noise,
    )
    first = 0
    for values, labels in source.blocks():
        rows = used[first : first + len(values)]
        first += len(values)
        if rows.any():
            summary.update(values[rows], None if labels is None else labels[rows])
    return summary
