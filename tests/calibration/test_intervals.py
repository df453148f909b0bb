"""Intervals against their definitions."""

from math import exp, gamma, log, sqrt

import numpy as np
import pytest

from florilege.calibration.conformal import binomial
from florilege.calibration.intervals import (
    BAND_CRITICAL,
    T975,
    Z95,
    _correlation,
    _critical_value,
    effective_rows,
    largest_fall,
    least_coverage,
    mean_interval,
    score_interval,
    student_half,
    wilson,
)


@pytest.mark.parametrize(("hits", "rows"), [(13, 40), (50, 100), (938, 1000), (29_000, 31_112)])
def test_wilson_ends_are_1_96_standard_errors_from_the_share(hits: int, rows: int) -> None:
    for end in wilson(hits, rows):
        distance = abs(end - hits / rows) / sqrt(end * (1 - end) / rows)
        assert distance == pytest.approx(Z95, rel=1e-9)


def test_no_and_all_hits_give_intervals_that_start_and_end_there() -> None:
    low, high = wilson(0, 20)
    assert low == 0.0
    assert 0.1 < high < 0.2
    assert wilson(20, 20) == pytest.approx((1 - high, 1.0))


@pytest.mark.parametrize("rows", [12, 27, 100, 1000])
def test_wilson_holds_in_95_of_100_samples_where_misses_are_few(rows: int) -> None:
    """Exactly, by the binomial distribution; Wilson's own holds in 84 of 100 at worst."""
    ends = [wilson(rows - misses, rows) for misses in range(rows + 1)]
    low, high = np.array(ends).T
    for misses in np.geomspace(0.001, 1.5, 400):
        rate = 1 - misses / rows
        inside = binomial(rows, 1 - rate)[(low <= rate) & (rate <= high)].sum()
        assert inside >= 0.95 - 1e-9


@pytest.mark.parametrize("misses", range(1, 11))
def test_an_interval_reaches_to_where_as_many_misses_have_a_chance_of_5_percent(
    misses: int,
) -> None:
    rows = 100_000
    expected = (1 - wilson(rows - misses, rows)[1]) * rows
    fewer = sum(exp(-expected) * expected**count / gamma(count + 1) for count in range(misses))
    assert 1 - fewer == pytest.approx(0.05, abs=1e-4)
    assert wilson(misses, rows)[0] * rows == pytest.approx(expected)


def test_fractions_of_a_miss_lie_between_whole_ones() -> None:
    def expected(misses: float) -> float:
        return (1 - wilson(1000 - int(10 * misses), 1000, effective=100)[1]) * 100

    assert expected(1.5) == pytest.approx((expected(1) + expected(2)) / 2)
    assert expected(0.5) == pytest.approx(expected(1) / 2)
    usual = score_interval(0.893, 100)
    assert wilson(893, 1000, effective=100) == usual  # 10.7 misses


def test_only_small_counts_lengthen_an_interval() -> None:
    usual, longer = score_interval(0.92, 100), wilson(92, 100)
    assert longer[0] == usual[0]
    assert usual[1] < longer[1] < usual[1] + 0.005
    assert wilson(87, 100) == score_interval(0.87, 100)


@pytest.mark.parametrize(("hits", "rows"), [(-1, 5), (6, 5), (0, 0)])
def test_counts_that_cannot_be_are_refused(hits: int, rows: int) -> None:
    for interval in (wilson, least_coverage):
        with pytest.raises(ValueError, match="hits must be"):
            interval(hits, rows)


@pytest.mark.parametrize("delta", [0.3, 0.05])
def test_the_mean_chance_of_new_photos_lies_above_by_less_than_the_largest_fall(
    delta: float,
) -> None:
    random, rows, exceeded = np.random.default_rng(0), 60, 0
    for _ in range(1500):
        scores = np.sort(random.uniform(size=(rows, 1)) ** random.choice([1, 1], (1, 3)), axis=None)
        above = np.arange(scores.size, 0, -1) / scores.size  # share of classes from each score on
        fall = ((1 - scores) - above + 1 / scores.size).max()  # just above it; truly 1 - score
        exceeded += fall > largest_fall(rows, delta)
    assert exceeded / 1500 <= delta


