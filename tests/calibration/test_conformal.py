"""Ranks of split conformal prediction."""

import math
from fractions import Fraction
from functools import partial

import numpy as np
import pytest

from florilege.calibration.conformal import (
    _largest_expected_miss,
    binomial,
    conformal_rank,
    pac_rank,
    true_score_quantile,
)


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.99, 0.123])
def test_the_rank_leaves_ceil_of_level_times_n_plus_1_rows_above(level: float) -> None:
    for rows in range(1, 300):
        above = math.ceil(Fraction(str(level)) * (rows + 1))
        assert conformal_rank(level, rows) == rows + 1 - above
    assert math.floor((1 - 0.9) * 10) == 0 < conformal_rank(0.9, 9)  # 0.0999... * 10


@pytest.mark.parametrize(("rows", "candidates"), [(50, 2), (300, 8), (300, 200), (2000, 960)])
def test_the_rank_of_a_choice_is_the_largest_whose_worst_candidate_is_expected_to_hold(
    rows: int, candidates: int
) -> None:
    rank = conformal_rank(0.9, rows, candidates=candidates)
    assert _largest_expected_miss(rank, rows, candidates) <= 0.1
    assert _largest_expected_miss(rank + 1, rows, candidates) > 0.1
    assert rank < conformal_rank(0.9, rows)


@pytest.mark.parametrize("candidates", [2, 8, 60])
def test_no_dependence_between_candidates_exceeds_the_bound(candidates: int) -> None:
    """Independent shares of misses come close to the bound, equal ones stay far below."""
    random, rows, rank = np.random.default_rng(0), 200, 20
    bound = _largest_expected_miss(rank, rows, candidates)
    independent = random.beta(rank, rows + 1 - rank, (20_000, candidates)).max(axis=1)
    error = independent.std() / np.sqrt(len(independent))
    assert 0.93 * bound < independent.mean() < bound + 3 * error
    assert rank / (rows + 1) < bound


@pytest.mark.parametrize("candidates", [0, 1.5, -2])
def test_a_number_of_candidates_that_is_none_is_refused(candidates: float) -> None:
    for rank in (conformal_rank, partial(pac_rank, delta=0.1)):
        with pytest.raises(ValueError, match="candidates"):
            rank(0.9, 100, candidates=candidates)  # type: ignore[arg-type]


def test_each_candidate_gets_an_equal_part_of_delta() -> None:
    assert pac_rank(0.9, 500, 0.1, candidates=5) == pac_rank(0.9, 500, 0.02)


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
