"""Guaranteed sizes, sure coverage and class coverage in the record: the rules of the library."""

import json
import math
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import florilege.calibration.sets
from florilege.calibration.calibrate.score_sources import Source
from florilege.calibration.calibrate.threshold_tables import (
    NO_SCORE,
    tabulate,
)
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.measurement import Measurement
from florilege.calibration.record.operating_point import NotCalibrated, OperatingPoint
from florilege.calibration.record.schema import Thresholds
from florilege.calibration.rules import RULES, calibrate
from florilege.calibration.scores import scores
from florilege.calibration.sets import Bools, Floats, Guarantee, Ints
from florilege.calibration.settings import CalibrationPlan
from florilege.calibration.threshold import THRESHOLDS, BestOfRows, _means_are_below
from florilege.calibration.view import PLAIN, Scoring, Setting, View
from florilege.errors import BundleError
from tests.calibration.estimates import hits_of
from tests.calibration.record.test_record import ROWS, fitted, sample_logits
from tests.calibration.simulation import CLASSES

GUARANTEES: tuple[Guarantee, ...] = ("mean", "probability")
KS, LEVELS = (2.0, 1.0, 6.5), (0.95, 0.8)


def fitted_sample(**settings: Any) -> CalibrationRecord:
    logits, labels = sample_logits()
    options: dict[str, Any] = {"ks": KS, "coverages": LEVELS, "score_kind": "softmax"}
    return fitted({"linear": logits}, labels, **{"head": "linear", **options, **settings})


@pytest.fixture(scope="module")
def record() -> CalibrationRecord:
    return fitted_sample(delta=0.2, max_size=12)


@pytest.fixture(scope="module")
def values() -> Floats:
    return scores(sample_logits()[0], "softmax")


def check_measured(point: OperatingPoint, members: Bools) -> None:
    hits = members[np.arange(ROWS), sample_logits()[1]]
    assert point.row.size == members.sum() / ROWS
    assert point.row.size_deviation == pytest.approx(members.sum(axis=1).std())
    assert hits_of(point).value == hits.mean()


@pytest.mark.parametrize("guarantee", GUARANTEES)
@pytest.mark.parametrize("min_size", [0, 1])
@pytest.mark.parametrize("k", [*KS, 3.0])
def test_a_guaranteed_size_is_the_rule_of_the_library(
    record: CalibrationRecord, values: Floats, guarantee: Guarantee, min_size: int, k: float
) -> None:
    result = record if min_size else fitted_sample(delta=0.2, max_size=12, min_size=0)
    point = result.point(PLAIN, result.setting("average_k", k, guarantee))
    rule = calibrate(
        "average_k", values, average_k=k, guarantee=guarantee, delta=0.2, max_size=12,
        min_size=min_size,
    )  # fmt: skip
    assert rule.lambda_val is not None
    assert point.lambda_val == min(rule.lambda_val, NO_SCORE)
    assert point.lambda_val != result.point(PLAIN, result.setting("average_k", k)).lambda_val
    members = point.sets(values)
    assert (members == rule.sets(values)).all()
    check_measured(point, members)
    assert (point.guarantee, point.max_size, point.min_size) == (guarantee, 12, min_size)
    assert point.delta == (0.2 if guarantee == "probability" else None)


@pytest.mark.parametrize("level", LEVELS)
def test_a_sure_coverage_is_the_rule_of_the_library(
    record: CalibrationRecord, values: Floats, level: float
) -> None:
    labels = sample_logits()[1]
    point = record.point(PLAIN, record.setting("coverage", level, "probability"))
    rule = calibrate("coverage", values, labels, coverage=level, delta=0.2)
    assert point.lambda_val == rule.lambda_val
    check_measured(point, rule.sets(values))
    plain = record.point(PLAIN, record.setting("coverage", level))
    assert (plain.guarantee, plain.delta, point.delta) == ("mean", None, 0.2)
    assert plain.lambda_val is not None
    assert point.lambda_val is not None
    assert point.lambda_val < plain.lambda_val
    same = record.point(PLAIN, record.setting("coverage", level, "mean"))
    assert same.lambda_val == plain.lambda_val


