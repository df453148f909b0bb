"""Choose and measure the thresholds of every rule, on scores read block by block."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import count
from typing import Any, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from florilege.calibration.calibrate.score_sources import Source
from florilege.calibration.guarantees import Guarantee
from florilege.calibration.intervals import score_interval
from florilege.calibration.record import (
    ByClass,
    Counts,
    Measurement,
    Row,
    Table,
    Thresholds,
    row_of,
)
from florilege.calibration.rules import RULES, ScoreSummary
from florilege.calibration.scores import ScoreKind
from florilege.calibration.sets import Bools, Floats, Ints, SetRule, size_bounds
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.threshold import next_above
from florilege.errors import DataError

_CONTRADICTION = 4.0  # standard errors: hundreds of thresholds are compared
NO_SCORE = next_above(1.0)  # no softmax or sigmoid score reaches it: sets hold only the best class


class _RuleGroup(NamedTuple):
    rules: Sequence[SetRule]
    values: Sequence[float]  # the K or coverage of each
    guarantee: Guarantee | None = None  # None for the usual one of the rule


_Measured = tuple[list[Thresholds], Ints, Bools]
"""Thresholds; sizes and hits of the sets of the rules that are watched, both ``(rows,)``."""


class Tabulated(NamedTuple):
    """The thresholds of a view, and the sets of ``average_k`` at the default K."""

    table: Table
    sizes: Ints  # size of each set, (rows,)
    hits: Bools  # whether it holds the true class, (rows,)


def tabulate(
    source: Source, plan: CalibrationPlan, ks: Sequence[float], *, weights: Floats | None = None
) -> Tabulated:
    """Calibrate and measure the rules of a view.

    ``ks`` are ascending and include the default K. With ``weights``, ``(classes,)``, the table has
    the rules for rare classes and every promise too; ``class_coverage`` is for the plain view.
    """
    rules, sizes, hits = _tabulate(source, plan, ks, None)
    if weights is not None:
        rules += _tabulate(source, plan, ks, weights)[0]
        rules += _promised_rules(source, plan, weights if source.view.single else None)
    table = Table(
        view=source.view,
        scoring=source.scoring,
        rows=source.rows,
        independent=source.independent,
        made_from=source.made_from,
        candidates=source.candidates,
        label_noise=None if source.noise is None else source.noise.noise,
        min_size=plan.min_size,
        delta=plan.delta,
        max_size=min(plan.largest_set, source.classes),
        rules=tuple(rules),
    )
    return Tabulated(table, sizes, hits)


def _tabulate(
    source: Source, plan: CalibrationPlan, ks: Sequence[float], weights: Floats | None
) -> _Measured:
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
    return _measure_groups(source, groups, watched=[ks.index(plan.default_k)])


def _of_independent(source: Source, plan: CalibrationPlan, summary: ScoreSummary) -> ScoreSummary:
    """The summary of one row of each observation, on which every promise rests."""
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


def _promised_rules(
    source: Source, plan: CalibrationPlan, weights: Floats | None
) -> list[Thresholds]:
    """``average_k`` with both guarantees and ``coverage`` with probability; with ``weights`` also
    ``class_coverage``.

    Their thresholds are chosen on one photo of each observation, since these guarantees need
    independent photos, and measured on all photos. Memory grows by two bytes for each of the
    ``max_size`` best scores of a row.
    """
    groups = [*_promised_sizes(source, plan), *_promised_coverages(source, plan, weights)]
    return _measure_groups(source, groups)[0]


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
        rules, source.classes, watched=watched, observations=source.observations, noise=source.noise
    )
    for scores, labels in source.blocks():
        measurement.update(scores, labels)
        advance(len(scores))
    return measurement


def _thresholds_of(group: _RuleGroup, counts: Iterable[Counts]) -> Thresholds:
    """The thresholds of a group of rules, from what was counted of the sets of each."""
    ascending = sorted(zip(counts, group.rules, strict=True), key=lambda pair: pair[0].value)
    arrays = (rule.class_thresholds for _, rule in ascending)
    name = group.rules[0].rule
    return Thresholds(
        rule=name,
        guarantee=group.guarantee or RULES[name].guarantee,
        by_class=tuple(ByClass.of(array) for array in arrays if array is not None),
        counts=tuple(of_rule for of_rule, _ in ascending),
    )


def _counts_of(measurement: Measurement, index: int, value: float) -> Counts:
    """What was counted of the sets of one rule; ``value`` is its K or coverage."""
    rule, sizes = measurement.rules[index], measurement.histogram[index]
    size_rows, hit_rows = measurement.effective_rows(index)
    misses = sizes - measurement.hit_histogram[index]
    return Counts(
        value=float(value),
        lambda_val=rule.lambda_val,
        size_sum=int(measurement.size_sum[index]),
        size_squares=int(measurement.size_squares[index]),
        size_rows=_shorter(size_rows),
        hit_rows=_shorter(hit_rows) if measurement.labelled else None,
        ties=rule.ties,
        sizes=_trimmed(sizes),
        misses=_trimmed(misses) if measurement.labelled else (),
        chance=_trimmed(measurement.chance[index].round(4)),
    )


def _shorter(rows: float) -> int | float:
    """A number of rows to half a percent."""
    return round(rows) if rows >= 100 else round(float(rows), 1)


def _trimmed(histogram: NDArray[Any]) -> tuple[Any, ...]:
    return tuple(np.trim_zeros(histogram, "b").tolist())


def measured_row(measurement: Measurement, index: int, value: float, score_kind: ScoreKind) -> Row:
    """The figures of one rule; ``value`` is its K or coverage."""
    rule, noise = measurement.rules[index], measurement.noise
    bounds = size_bounds(rule, measurement.class_rows.size, score_kind)
    counts = _counts_of(measurement, index, value)
    return row_of(counts, measurement.rows, None if noise is None else noise.noise, bounds)


def _measure_groups(
    source: Source,
    groups: Sequence[_RuleGroup],
    *,
    watched: Sequence[int] = (),
) -> _Measured:
    """Measure all rules in one pass; groups without rules get no thresholds."""
    rules = [rule for group in groups for rule in group.rules]
    measurement = measure(source, rules, watched=watched)
    if source.view.single:
        _refuse_contradiction(measurement)
    index = count()
    thresholds = [
        _thresholds_of(group, [_counts_of(measurement, next(index), v) for v in group.values])
        for group in groups
        if group.values
    ]
    sizes, hits = measurement.row_by_row()
    return thresholds, sizes.reshape(-1), hits.reshape(-1)


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
