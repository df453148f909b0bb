"""Sizes and hits over a data set, against the sets themselves."""

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.calibration.intervals import effective_rows, mean_interval, wilson
from florilege.calibration.record.measurement import (
    EXACT_SIZES,
    Measurement,
    measure_by_shots,
    size_bins,
)
from florilege.calibration.rules import calibrate
from florilege.calibration.sets import SetRule
from tests.calibration.strategies import Scores, draw_labels, score_arrays


@settings(max_examples=100)
@given(data=st.data(), scores=score_arrays(infinite=False), min_size=st.sampled_from([0, 1]))
def test_a_measurement_counts_the_sets(data: st.DataObject, scores: Scores, min_size: int) -> None:
    labels = np.array(draw_labels(data, scores))
    levels = data.draw(st.lists(st.floats(-1, 1.2), min_size=1, max_size=5))
    rules = [threshold_rule(level, min_size) for level in levels]
    check(rules, scores, labels, batch=data.draw(st.integers(1, len(scores))))


def threshold_rule(lambda_val: float, min_size: int) -> SetRule:
    return SetRule(rule="average_k", lambda_val=lambda_val, min_size=min_size, rows=1)


def check(
    rules: list[SetRule], scores: Scores, labels: np.ndarray[tuple[int], np.dtype[np.int64]],
    batch: int,
) -> None:  # fmt: skip
    rows, classes = scores.shape
    measurement = Measurement(rules, classes)
    for start in range(0, rows, batch):
        measurement.update(scores[start : start + batch], labels[start : start + batch])
    for index, rule in enumerate(rules):
        members = rule.sets(scores)
        sizes = members.sum(axis=1)
        hits = members[np.arange(rows), labels]
        assert measurement.mean_size(index) == sizes.sum() / rows
        assert measurement.size_deviation(index) == pytest.approx(sizes.std(), abs=1e-12)
        assert measurement.hits[index] == hits.sum()
        assert measurement.histogram[index, 0] == (sizes == 0).sum()
        counts = np.histogram(sizes, [*size_bins(classes), classes + 1])[0]
        assert measurement.histogram[index].tolist() == counts.tolist()
        shares = [hits[labels == label].mean() for label in np.unique(labels)]
        assert measurement.macro_hit_rate(index) == pytest.approx(np.mean(shares))


def test_effective_rows_are_those_of_the_sizes_and_hits_of_each_plant() -> None:
    random = np.random.default_rng(5)
    plants = random.integers(0, 120, 300)  # some with one photo, some with several
    scores, labels = np.round(random.random((300, 4)), 1), random.integers(0, 4, 300)
    scores += random.random(120)[plants, np.newaxis]  # photos of a plant are alike
    rules = [threshold_rule(0.9, 0), threshold_rule(1.3, 1)]
    measurement = Measurement(rules, 4, watched=[0, 1], observations=plants)
    for part in (slice(0, 70), slice(70, 300)):
        measurement.update(scores[part], labels[part])
    sizes, hits = measurement.row_by_row()
    for index in range(2):
        expected = [effective_rows(values[:, index], plants) for values in (sizes, hits)]
        assert measurement.effective_rows(index) == pytest.approx(expected)
        assert expected[0] < 200


def test_the_macro_rate_of_some_classes_only() -> None:
    measurement = Measurement([threshold_rule(0.5, 0)], 3)
    measurement.update(np.array([[0.9, 0, 0], [0.9, 0, 0]]), np.array([0, 1]))
    assert measurement.macro_hit_rate(0) == 0.5
    assert measurement.macro_hit_rate(0, np.array([True, False, True])) == 1.0
    assert measurement.macro_hit_rate(0, np.array([False, False, True])) is None


def test_a_block_without_rows_changes_nothing() -> None:
    measurement = Measurement([threshold_rule(0.5, 1)], 3)
    measurement.update(np.empty((0, 3)), np.empty(0, dtype=np.int64))
    measurement.update(np.array([[0.9, 0.6, 0]]), np.array([0]))
    assert (measurement.rows, measurement.mean_size(0)) == (1, 2.0)


def test_watching_one_rule_keeps_nothing_of_the_others() -> None:
    rules = [threshold_rule(level, 0) for level in np.linspace(0, 1, 200)]
    measurement = Measurement(rules, 4, watched=[3])
    scores, labels = np.random.default_rng(0).random((500, 4)), np.zeros(500, dtype=np.int64)
    measurement.update(scores, labels)
    tracemalloc.start()
    for _ in range(10):
        measurement.update(scores, labels)
    memory = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert 5000 <= memory < 10 * 500 * len(rules)  # a byte for the hit and eight for the size