@pytest.mark.parametrize("min_size", [0, 1])
def test_class_coverage_is_that_of_the_library(values: Floats, min_size: int) -> None:
    labels = sample_logits()[1]
    record = fitted_sample(min_size=min_size)
    for level in LEVELS:
        point = record.point(PLAIN, record.setting("class_coverage", level))
        rule = calibrate(
            "class_coverage", values, labels, coverage=level, min_size=min_size,
            class_counts=record.class_counts,
        )  # fmt: skip
        assert point.lambda_val == 0.0
        assert point.class_thresholds is not None
        assert rule.class_thresholds is not None
        assert point.class_thresholds.tolist() == rule.class_thresholds.tolist()
        assert point.macro_weight == rule.macro_weight == 0.5
        check_measured(point, rule.sets(values))
        reached = point.compare(values) >= 0.0
        if min_size:
            reached[np.arange(ROWS), point.rank_by(values).argmax(axis=1)] = True
        assert (reached == rule.sets(values)).all()


def test_a_guarantee_is_at_the_values_asked_for_and_the_default(record: CalibrationRecord) -> None:
    assert record.promises == (
        ("average_k", "mean"), ("average_k", "probability"), ("coverage", "probability"),
    )  # fmt: skip
    assert sorted(record.rules) == sorted(RULES)
    # Those without a promise first, then promises, then thresholds by class.
    shared = {(name, spec.guarantee) for name, spec in RULES.items() if not spec.by_class}
    by_class = [(name, spec.guarantee) for name, spec in RULES.items() if spec.by_class]
    tables = [(rule.rule, rule.guarantee) for rule in record.tables[0].rules]
    assert tables[:2] == [("average_k", None), ("coverage", "mean")]
    assert {*tables[: len(shared)]} == shared
    assert tables[len(shared) :] == [*record.promises, *by_class]
    for guarantee in GUARANTEES:
        assert record.values("average_k", guarantee) == [1.0, 2.0, 3.0, 6.5]
        assert record.point(PLAIN, record.setting("average_k", None, guarantee)).k == 3.0
    with pytest.raises(NotCalibrated, match=r"k = 2\.5 .* with guarantee=mean") as refused:
        record.point(PLAIN, record.setting("average_k", 2.5, "mean"))
    assert refused.value.allowed == [1.0, 2.0, 3.0, 6.5]
    for rule in ("top_k", "balanced_average_k", "class_coverage"):
        with pytest.raises(NotCalibrated, match="with guarantee=probability") as refused:
            record.point(PLAIN, record.setting(rule, None, "probability"))
        assert refused.value.allowed == []
    assert record.values("coverage", "probability") == [0.8, 0.95]
    assert record.values("class_coverage") == [0.8, 0.95]


def test_heads_are_compared_by_sets_without_a_guarantee(record: CalibrationRecord) -> None:
    plain = hits_of(record.point(PLAIN, record.setting("average_k", 2.0))).value
    assert record.compared(2.0) == {("linear", "softmax", 1.0): plain}
    assert plain > hits_of(record.point(PLAIN, record.setting("average_k", 2.0, "mean"))).value


def test_a_promise_is_guaranteed_only_where_nobody_lost_count(record: CalibrationRecord) -> None:
    pairs: list[tuple[str, Guarantee | None]] = [*record.promises, ("class_coverage", None)]
    measured = replace(record.measured, chose_checkpoint=True, networks=None)
    flattered = replace(record, measured=measured)
    for rule, guarantee in pairs:
        point = record.point(PLAIN, record.setting(rule, None, guarantee))
        assert point.guaranteed
        assert "This is guaranteed on such photos" in point.statement
        point = flattered.point(PLAIN, flattered.setting(rule, None, guarantee))
        assert not point.guaranteed
        assert "but is no guarantee" in point.statement
        assert "guaranteed" not in point.statement
        several = (
            record.point(View(photos=2), record.setting(rule, None, guarantee))
            if guarantee is not None
            else None
        )
        if several is not None:
            assert several.table.made_from == "same_class"
            assert not several.guaranteed
            assert "there were no such requests to calibrate on" in several.statement
    assert not record.point(PLAIN, record.setting("average_k")).guaranteed
    assert "guarantee" not in record.point(PLAIN, record.setting("average_k")).statement