def quantile_of(freedom: float) -> float:
    """The 97.5 % quantile of Student's t, from the interval of a mean."""
    return mean_interval(0.0, sqrt(freedom), freedom + 1)[1]


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    [(1, 12.7062), (3, 3.1824), (9, 2.2622), (30, 2.0423), (999, 1.9623), (40_000, 1.96)],
)
def test_the_quantile_of_student_is_that_of_the_tables(freedom: int, quantile: float) -> None:
    assert quantile_of(freedom) == pytest.approx(quantile, abs=1e-4)


def test_both_ways_to_the_quantile_of_student_agree() -> None:
    """Each entry of the table is the t that leaves 5 % of the density outside, as the sum says."""
    for freedom, quantile in enumerate(T975, start=1):
        angles = np.linspace(0, np.arctan(quantile / np.sqrt(freedom)), 20_001)
        density = np.cos(angles) ** (freedom - 1)  # Student's t by t = sqrt(freedom) tan(angle)
        factor = 2 * gamma((freedom + 1) / 2) / (np.sqrt(np.pi) * gamma(freedom / 2))
        assert factor * np.trapezoid(density, angles) == pytest.approx(0.95, abs=1e-8)
    assert quantile_of(2.9) == quantile_of(2)
    assert quantile_of(30 + 1e-9) == pytest.approx(quantile_of(30), abs=2e-4)


def test_a_single_value_has_no_interval() -> None:
    assert student_half([0.5]) is None
    assert student_half([0.5, 0.5]) == 0.0


@pytest.mark.parametrize("share", [0.6, 0.9, 0.98])
@pytest.mark.parametrize("correlation", [0.0, 0.6])
def test_an_interval_counts_photos_as_far_as_they_differ(share: float, correlation: float) -> None:
    random, plants, inside, naive = np.random.default_rng(3), np.repeat(np.arange(150), 4), 0, 0
    spread = max(1e-9, correlation) / (
        1 - correlation
    )  # of a beta distribution with this correlation
    for _ in range(600):
        chance = random.beta(share / spread, (1 - share) / spread, 150)
        hits = random.random(600) < chance[plants]
        for rows, name in ((effective_rows(hits, plants), "robust"), (600, "naive")):
            low, high = score_interval(float(hits.mean()), rows)
            inside += name == "robust" and low <= share <= high
            naive += name == "naive" and low <= share <= high
    assert 0.93 - 0.02 < inside / 600 <= 0.99
    assert correlation == 0 or naive / 600 < 0.85


def test_the_interval_of_a_mean_size_counts_plants_too() -> None:
    random, plants, inside = np.random.default_rng(4), np.repeat(np.arange(150), 4), 0
    for _ in range(600):
        ambiguity = np.repeat(random.gamma(2.0, 1.0, 150), 4)
        sizes = 1 + random.poisson(ambiguity)
        rows = effective_rows(sizes, plants)
        low, high = mean_interval(float(sizes.mean()), float(sizes.std()), rows)
        inside += low <= 3.0 <= high
    assert 0.93 - 0.02 < inside / 600 < 0.97 + 0.02


def test_rows_of_their_own_are_independent_and_equal_rows_are_one() -> None:
    values, alone = np.random.default_rng(5).random(200), np.arange(200)
    assert effective_rows(values, None) == 200
    assert effective_rows(values, alone) == pytest.approx(200, rel=0.02)
    assert effective_rows(values > 0.3, alone) == 200
    assert effective_rows(np.repeat(values, 4), np.repeat(alone, 4)) == pytest.approx(200)
    every = effective_rows(np.ones(196, dtype=np.bool_), np.repeat(np.arange(49), 4))
    assert 45 < every < 49  # and a little less, as their variance is estimated from 49 plants
    assert effective_rows([True, False, True], [0, 0, 0]) == pytest.approx(1, abs=0.1)


def test_the_interval_of_the_mean_of_a_few_values_holds_it_in_95_of_100_cases() -> None:
    random, rows = np.random.default_rng(1), 5
    values = random.normal(3.0, 2.0, (4000, rows))
    ends = [mean_interval(float(row.mean()), float(row.std()), rows) for row in values]
    covered = np.mean([low <= 3.0 <= high for low, high in ends])
    assert covered == pytest.approx(0.95, abs=0.012)  # 3.5 standard errors
    halves = [student_half(row) for row in values.tolist()]  # over seeds
    assert halves == pytest.approx([(high - low) / 2 for low, high in ends])


