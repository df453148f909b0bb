"""Ranks of split conformal prediction."""

import math
from fractions import Fraction

import numpy as np
import pytest

from calibration.conformal import conformal_rank, true_score_quantile


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9, 0.95, 0.99, 0.123])
def test_the_rank_leaves_ceil_of_level_times_n_plus_1_rows_above(level: float) -> None:
    for rows in range(1, 300):
        above = math.ceil(Fraction(str(level)) * (rows + 1))
        assert conformal_rank(level, rows) == rows + 1 - above


def test_the_rank_is_exact_where_floating_point_is_not() -> None:
    assert math.floor((1 - 0.9) * 10) == 0  # 0.0999... * 10
    assert conformal_rank(0.9, 9) == 1


def test_the_quantile_is_the_score_at_the_rank_from_below() -> None:
    true = np.array([0.5, 0.1, np.inf, 0.3])
    assert [true_score_quantile(true, rank) for rank in range(5)] == [
        -np.inf,
        0.1,
        0.3,
        0.5,
        np.inf,
    ]
