"""Thresholds that promise something about new photos, for scores that are read block by block."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice

import numpy as np
from numpy.typing import NDArray

from calibration.guarantees import Guarantee
from calibration.measurement import Measurement, together
from calibration.offline.settings import Settings
from calibration.offline.tabulate import Source, rows_of
from calibration.record.tables import ByClass, Row, Table
from calibration.rules.class_conditional import class_coverage_of
from calibration.rules.evidence import Evidence
from calibration.sets import SetRule
from calibration.threshold import next_above

NO_SCORE = next_above(1.0)
"""No softmax or sigmoid score reaches it: only the best class of each photo is left."""


@dataclass(frozen=True, kw_only=True)
class Promise:
    """One table to be: its rules, and the K or coverage each was made for."""

    rules: Sequence[SetRule]
    values: Sequence[float]
    guarantee: Guarantee
    by_class: ByClass | None = None


def promised_tables(
    source: Source, settings: Settings, *, class_groups: Sequence[str] | None = None
) -> list[Table]:
    """Tables of ``average_k`` with both guarantees, ``coverage`` with probability, and of single
    photos ``class_coverage``; at the K and coverages asked for.

    The scores are read twice. Memory is that of ``rules.evidence.Evidence`` for the
    largest K, and two bytes for each of the ``max_size`` best scores of a row.

    Args:
        source: The scores.
        settings: What is asked for.
        class_groups: Group of each class, such as its genus, shape ``(classes,)``; for small
            classes under the policy ``group``.
    """
    return _measured(source, settings, _promises(source, settings, class_groups))


def _promises(
    source: Source, settings: Settings, class_groups: Sequence[str] | None
) -> list[Promise]:
    """The rules with what they promise; the evidence is forgotten."""
    evidence, labels = _evidence(source, settings)
    ks, levels = settings.compared, sorted(settings.coverages)
    promises = [
        _sizes(evidence, settings, ks, "mean"),
        _sizes(evidence, settings, ks, "probability"),
    ]
    if levels:
        sure = [evidence.coverage(level, delta=settings.delta) for level in levels]
        promises.append(Promise(rules=sure, values=levels, guarantee="probability"))
        if source.images == 1:
            promises.append(_by_class(evidence, labels, settings, levels, class_groups))
    return promises


def _evidence(source: Source, settings: Settings) -> tuple[Evidence, NDArray[np.int64]]:
    evidence = Evidence(
        rows=source.rows,
        classes=settings.classes,
        max_average_k=settings.compared[-1],
        min_size=settings.min_size,
        max_size=settings.largest_set,
    )
    seen = []
    for values, labels in source.blocks():
        evidence.update(values, labels)
        seen.append(labels)
    return evidence, np.concatenate(seen)


def _sizes(
    evidence: Evidence, settings: Settings, ks: Sequence[float], guarantee: Guarantee
) -> Promise:
    rules = [evidence.guaranteed_average_k(k, guarantee, delta=settings.delta) for k in ks]
    reachable = [replace(rule, lambda_val=min(rule.lambda_val or 0.0, NO_SCORE)) for rule in rules]
    return Promise(rules=reachable, values=ks, guarantee=guarantee)


def _by_class(
    evidence: Evidence,
    labels: NDArray[np.int64],
    settings: Settings,
    levels: Sequence[float],
    class_groups: Sequence[str] | None,
) -> Promise:
    policy = settings.small_classes
    rules = [
        class_coverage_of(evidence, labels, level, small_classes=policy, groups=class_groups)
        for level in levels
    ]
    thresholds = [rule.class_thresholds for rule in rules if rule.class_thresholds is not None]
    by_class = ByClass(
        small_classes=policy,
        small=tuple(rule.small_classes for rule in rules),
        thresholds=tuple(tuple(found.tolist()) for found in thresholds),
    )
    return Promise(rules=rules, values=levels, guarantee="mean", by_class=by_class)


def _measured(source: Source, settings: Settings, promises: Sequence[Promise]) -> list[Table]:
    measured = [together(promise.rules, settings.classes) for promise in promises]
    for values, labels in source.blocks():
        for measurement in chain.from_iterable(measured):
            measurement.update(values, labels)
    return [
        source.table(
            promise.rules[0].rule, settings, _rows(promise, found), guarantee=promise.guarantee,
            max_size=promise.rules[0].max_size, by_class=promise.by_class,
        )
        for promise, found in zip(promises, measured, strict=True)
    ]  # fmt: skip


def _rows(promise: Promise, measured: Sequence[Measurement]) -> list[Row]:
    """In the order of the rules, which are all of one kind, or each of its own."""
    values = iter(promise.values)
    return [row for one in measured for row in rows_of(one, list(islice(values, len(one.rules))))]