@pytest.mark.parametrize(
    ("setting", "sentence"),
    [
        (
            Setting("average_k", 2.0, "mean"),
            " This is guaranteed on such photos, on average over calibrations: at most 2 "
            "candidates on average, and never more than 12.",
        ),
        (
            Setting("average_k", 6.5, "probability"),
            " This is guaranteed on such photos, for all but 20.0 % of calibrations on "
            "independent photos: at most 6.5 candidates on average, and never more than 12.",
        ),
        (
            Setting("coverage", 0.8, "probability"),
            " This is guaranteed on such photos, for all but 20.0 % of calibrations on "
            "independent photos: at least 80.0 % of the sets hold the right one.",
        ),
    ],
)
def test_the_statement_says_what_is_promised(
    record: CalibrationRecord, setting: Setting, sentence: str
) -> None:
    assert record.point(PLAIN, setting).statement.endswith(sentence)


@pytest.mark.parametrize(
    ("macro_weight", "ending"),
    [(0.0, "80.0 %"), (0.5, "80.0 %"), (1.0, "80.0 %, for each class")],
)
def test_the_statement_of_class_coverage_tells_its_weight(macro_weight: float, ending: str) -> None:
    record = fitted_sample(macro_weight=macro_weight)
    point = record.point(PLAIN, record.setting("class_coverage", 0.8))
    share, _, each_class = ending.partition(",")
    sentence = f"at least {share} of the sets hold the right one"
    assert point.statement.endswith(f"{sentence}{',' if each_class else ''}{each_class}.")


def test_too_few_photos_leave_the_best_class_at_a_threshold_that_json_readers_can_hold() -> None:
    record = fitted_sample(ks=(1.0, 1.02))
    for k in (1.0, 1.02):
        point = record.point(PLAIN, record.setting("average_k", k, "mean"))
        assert point.lambda_val == NO_SCORE == math.nextafter(1.0, 2.0)
        assert point.row.size == 1.0


@pytest.mark.parametrize(("batch", "at_once"), [(7, 20), (200, 20), (200, 1 << 16)])
@pytest.mark.parametrize("ties", [False, True])
def test_the_search_is_that_of_a_loop_over_thresholds_for_any_batches(
    monkeypatch: pytest.MonkeyPatch, batch: int, at_once: int, ties: bool
) -> None:
    monkeypatch.setattr(florilege.calibration.sets, "BLOCK", at_once)
    random = np.random.default_rng(batch)
    rest = random.random((200, 9)) ** 4
    if ties:  # with thresholds, some of which are powers of two as well
        rest = np.ldexp(1.0, -random.integers(0, 8, (200, 9)))
    rest[random.random(rest.shape) < 0.1] = -np.inf
    order = np.random.default_rng(0).permutation(200)
    for k, min_size in ((1.5, 0), (2.5, 1), (3.9, 1), (4.0, 0)):
        expected = None
        for threshold in THRESHOLDS:
            sizes = np.minimum((rest[order] >= threshold).sum(axis=1) + min_size, 4)
            if not _means_are_below(sizes[np.newaxis] / 4, k / 4, 0.1)[0]:
                break
            expected = threshold
        gathered = BestOfRows(200, k, max_size=4, min_size=min_size)
        for start in range(0, 200, batch):
            gathered.add(rest[start : start + batch])
        assert gathered.probability_threshold(k, delta=0.1) == expected


