"""The least coverage of every threshold at once: oracle, limits, and what a simulation keeps."""

import math

import numpy as np
import pytest

from florilege.calibration.intervals import BAND_CRITICAL, critical_value, least_coverage


def slow_bound(hits: int, rows: int, limit: float) -> float:
    """The smallest coverage on a fine grid that the data do not contradict."""
    for step in range(1, 100_000):
        coverage = step / 100_000
        if coverage >= hits / rows:
            return hits / rows
        likelihood = hits * math.log(coverage) + (rows - hits) * math.log(1 - coverage)
        best = hits * math.log(hits / rows)
        best += (rows - hits) * math.log((rows - hits) / rows) if hits < rows else 0.0
        if best - likelihood <= limit:
            return coverage
    raise AssertionError


@pytest.mark.parametrize(
    ("hits", "rows"), [(30, 50), (50, 50), (99, 100), (900, 938), (938, 938), (2999, 3000)]
)
@pytest.mark.parametrize("delta", [0.2, 0.1, 0.01])
def test_it_is_the_least_coverage_that_the_likelihood_allows(
    hits: int, rows: int, delta: float
) -> None:
    bound = least_coverage(hits, rows, delta=delta)
    assert bound == pytest.approx(slow_bound(hits, rows, critical_value(rows, delta)), abs=2e-5)
    assert bound < hits / rows


def test_more_candidates_and_a_smaller_delta_promise_less() -> None:
    bounds = [least_coverage(950, 1000, delta=0.1, candidates=n) for n in (1, 2, 11, 50)]
    assert bounds == sorted(bounds, reverse=True)
    assert len(set(bounds)) == 4
    assert least_coverage(950, 1000, delta=0.1, candidates=2) == least_coverage(
        950, 1000, delta=0.05
    )


def test_between_the_entries_of_the_table_the_safer_one_counts() -> None:
    assert critical_value(101, 0.1) == critical_value(1000, 0.1) == BAND_CRITICAL[2, 1]
    assert critical_value(100, 0.15) == critical_value(100, 0.1)
    assert critical_value(1, 0.9) == BAND_CRITICAL[0, 0]
    assert (np.diff(BAND_CRITICAL, axis=0) > 0).all()
    assert (np.diff(BAND_CRITICAL, axis=1) > 0).all()


@pytest.mark.parametrize(("hits", "delta"), [(50, 0.1), (0, 0.1), (100, 0.0009)])
def test_where_nothing_can_be_promised_it_is_zero(hits: int, delta: float) -> None:
    assert least_coverage(hits, 100, delta=delta) == 0.0


@pytest.mark.parametrize(("hits", "rows"), [(-1, 10), (11, 10), (0, 0)])
def test_impossible_counts_are_refused(hits: int, rows: int) -> None:
    with pytest.raises(ValueError, match="hits must be"):
        least_coverage(hits, rows)


def test_more_rows_than_the_table_has_are_refused() -> None:
    with pytest.raises(ValueError, match="rows"):
        critical_value(2_000_000, 0.1)


def test_all_thresholds_keep_their_promise_together() -> None:
    """Over 2,000 calibrations on 400 photos, whichever threshold is taken afterwards."""
    rng, rows, delta = np.random.default_rng(0), 400, 0.1
    bounds = np.array([least_coverage(hits, rows, delta=delta) for hits in range(rows + 1)])
    broken = 0
    for _ in range(2000):
        true_scores = np.sort(rng.random(rows))  # a threshold at t has coverage 1 - t
        worst = bounds[rows - np.arange(rows)]  # just below each score, with `at` misses
        broken += bool((worst > 1 - true_scores).any())
    share, error = broken / 2000, math.sqrt(delta * (1 - delta) / 2000)
    assert share <= delta + 3 * error
    assert share >= delta / 2  # and not much too careful
