"""Intervals against their definitions."""

from math import sqrt

import pytest

from calibration.intervals import Z95, mean_interval, wilson


@pytest.mark.parametrize(("hits", "rows"), [(1, 10), (5, 10), (938, 1000), (29_000, 31_112)])
def test_the_ends_of_a_wilson_interval_are_1_96_standard_errors_from_the_share(
    hits: int, rows: int
) -> None:
    for end in wilson(hits, rows):
        distance = abs(end - hits / rows) / sqrt(end * (1 - end) / rows)
        assert distance == pytest.approx(Z95, rel=1e-9)


def test_no_and_all_hits_give_intervals_that_start_and_end_there() -> None:
    low, high = wilson(0, 20)
    assert low == 0.0
    assert 0.1 < high < 0.2
    assert wilson(20, 20) == pytest.approx((1 - high, 1.0))


@pytest.mark.parametrize(("hits", "rows"), [(-1, 5), (6, 5), (0, 0)])
def test_counts_that_cannot_be_are_refused(hits: int, rows: int) -> None:
    with pytest.raises(ValueError, match="hits must be in"):
        wilson(hits, rows)


def test_the_interval_of_a_mean_is_1_96_standard_errors_wide_on_each_side() -> None:
    assert mean_interval(3.0, 2.0, 400) == pytest.approx((2.804004, 3.195996), abs=1e-6)
