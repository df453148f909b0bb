"""Ranks of split conformal prediction."""

import math
from fractions import Fraction

import numpy as np
import pytest

from florilege.calibration.conformal import binomial, conformal_rank, pac_rank, true_score_quantile


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.99, 0.123])
def test_the_rank_leaves_ceil_of_level_times_n_plus_1_rows_above(level: float) -> None:
    for rows in range(1, 300):
        above = math.ceil(Fraction(str(level)) * (rows + 1))
        assert conformal_rank(level, rows) == rows + 1 - above
    assert math.floor((1 - 0.9) * 10) == 0 < conformal_rank(0.9, 9)  # 0.0999... * 10


@pytest.mark.parametrize("largest_plant", [1, 2, 4, 9])
def test_the_rank_allows_for_a_new_plant_all_of_whose_photos_miss(largest_plant: int) -> None:
    for rows in range(1, 200):
        bound = Fraction("0.1") * (rows + largest_plant)
        ranks = [rank for rank in range(1, rows + 1) if rank - 1 + largest_plant <= bound]
        assert conformal_rank(0.9, rows, largest_plant=largest_plant) == max(ranks, default=0)


def test_the_quantile_is_the_score_at_the_rank_from_below() -> None:
    true = np.array([0.5, 0.1, np.inf, 0.3])
    quantiles = [true_score_quantile(true, rank) for rank in range(5)]
    assert quantiles == [-np.inf, 0.1, 0.3, 0.5, np.inf]


@pytest.mark.parametrize(("rows", "probability"), [(1, 0.3), (20, 0.1), (300, 0.05)])
def test_binomial_probabilities_equal_exact_arithmetic(rows: int, probability: float) -> None:
    exact = Fraction(str(probability))
    expected = [
        float(math.comb(rows, count) * exact**count * (1 - exact) ** (rows - count))
        for count in range(rows + 1)
    ]
    assert binomial(rows, probability) == pytest.approx(expected, rel=1e-9, abs=1e-300)


@pytest.mark.parametrize("rows", [5, 50, 500])
@pytest.mark.parametrize("delta", [0.05, 0.3])
def test_the_pac_rank_is_the_largest_that_keeps_the_promise(rows: int, delta: float) -> None:
    chances = binomial(rows, 0.1)
    rank = pac_rank(0.9, rows, delta)
    assert chances[rank:].sum() >= 1 - delta
    assert chances[rank + 1 :].sum() < 1 - delta
    assert rank <= conformal_rank(0.9, rows)


@pytest.mark.parametrize("delta", [1e-9, 1e-12, 1e-20, 1e-300])
def test_the_pac_rank_is_that_of_exact_arithmetic_for_the_smallest_delta(delta: float) -> None:
    rows, miss = 1000, Fraction(1, 10)
    fewer, rank = Fraction(0), -1
    while fewer <= Fraction(str(delta)):
        rank += 1
        fewer += math.comb(rows, rank) * miss**rank * (1 - miss) ** (rows - rank)
    assert pac_rank(0.9, rows, delta) == rank


@pytest.mark.parametrize("delta", [0.0, 1.0])
def test_a_delta_out_of_range_is_refused(delta: float) -> None:
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\)"):
        pac_rank(0.9, 10, delta)