def test_memory_does_not_grow_with_the_classes() -> None:
    def peak(classes: int) -> int:
        every = np.random.default_rng(0).random((40, 100, classes)) ** 8  # not traced

        def blocks() -> Iterator[tuple[Floats, Ints]]:
            for block in every:
                yield block.copy(), np.zeros(100, dtype=np.int64)

        scoring = Scoring(head="h", score_kind="sigmoid")
        counts = np.ones(classes, dtype=np.int64)
        source = Source(blocks=blocks, rows=4000, classes=classes, scoring=scoring, counts=counts)
        plan = CalibrationPlan(classes=classes, ks=(3.0,), coverages=())
        tracemalloc.start()
        tabulate(source, plan)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return most

    assert peak(1000) - peak(100) < 0.3 * 4000 * 1000 * 8  # of all scores; blocks take the most


def test_damaged_promises_are_refused(record: CalibrationRecord) -> None:
    plain = json.loads(record.to_json())
    table = plain["tables"][0]
    (at,) = [i for i, rule in enumerate(table["rules"]) if "by_class" in rule]
    rule = table["rules"][at]
    first, *others = rule["by_class"]
    for worse in (
        {**rule, "by_class": []},
        {**rule, "by_class": None},
        {**rule, "guarantee": "surely"},
        {**rule, "by_class": others},
        {**rule, "by_class": [{**first, "own": first["own"][:-1]}, *others]},
        {**rule, "by_class": [{**first, "own": ["0.1", *first["own"][1:]]}, *others]},
        {**rule, "by_class": [{**first, "more": 1}, *others]},
        {name: value for name, value in rule.items() if name != "guarantee"},
        {name: value for name, value in rule.items() if name != "by_class"},
    ):
        rules = [*table["rules"][:at], worse, *table["rules"][at + 1 :]]
        tables = [{**table, "rules": rules}, *plain["tables"][1:]]
        with pytest.raises(BundleError, match="calibrate"):
            CalibrationRecord.from_json(json.dumps({**plain, "tables": tables}))


def test_scores_without_labels_give_the_same_tables_without_hits() -> None:
    values = scores(sample_logits()[0], "softmax")
    plan = CalibrationPlan(classes=CLASSES, ks=(1.0, 3.0), coverages=())

    def thresholds(labels: Ints | None) -> list[Thresholds]:
        scoring = Scoring(head="h", score_kind="softmax")
        blocks = [(values, labels)]
        source = Source(
            blocks=lambda: iter(blocks),
            rows=ROWS,
            classes=CLASSES,
            scoring=scoring,
            counts=np.arange(1, CLASSES + 1),
        )
        return list(tabulate(source, plan).table.rules)

    blind, seeing = thresholds(None), thresholds(sample_logits()[1])
    assert len(blind) == 2 + sum(spec.asks == "k" for spec in RULES.values())
    for without, rule in zip(blind, seeing, strict=True):
        assert None not in [counts.hit_rows for counts in rule.counts]
        blank = tuple(counts._replace(hit_rows=None, misses=()) for counts in rule.counts)
        assert without == replace(rule, counts=blank)
    plan = CalibrationPlan(classes=CLASSES, ks=(1.0, 3.0))
    with pytest.raises(ValueError, match="labels"):
        thresholds(None)


@pytest.mark.parametrize(
    ("rule", "most"), [("average_k", 5), ("top_k", 3), ("balanced_average_k", CLASSES)]
)
def test_one_photo_does_not_tell_how_large_sets_are_on_average(
    record: CalibrationRecord, rule: str, most: int
) -> None:
    point = record.point(PLAIN, record.setting(rule, 3))
    one = replace(point, lambda_val=None if rule == "top_k" else 0.2)
    measurement = Measurement([one], CLASSES)
    measurement.update(np.array([[0.3, 0.3, 0.3, *[0.1 / (CLASSES - 3)] * (CLASSES - 3)]]))
    row = one.row_on(measurement, 0)
    if rule == "top_k":
        assert (row.size, row.size_low, row.size_high) == (3, 3, 3)
    else:
        ends = (row.size - 0.975 * (row.size - 1), row.size + 0.975 * (most - row.size))
        assert (row.size_low, row.size_high) == pytest.approx(ends)
