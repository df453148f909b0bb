"""The figures of a threshold follow from what was counted of its sets."""

import numpy as np
import pytest

from florilege.calibration.intervals import mean_interval, wilson
from florilege.calibration.record.measurement import size_bins
from florilege.calibration.record.operating_point import row_of
from florilege.calibration.record.schema import ByClass, Counts
from florilege.calibration.rules.label_noise import LabelNoise

SIZES = np.array([0] * 5 + [1] * 40 + [2] * 35 + [3] * 20)
MISSES = (5, 6, 2)  # of the sets of 0, 1 and 2 classes
ROWS = SIZES.size
COUNTS = Counts(
    value=1.7,
    lambda_val=0.2,
    size_sum=int(SIZES.sum()),
    size_squares=int((SIZES**2).sum()),
    size_rows=40.0,
    hit_rows=30.0,
    ties=2,
    sizes=(5, 40, 35, 20),
    misses=MISSES,
)
REVIEWED = LabelNoise(kind="uniform", rate=0.1, low=0.02, high=0.3, source="review", reviewed=90)


def test_sizes_and_hits_are_those_of_the_sets_with_intervals_of_independent_rows() -> None:
    row = row_of(COUNTS, ROWS, None, (0, 6))
    assert (row.size, row.size_deviation) == pytest.approx((SIZES.mean(), SIZES.std()))
    third = ((SIZES - SIZES.mean()) ** 3).mean() / SIZES.std() ** 3
    expected = mean_interval(SIZES.mean(), SIZES.std(), 40, lowest=0, highest=6, skewness=third)
    assert (row.size_low, row.size_high) == pytest.approx(expected)
    assert (row.hit_rate, row.hit_rows, row.empty_rate) == (0.87, 30, 0.05)
    assert (row.hit_low, row.hit_high) == wilson(87, 100, effective=30)
    assert row.size_histogram == (5, 40, 35, 20)
    assert (row.value, row.lambda_val, row.ties) == (1.7, 0.2, 2)


def test_sets_of_a_wide_bin_count_as_large_as_their_mean_says() -> None:
    sizes = np.minimum(np.ceil(np.exp(1.3 * np.random.default_rng(0).normal(size=400))), 90)
    bins = np.searchsorted(size_bins(100), sizes, side="right") - 1
    mean, deviation = float(sizes.mean()), float(sizes.std())
    counts = COUNTS._replace(
        size_sum=int(sizes.sum()),
        size_squares=int((sizes**2).sum()),
        size_rows=400,
        hit_rows=None,
        sizes=tuple(np.bincount(bins).tolist()),
    )
    skewness = ((sizes - mean) ** 3).mean() / deviation**3
    assert skewness > 5
    row = row_of(counts, 400, None, (0, 100))
    ends = [mean_interval(mean, deviation, 400, skewness=part * skewness)[1] for part in (0.8, 1.1)]
    assert ends[0] < row.size_high < ends[1]


def test_no_set_of_a_bin_counts_as_larger_than_a_set_can_be() -> None:
    sizes = np.repeat([1.0, 12.0, 13.0], [380, 10, 10])  # the bins hold 9 to 12, and 13 to 18
    mean, deviation = float(sizes.mean()), float(sizes.std())
    counts = COUNTS._replace(
        size_sum=int(sizes.sum()),
        size_squares=int((sizes**2).sum()),
        size_rows=400,
        hit_rows=None,
        sizes=(0, 380, *[0] * 7, 10, 10),
    )
    skewness = ((sizes - mean) ** 3).mean() / deviation**3
    expected = mean_interval(mean, deviation, 400, lowest=0, highest=13, skewness=skewness)
    row = row_of(counts, 400, None, (0, 13))
    assert (row.size_low, row.size_high) == pytest.approx(expected, rel=1e-9)


def test_without_labels_no_hit_is_known() -> None:
    row = row_of(COUNTS._replace(hit_rows=None, misses=()), ROWS, None, (0, 6))
    assert row.hit_rate is row.hit_low is row.hit_high is row.hit_rows is None


def test_wrong_labels_are_taken_out_of_every_figure() -> None:
    counts = COUNTS._replace(chance=(0.0, 4.0, 7.0, 6.0))
    row = row_of(counts, ROWS, REVIEWED, (0, 6))
    assert counts.mean_chance == 0.17
    assert row.hit_rate == counts.hit_rate(REVIEWED) == pytest.approx((0.87 - 0.017) / 0.9)
    low, high = wilson(87, 100, effective=30)
    assert row.hit_low == pytest.approx((low - 0.02 * 0.17) / 0.98)
    assert row.hit_high == min(1.0, (high - 0.3 * 0.17) / 0.7)
    assert row.hit_rows is not None
    assert row.hit_rows < 30  # of an interval as wide as that with an unknown rate


def test_fewer_hits_than_by_chance_are_none_and_inside_their_interval() -> None:
    """Labels that no set holds: at a smaller rate even more hits are missing."""
    counts = COUNTS._replace(misses=(5, 39, 33, 18), chance=(0.0, 30.0, 33.0, 20.0))
    row = row_of(counts, ROWS, REVIEWED, (0, 6))
    assert row.hit_rate == 0.0
    assert row.hit_low == 0.0
    few = row_of(counts._replace(misses=(5, 30, 25, 10), hit_rows=1e6), ROWS, REVIEWED, (0, 6))
    assert few.hit_low is not None
    assert few.hit_rate is not None
    assert few.hit_high is not None
    assert few.hit_low <= few.hit_rate <= few.hit_high


def test_thresholds_by_class_that_no_photos_gave_are_stored_once() -> None:
    thresholds = np.array([0.1, 0.3, 0.1, 0.15])
    stored = ByClass.of(thresholds)
    assert (stored.lowest, stored.own) == (0.1, (None, 0.3, None, 0.15))
    assert stored.thresholds().tolist() == thresholds.tolist()
