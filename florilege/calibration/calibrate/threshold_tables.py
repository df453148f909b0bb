"""Choose and measure the thresholds of every rule, on scores read block by block."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import count
from math import floor
from typing import Literal, NamedTuple, get_args

import numpy as np

from florilege.calibration.calibrate.score_sources import Source
from florilege.calibration.intervals import score_interval
from florilege.calibration.record import ByClass, Measurement, Table, Thresholds
from florilege.calibration.rules import RULES, ScoreSummary, class_weights
from florilege.calibration.sets import Bools, Floats, Guarantee, Ints, SetRule
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.threshold import next_above
from florilege.errors import DataError

# In standard errors: hundreds of thresholds are compared.
_CONTRADICTION = 4.0
NO_SCORE = next_above(1.0)  # no softmax or sigmoid score reaches it: sets hold only the best class


_Extent = Literal["sizes", "unweighted", "full"]


class _RuleGroup(NamedTuple):
    rules: Sequence[SetRule]
    values: Sequence[float]  # the K or coverage of each
    guarantee: Guarantee | None = None  # None for the usual one of the rule


class Tabulated(NamedTuple):
    """The thresholds of a view, and the sets of ``average_k`` at each of ``plan.compared``."""

    table: Table
    sizes: Ints  # size of each set, (rows, ks)
    hits: Bools  # whether it holds the true class, (rows, ks)


def tabulate(source: Source, plan: CalibrationPlan, extent: _Extent = "full") -> Tabulated:
    """Choose the thresholds of the rules for a view, then measure all of them in one pass.

    Candidates are compared by their ``sizes``, or get the table of all rules without weights. A
    full table has the weighted rules and every promise too; for the plain view also the whole grid
    of K, and ``class_coverage``.
    """
    ks = plan.grid if extent == "full" and source.view.single else plan.compared
    groups = _choose_rules(source, plan, ks, extent)
    watched = [ks.index(k) for k in plan.compared]  # of average_k, which comes first
    rules = [rule for group in groups for rule in group.rules]
    measurement = measure(source, rules, watched=watched)
    # For this table alone: the rate that the message names allows for all sizes.
    if source.view.single and extent == "full":
        _refuse_contradiction(measurement)
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
        rules=tuple(_thresholds_of(groups, measurement)),
    )
    return Tabulated(table, *measurement.row_by_row())


def _choose_rules(
    source: Source, plan: CalibrationPlan, ks: Sequence[float], extent: _Extent
) -> list[_RuleGroup]:
    """The rules of a table, those that a request must ask for last."""
    groups = list(_unweighted(source, plan, ks, extent))
    if extent == "full":
        groups += _weighted(source, plan, ks)
    groups = [group for group in groups if group.rules]
    # A stable sort: `average_k`, whose sets are watched by their place, stays first.
    return sorted(
        groups, key=lambda group: bool(group.guarantee) or RULES[group.rules[0].rule].by_class
    )


def _unweighted(
    source: Source, plan: CalibrationPlan, ks: Sequence[float], extent: _Extent
) -> Iterator[_RuleGroup]:
    """The rules that treat all classes alike; ``average_k``, whose sets are watched, comes first.

    Sizes that are only measured are chosen on all rows, whatever is promised on one row of each
    observation: promises need independent rows.
    """
    summary = _summary(source, plan, min(ks[-1], source.classes))
    yield from _groups_of(summary, "k", ks)
    if extent == "sizes":
        return
    if extent == "full":
        del summary  # frees memory before the next pass
        summary = _of_promises(source, plan)
        yield from _promises(summary, plan)
    else:
        summary = _of_independent(source, plan, summary)
    yield from _groups_of(summary, "coverage", plan.coverages)
    yield _top_k_rules(source, ks)


def _weighted(source: Source, plan: CalibrationPlan, ks: Sequence[float]) -> Iterator[_RuleGroup]:
    """The rules in favour of rare classes."""
    weights = class_weights(source.counts, plan.macro_weight)
    summary = _summary(source, plan, min(ks[-1], source.classes), weights=weights)
    yield from _groups_of(summary, "k", ks)
    summary = _of_independent(source, plan, summary)
    yield from _groups_of(summary, "coverage", plan.coverages)
    if source.view.single:
        by_class = partial(summary.class_coverage, macro_weight=plan.macro_weight)
        yield _RuleGroup([by_class(level) for level in plan.coverages], plan.coverages)


def _of_promises(source: Source, plan: CalibrationPlan) -> ScoreSummary:
    """The summary of one row of each observation, for guaranteed sizes too.

    Memory grows by two bytes for each of the ``max_size`` best scores of a row.
    """
    ks, most = _guaranteed(plan, source.classes), min(plan.largest_set, source.classes)
    largest_k, max_size = (ks[-1], most) if ks else (plan.min_size, None)
    return _summary(source, plan, largest_k, max_size=max_size, mask=source.one_of_each)


def _guaranteed(plan: CalibrationPlan, classes: int) -> list[float]:
    """The mean sizes to guarantee: a list may have fewer classes than asked for."""
    return [k for k in plan.compared if k <= classes]


def _of_independent(source: Source, plan: CalibrationPlan, summary: ScoreSummary) -> ScoreSummary:
    """The summary of one row of each observation, on which every promise rests."""
    mask, weights = source.one_of_each, summary.class_weights
    if mask is None:
        return summary
    return _summary(source, plan, plan.min_size, weights=weights, mask=mask)


def _groups_of(summary: ScoreSummary, asks: str, values: Sequence[float]) -> list[_RuleGroup]:
    """The rules whose threshold follows from a summary."""
    balanced = summary.class_weights is not None
    possible = [min(value, summary.classes) for value in values]  # a list may have few
    return [
        _RuleGroup([spec.choose(summary, value, rule=name) for value in possible], values)
        for name, spec in RULES.items()
        if spec.choose and spec.balanced == balanced and spec.asks == asks
    ]


def _promises(summary: ScoreSummary, plan: CalibrationPlan) -> Iterator[_RuleGroup]:
    """``average_k`` with both guarantees, and ``coverage`` with probability."""
    ks = _guaranteed(plan, summary.classes)
    for guarantee in get_args(Guarantee):
        rules = [summary.guaranteed_average_k(k, guarantee, delta=plan.delta) for k in ks]
        rules = [replace(rule, lambda_val=min(rule.lambda_val or 0.0, NO_SCORE)) for rule in rules]
        yield _RuleGroup(rules, ks, guarantee)
    rules = [summary.coverage(level, delta=plan.delta) for level in plan.coverages]
    yield _RuleGroup(rules, plan.coverages, "probability")


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


def _thresholds_of(groups: Sequence[_RuleGroup], measurement: Measurement) -> Iterator[Thresholds]:
    """The thresholds of each group of rules, with what was counted of the sets of each."""
    index = count()
    for group in groups:
        counts = [measurement.counts(next(index), value) for value in group.values]
        ascending = sorted(zip(counts, group.rules, strict=True), key=lambda pair: pair[0].value)
        arrays = (rule.class_thresholds for _, rule in ascending)
        name = group.rules[0].rule
        yield Thresholds(
            rule=name,
            guarantee=group.guarantee or RULES[name].guarantee,
            by_class=tuple(ByClass.of(array) for array in arrays if array is not None),
            counts=tuple(of_rule for of_rule, _ in ascending),
        )


def _refuse_contradiction(measurement: Measurement) -> None:
    """Raise DataError where hits show that fewer labels are wrong than was assumed."""
    noisy, rows = measurement.noise, measurement.rows
    if noisy is None or not measurement.labelled:
        return
    chances = np.minimum(measurement.chance.sum(axis=1) / rows, 1.0)
    # The largest rate that the hits of each rule allow: beyond it not even every set could hold the
    # true class.
    limits = dict[float, tuple[int, float]]()
    for index, (hits, chance) in enumerate(zip(measurement.hits, chances.tolist(), strict=True)):
        effective = measurement.effective_rows(index)[1]
        share, _ = score_interval(float(hits) / rows, effective, z=_CONTRADICTION)
        if chance < 1:
            limits[(1 - share) / (1 - chance)] = index, chance
    limit = min(limits, default=1.0)
    if noisy.noise.low > limit:
        index, chance = limits[limit]
        raise DataError(
            f"a label noise of {noisy.noise.low:g} contradicts these photos: "
            f"{measurement.hits[index] / rows:.1%} of sets with {measurement.mean_size(index):.1f} "
            "classes on average hold the label, and at this rate at most "
            f"{1 - noisy.noise.low * (1 - chance):.1%} could; give a rate of at most "
            f"{floor(1000 * limit) / 1000:g}"
        )


def _summary(
    source: Source,
    plan: CalibrationPlan,
    largest_k: float,
    *,
    weights: Floats | None = None,
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
        class_weights=weights,
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