@pytest.mark.parametrize("classes", [1, 2, 3, EXACT_SIZES, EXACT_SIZES + 1, 21, 10_000])
def test_a_set_of_every_size_has_its_bin(classes: int) -> None:
    edges = size_bins(classes)
    assert edges[0] == 0
    assert (np.diff(edges) >= 1).all()
    assert edges[-1] <= classes < edges[-1] + max(1, edges[-1] // 2) + (edges[-1] <= EXACT_SIZES)
    assert edges[: EXACT_SIZES + 1].tolist() == list(range(min(classes, EXACT_SIZES) + 1))
    assert (np.diff(edges) <= np.maximum(1, edges[:-1] // 2)).all()
    assert len(edges) < 30


def mixed_rules() -> list[SetRule]:
    """Neighbours of different kinds; arrays that are equal and not the same."""
    plain = SetRule(rule="average_k", lambda_val=0.3, min_size=1, rows=300)
    weighted = [replace(plain, class_weights=np.arange(1.0, 5.0)) for _ in range(2)]
    own = [replace(plain, class_thresholds=np.full(4, level), lambda_val=0.0) for level in (0, 1)]
    fixed = [calibrate("top_k", [[0.1] * 4], k=k) for k in (3, 1, 4)]
    limited_rules = [
        replace(plain, lambda_val=level, min_size=min_size, max_size=2)
        for min_size in (0, 1)
        for level in (0.3, 0.8, 2.0)
    ]
    others = [*limited_rules, replace(plain, min_size=0, lambda_val=0.9), fixed[2], plain]
    return [plain, own[0], weighted[0], fixed[0], others[0], own[1], fixed[1], weighted[1], *others]


def test_rules_of_any_kinds_are_measured_as_each_is_alone() -> None:
    random = np.random.default_rng(3)
    scores, labels = np.round(random.random((300, 4)), 1), random.integers(0, 4, 300)
    check(mixed_rules(), scores, labels, batch=70)


def test_without_labels_sizes_are_measured_and_hits_are_not() -> None:
    scores, rules = np.round(np.random.default_rng(4).random((300, 4)), 1), mixed_rules()
    blind, seeing = Measurement(rules, 4), Measurement(rules, 4)
    blind.update(scores)
    seeing.update(scores, np.zeros(300, dtype=np.int64))
    assert (blind.labelled, seeing.labelled) == (False, True)
    for index in range(len(rules)):
        assert blind.mean_size(index) == seeing.mean_size(index)
        assert blind.size_deviation(index) == seeing.size_deviation(index)
        assert blind.macro_hit_rate(index) is None
    assert (blind.histogram == seeing.histogram).all()
    assert not blind.hits.any()


def test_each_group_is_measured_on_its_own_photos() -> None:
    random = np.random.default_rng(0)
    counts = np.array([5, 19, 20, 100, 101, 3])
    labels = random.integers(0, 5, 400)  # class 5 has no photo
    sizes, hits = random.integers(0, 9, 400), random.random(400) < 0.7
    groups = measure_by_shots(sizes, hits, labels, counts)
    assert [(group.name, group.classes) for group in groups] == [
        ("few", 2), ("medium", 2), ("many", 1),
    ]  # fmt: skip
    for group, classes in zip(groups, ((0, 1), (2, 3), (4,)), strict=True):
        rows = [row for row in range(400) if labels[row] in classes]
        assert group.rows == len(rows)
        assert group.mean_size == pytest.approx(np.mean(sizes[rows]))
        assert group.hit_rate == pytest.approx(np.mean(hits[rows]))
        assert group.hit_ci95 == wilson(int(hits[rows].sum()), len(rows))
        third = ((sizes[rows] - group.mean_size) ** 3).mean() / sizes[rows].std() ** 3
        expected = mean_interval(group.mean_size, sizes[rows].std(), len(rows), skewness=third)
        assert group.size_ci95 == pytest.approx(expected)


def test_a_group_of_one_photo_does_not_know_its_mean_size_and_one_without_is_left_out() -> None:
    size, hit, label, counts = map(np.array, ([3], [True], [1], [500, 5]))
    [group] = measure_by_shots(size, hit, label, counts, largest=30)
    assert group.name == "few"
    assert group.size_ci95 == pytest.approx((0.075, 29.325))