@pytest.mark.parametrize("rows", [1, 5, 200, 5000])
def test_values_that_are_all_equal_still_leave_the_mean_open(rows: int) -> None:
    """A share of the photos that is so small that these ``rows`` missed it in 1 case of 40."""
    rare = 1 - 0.025 ** (1 / rows)
    low, high = mean_interval(3.0, 0.0, rows, lowest=1, highest=50)
    assert (low, high) == pytest.approx((3 - 2 * rare, 3 + 47 * rare))
    assert mean_interval(3.0, 0.0, rows, lowest=3, highest=3) == (3.0, 3.0)  # no set can differ
    assert mean_interval(3.0, 0.0, rows) == (-np.inf, np.inf)


def test_an_interval_stays_within_what_values_can_be() -> None:
    assert mean_interval(1.1, 0.9, 3, lowest=1, highest=3) == (1, 3)


def slow_bound(hits: int, rows: int, limit: float) -> float:
    """The smallest coverage on a fine grid that the data do not contradict."""
    for step in range(1, 100_000):
        coverage = step / 100_000
        if coverage >= hits / rows:
            return hits / rows
        likelihood = hits * log(coverage) + (rows - hits) * log(1 - coverage)
        best = hits * log(hits / rows)
        best += (rows - hits) * log((rows - hits) / rows) if hits < rows else 0.0
        if best - likelihood <= limit:
            return coverage
    raise AssertionError


@pytest.mark.parametrize(
    ("hits", "rows"), [(30, 50), (50, 50), (99, 100), (900, 938), (938, 938), (2999, 3000)]
)
@pytest.mark.parametrize("delta", [0.2, 0.1, 0.01])
def test_it_is_the_least_coverage_the_likelihood_allows(hits: int, rows: int, delta: float) -> None:
    bound = least_coverage(hits, rows, delta=delta)
    assert bound == pytest.approx(slow_bound(hits, rows, _critical_value(rows, delta)), abs=2e-5)
    assert bound < hits / rows


def test_more_candidates_and_a_smaller_delta_promise_less() -> None:
    bounds = [least_coverage(950, 1000, delta=0.1, candidates=n) for n in (50, 11, 2, 1)]
    assert (np.diff(bounds) > 0).all()
    assert bounds[2] == least_coverage(950, 1000, delta=0.05)


def test_between_the_entries_of_the_table_the_safer_one_counts() -> None:
    assert _critical_value(101, 0.1) == _critical_value(1000, 0.1) == BAND_CRITICAL[2, 1]
    assert _critical_value(100, 0.15) == _critical_value(100, 0.1)
    assert _critical_value(1, 0.9) == BAND_CRITICAL[0, 0]
    assert (np.diff(BAND_CRITICAL, axis=0) > 0).all()
    assert (np.diff(BAND_CRITICAL, axis=1) > 0).all()


@pytest.mark.parametrize(("hits", "delta"), [(50, 0.1), (0, 0.1)])
def test_where_nothing_can_be_promised_it_is_zero(hits: int, delta: float) -> None:
    assert least_coverage(hits, 100, delta=delta) == 0.0


def test_more_rows_than_the_table_has_promise_no_less() -> None:
    at_its_end = least_coverage(950_000, 1_000_000)
    assert at_its_end <= least_coverage(1_900_000, 2_000_000) < 0.95


def test_all_thresholds_keep_their_promise_together() -> None:
    """Over 2,000 calibrations on 400 photos, whichever threshold is taken afterwards."""
    rng, rows, delta = np.random.default_rng(0), 400, 0.1
    bounds = np.array([least_coverage(hits, rows, delta=delta) for hits in range(rows + 1)])
    broken = 0
    for _ in range(2000):
        true_scores = np.sort(rng.random(rows))  # a threshold at t has coverage 1 - t
        worst = bounds[rows - np.arange(rows)]  # just below each score, with `at` misses
        broken += bool((worst > 1 - true_scores).any())
    share, error = broken / 2000, sqrt(delta * (1 - delta) / 2000)
    assert share <= delta + 3 * error
    assert share >= delta / 2  # and not much too careful


@pytest.mark.parametrize("rows", range(1, 400, 7))
def test_no_hit_and_only_hits_end_exactly_at_0_and_1(rows: int) -> None:
    for effective in (None, rows / 3):
        assert wilson(0, rows, effective=effective)[0] == 0.0
        assert wilson(rows, rows, effective=effective)[1] == 1.0


