"""The average-K threshold against a plain sort."""

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.calibration.threshold import (
    RealNumber,
    Threshold,
    average_k_threshold,
    exact_rank,
)
from tests.calibration.oracles import average_k_cut
from tests.calibration.strategies import Scores, average_ks, score_arrays

ABOVE_ONE = math.nextafter(1.0, 2.0)
SINGLE = np.float32(0.3)
ABOVE_SINGLE = np.nextafter(SINGLE, np.float32(1))
BEFORE_ROW_2 = [[0.5, 0.5], [0.5, 0.5]]


@settings(max_examples=200)
@given(data=st.data(), scores=score_arrays())
def test_the_threshold_is_that_of_a_full_sort(data: st.DataObject, scores: Scores) -> None:
    average_k = data.draw(average_ks(scores.shape[1]))
    threshold = average_k_threshold(scores, average_k)
    expected = average_k_cut(scores, average_k)
    assert threshold.lambda_val == expected.lambda_val
    size = int((scores.astype(np.float64) >= threshold.lambda_val).sum())
    assert size == expected.kept  # by a comparison in double precision
    assert (threshold.achieved, threshold.rows) == (size / len(scores), len(scores))
    rank = math.floor(Fraction(str(average_k)) * len(scores))
    assert threshold.ties == max(0, size - rank)
    assert math.isfinite(threshold.lambda_val)


def test_distinct_scores_give_the_asked_mean_size_exactly() -> None:
    scores = np.random.default_rng(0).permutation(5000).reshape(500, 10) / 5000
    for average_k in (0.002, 0.5, 1, 2.5, 3, 9.998):
        threshold = average_k_threshold(scores, average_k)
        assert threshold.achieved == pytest.approx(average_k, abs=1e-12)
        assert threshold.ties == 0


@pytest.mark.parametrize(
    ("scores", "average_k", "lambda_val", "achieved", "ties"),
    [
        ([[0.25, 0.5], [0.125, 0.0]], 0, math.nextafter(0.5, 1.0), 0.0, 0),  # above the largest
        ([[0.25, 0.5], [0.125, 0.0]], 0.49, math.nextafter(0.5, 1.0), 0.0, 0),
        ([[0.25, 0.5], [0.125, 0.75]], 2, 0.125, 2.0, 0),  # nothing is cut: the smallest
        ([[0.25, -np.inf], [-np.inf, -np.inf]], 2, 0.25, 0.5, 0),  # -inf is never kept
        ([[0.5, 0.3], [0.3, 0.3]], 1, 0.3, 2.0, 2),  # ties at the cut are kept and counted
        ([[3, 1], [2, 0]], 1, 1.5, 1.0, 0),  # whole numbers are scores too
        ([[ABOVE_ONE, 1.0]], 1, ABOVE_ONE, 1.0, 0),  # the midpoint rounds down, to even
        ([[SINGLE, ABOVE_SINGLE]], 1, (float(SINGLE) + float(ABOVE_SINGLE)) / 2, 1.0, 0),
        ([[1.75e308, 1.5e308]], 1, 1.625e308, 1.0, 0),  # whose sum overflows
    ],
)
def test_the_threshold_at_the_ends_and_at_ties(
    scores: list[list[float]], average_k: float, lambda_val: float, achieved: float, ties: int
) -> None:
    rows = len(scores)
    expected = Threshold(lambda_val=lambda_val, achieved=achieved, rows=rows, ties=ties)
    assert average_k_threshold(scores, average_k) == expected


@pytest.mark.parametrize(
    ("average_k", "rows", "rank"),
    [(0.7, 700, 490), (2.3, 100, 230), (1.1, 10, 11), (0.29, 100, 29), (3, 7, 21), (1 / 3, 3, 0),
     (Fraction(1, 3), 3, 1), (Decimal("0.7"), 700, 490), (np.float32(0.7), 700, 490)],
)  # fmt: skip
def test_the_rank_is_of_the_number_as_written(average_k: RealNumber, rows: int, rank: int) -> None:
    assert exact_rank(average_k, rows) == rank


@pytest.mark.parametrize(
    ("scores", "average_k", "message"),
    [
        *((np.zeros(shape), 1, "shape") for shape in ((0, 3), (3, 0), (3,), (2, 2, 2))),
        *((np.zeros((2, 3)), k, r"average_k must be in \[0, 3\]") for k in (-0.1, 3.1, np.nan)),
        (np.array([[np.finfo(np.float64).max]]), 0, "largest float64"),  # no room above
        *(([*BEFORE_ROW_2, [0.5, bad]], 1, "row 2, class 1") for bad in (np.nan, np.inf)),
    ],
)
def test_wrong_arguments_are_named(scores: Scores, average_k: float, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        average_k_threshold(scores, average_k)


def test_the_input_is_left_alone() -> None:
    scores = np.array([[3.0, 1.0], [2.0, 0.0]])
    before = scores.copy()
    average_k_threshold(scores, 1)
    assert (scores == before).all()


@settings(max_examples=100)
@given(scores=score_arrays(classes=4), seed=st.integers(0, 9))
def test_the_order_of_rows_and_classes_does_not_matter(scores: Scores, seed: int) -> None:
    random = np.random.default_rng(seed)
    shuffled = scores[random.permutation(len(scores))][:, random.permutation(4)]
    assert average_k_threshold(shuffled, 1.7) == average_k_threshold(scores, 1.7)


def test_a_larger_k_never_raises_the_threshold() -> None:
    scores = np.random.default_rng(2).normal(size=(40, 7)).round(1)
    steps = [average_k_threshold(scores, step / 10).lambda_val for step in range(71)]
    assert steps == sorted(steps, reverse=True)
