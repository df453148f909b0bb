"""Sizes and hits by the number of training images."""

import numpy as np
import pytest

from florilege.calibration.intervals import mean_interval, wilson
from florilege.calibration.record.shot_groups import measure_by_shots


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
        expected = mean_interval(group.mean_size, float(sizes[rows].std()), len(rows))
        assert group.size_ci95 == pytest.approx(expected)


def test_a_group_of_one_photo_does_not_know_its_mean_size_and_one_without_is_left_out() -> None:
    size, hit, label, counts = map(np.array, ([3], [True], [1], [500, 5]))
    [group] = measure_by_shots(size, hit, label, counts, largest=30)
    assert group.name == "few"
    assert group.size_ci95 == pytest.approx((0.075, 29.325))