def test_critical_values_beyond_the_table_are_those_of_three_million_samples() -> None:
    assert _critical_value(50, 1e-4) == pytest.approx(10.42, abs=0.1)
    assert _critical_value(50, 1e-5) == pytest.approx(12.76, abs=0.3)


def test_a_large_cluster_that_is_average_by_chance_makes_none_look_independent() -> None:
    """The squared sums of clusters are mostly its own, and those of the others tell the truth."""
    pairs = np.repeat(np.arange(60) % 2, 2)  # sixty plants whose photos are all equal
    large = np.arange(100) % 2
    values = np.concatenate([pairs, large]).astype(bool)
    clusters = np.concatenate([np.repeat(np.arange(60), 2), np.full(100, 60)])
    effective = effective_rows(values, clusters)
    assert effective < 5  # 7.3 by the squared sums alone
    assert effective_rows(large.astype(bool), np.arange(100)) == 100


def test_the_correlation_within_clusters_is_that_of_the_analysis_of_variance() -> None:
    values = np.array([1.0, 2.0, 3.0, 5.0, 9.0, 8.0, 4.0])
    clusters = np.array([0, 0, 1, 1, 2, 2, 2])
    groups = [values[clusters == group] for group in range(3)]
    inside = sum(((each - each.mean()) ** 2).sum() for each in groups) / 4
    among = sum(each.size * (each.mean() - values.mean()) ** 2 for each in groups) / 2
    usual = (7 - (4 + 4 + 9) / 7) / 2
    expected = (among - inside) / (among + (usual - 1) * inside)
    sizes = np.array([2, 2, 3])
    assert _correlation(sizes, 4 * inside, 2 * among) == pytest.approx(expected)
    assert _correlation(sizes, 10.0, 1.0) == 0
    assert _correlation(sizes, 0.0, 0.0) == 0


def test_the_interval_of_a_skewed_mean_is_longer_towards_the_long_tail() -> None:
    low, high = mean_interval(3.0, 2.0, 150)
    error, t = 2.0 / sqrt(149), quantile_of(149)
    of_tail = quantile_of(2 * 150 / (2 + 1.5 * 4.0**2))  # 11.5
    longer = (of_tail - t) * error + 4.0 * 2.0 * (1 + 2 * t * t) / (6 * 150)
    assert mean_interval(3.0, 2.0, 150, skewness=4.0) == pytest.approx((low, high + longer))
    assert mean_interval(3.0, 2.0, 150, skewness=-4.0) == pytest.approx((low - longer, high))
    assert mean_interval(3.0, 2.0, 150, skewness=4.0, highest=3.1) == (low, 3.1)
    few = mean_interval(3.0, 2.0, 5, skewness=0.1)  # no more degrees of freedom than values
    longer = 0.1 * 2.0 * (1 + 2 * quantile_of(4) ** 2) / (6 * 5)
    assert few[1] == pytest.approx(3.0 + quantile_of(4) * 2.0 / 2 + longer)


@pytest.mark.parametrize("rows", [1000, 3000])
@pytest.mark.parametrize("events", [1, 2, 5, 20])
def test_one_large_value_among_many_leaves_as_much_room_as_a_rare_event(
    rows: int, events: int
) -> None:
    """The upper end for so many events among ``rows`` of which each adds 1, as Poisson's has it."""
    values = np.repeat([0.0, 1.0], [rows - events, events])
    mean, deviation = float(values.mean()), float(values.std())
    third = float(((values - mean) ** 3).mean()) / deviation**3
    _, high = mean_interval(mean, deviation, rows, skewness=third)
    exact = {1: 5.57, 2: 7.22, 5: 11.67, 20: 30.89}[events]  # 97.5 %
    assert 0.98 * exact < high * rows < 1.35 * exact


def test_means_of_a_few_skewed_values_are_held_more_often_for_it() -> None:
    """Lognormal values with a skewness of 6."""
    random, held = np.random.default_rng(3), np.zeros(2)
    for _ in range(1500):
        values = np.exp(random.normal(size=100))
        mean, deviation = values.mean(), values.std()
        third = ((values - mean) ** 3).mean() / deviation**3
        for place, skewness in enumerate((0.0, third)):
            low, high = mean_interval(mean, deviation, 100, skewness=skewness)
            held[place] += low <= np.exp(0.5) <= high
    assert held[0] / 1500 < 0.925
    assert held[1] / 1500 > 0.935
