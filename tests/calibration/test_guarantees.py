"""Promised mean sizes: their definitions, and the promises by simulation."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import florilege.calibration.threshold
from florilege.calibration.rules import calibrate
from florilege.calibration.threshold import LARGEST, THRESHOLDS, BestOfRows, _means_are_below
from tests.calibration import oracles
from tests.calibration.simulation import CLASSES, draw
from tests.calibration.strategies import Scores, average_ks, score_arrays

POOL = draw(np.random.default_rng(0), 40_000)


def mean_sizes(splits: int, rows: int, **settings: object) -> NDArray[np.float64]:
    """Mean size on all other rows, for many calibrations."""
    random, sizes = np.random.default_rng(7), []
    for _ in range(splits):
        selection = random.choice(len(POOL.labels), rows, replace=False)
        rule = calibrate("average_k", POOL.scores[selection], **settings)  # type: ignore[arg-type]  # mixed
        sizes.append(rule.sets(POOL.scores[random.choice(len(POOL.labels), 4000)]).sum() / 4000)
    return np.array(sizes)


@settings(max_examples=100)
@given(data=st.data(), scores=score_arrays(infinite=False), min_size=st.sampled_from([0, 1]))
def test_the_mean_guarantee_leaves_room_for_one_more_row_of_the_largest_set(
    data: st.DataObject, scores: Scores, min_size: int
) -> None:
    rows, classes = scores.shape
    average_k = data.draw(average_ks(classes, lowest=min_size))
    max_size = data.draw(st.integers(max(1, math.ceil(average_k)), classes))
    rule = calibrate(
        "average_k", scores, average_k=average_k, min_size=min_size, guarantee="mean",
        max_size=max_size,
    )  # fmt: skip
    lambda_val = rule.lambda_val
    assert lambda_val is not None
    allowed = Fraction(str(average_k)) * (rows + 1) - max_size
    total = int(rule.sets(scores).sum())
    assert total <= max(allowed, min_size * rows)
    if lambda_val == LARGEST or total == rows * max_size:
        return
    below = max(value for value in scores.astype(np.float64).ravel() if value < lambda_val)
    wider = sum(min(len(members), max_size) for members in oracles.sets(scores, below, min_size))
    assert wider > allowed  # the next lower threshold would be too low


def test_sizes_under_the_mean_guarantee_are_at_most_k_on_average() -> None:
    sizes = mean_sizes(300, 200, average_k=3, guarantee="mean", max_size=CLASSES // 2)
    error = sizes.std() / math.sqrt(len(sizes))
    assert sizes.mean() <= 3 + 3 * error
    assert sizes.mean() >= 3 - CLASSES / 2 / 200 - 3 * error  # and wastes no more than it says
    plain = mean_sizes(300, 200, average_k=3)
    assert plain.mean() > 3 - 3 * error
    assert (plain > 3).mean() > 0.4


@pytest.mark.parametrize("min_size", [0, 1])
def test_sizes_under_the_probability_guarantee_exceed_k_rarely(min_size: int) -> None:
    sizes = mean_sizes(
        60, 300, average_k=3, guarantee="probability", delta=0.1, max_size=15, min_size=min_size
    )
    assert (sizes > 3).mean() <= 0.1
    assert sizes.mean() > 2.3  # and is of use


def test_sets_under_a_guarantee_are_cut_down_to_the_largest_size() -> None:
    rule = calibrate(
        "average_k", np.linspace(0, 1, 600).reshape(100, 6), average_k=2.9, guarantee="mean",
        max_size=3,
    )  # fmt: skip
    assert rule.lambda_val is not None
    assert rule.lambda_val < 0.9
    scores = np.full((1, 6), 0.9)
    scores[0, 4] = 0.95
    assert np.flatnonzero(rule.sets(scores)[0]).tolist() == [0, 1, 4]


def test_too_few_rows_for_a_guarantee_give_the_best_class_alone() -> None:
    scores = np.random.default_rng(0).random((3, 8))
    for guarantee in ("mean", "probability"):
        rule = calibrate("average_k", scores, average_k=1.5, guarantee=guarantee, max_size=8)
        assert rule.lambda_val == LARGEST
        assert rule.sets(scores).sum(axis=1).tolist() == [1, 1, 1]


@pytest.mark.parametrize("candidates", [2, 8, 200])
def test_a_mean_of_chosen_scores_is_one_that_few_of_all_candidates_exceed(candidates: int) -> None:
    random = np.random.default_rng(candidates)
    best = BestOfRows(3000, 3, max_size=8, min_size=0)
    best.add(random.dirichlet(np.full(8, 0.3), 3000))
    lower = 3 * 0.99  # exceeded by a share d in sets of up to 8: 3 = lower + m d (8 - lower)
    share = 0.03 / (candidates * (8 - lower))
    expected = best.probability_threshold(lower, delta=share)
    assert best.mean_threshold(3, candidates=candidates) == expected
    assert expected > best.mean_threshold(3)


def mean_is_below(values: np.ndarray, bound: float, delta: float) -> bool:
    """One value after the other: each bet knows the values before it alone."""
    if bound >= 1:
        return True
    total, capital, mean, spread = len(values), 0.0, 0.5, 0.25
    variance = 0.25
    for count, value in enumerate(values.tolist(), 1):
        bet = min(math.sqrt(2 * math.log(1 / delta) / (total * variance)), 0.75 / (1 - bound))
        capital += math.log1p(bet * (bound - value))
        if capital >= math.log(1 / delta):
            return True
        mean = (mean * count + value) / (count + 1)
        spread += (value - mean) ** 2
        variance = spread / (count + 1)
    return False


@pytest.mark.parametrize("rows", [1, 3, 40, 333])
def test_tests_of_several_means_are_those_of_one_value_after_the_other(rows: int) -> None:
    random = np.random.default_rng(rows)
    values = random.random((60, rows)) * np.linspace(0.5, 1.3, 60)[:, np.newaxis].clip(0, 1)
    for bound, delta in ((0.3, 0.1), (0.5, 0.1), (0.5, 0.001), (1.0, 0.1)):
        below = _means_are_below(values, bound, delta)
        assert below.tolist() == [mean_is_below(each, bound, delta) for each in values]


def test_the_bet_against_a_true_claim_is_won_no_more_often_than_delta() -> None:
    random = np.random.default_rng(1)
    for draw_values in (
        lambda: random.random(200),
        lambda: (random.random(200) < 0.5).astype(float),
        lambda: random.beta(0.3, 0.3, 200),
    ):
        wins = _means_are_below(np.stack([draw_values() for _ in range(1500)]), 0.5, 0.1).mean()
        assert wins <= 0.1 + 3 * math.sqrt(0.1 * 0.9 / 1500)


def test_the_bet_against_a_false_claim_is_won() -> None:
    random = np.random.default_rng(2)
    assert _means_are_below(random.random((100, 500)) * 0.8, 0.5, 0.1).mean() > 0.95
    assert not _means_are_below(np.full((1, 500), 0.6), 0.5, 0.1)[0]
    assert _means_are_below(np.ones((1, 3)), 1.0, 0.1)[0]


def test_the_thresholds_tried_do_not_depend_on_the_data_and_fall() -> None:
    tried = THRESHOLDS
    assert tried[0] > 1.0
    assert 1.0 in tried
    assert (np.diff(tried) < 0).all()
    assert 2.0**-24 in tried
    assert tried[-1] == 2.0**-240


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"guarantee": "maybe"}, "guarantee must be mean or probability"),
        ({"guarantee": "mean", "max_size": 1}, r"max_size must be in \[2, 3\]"),
        ({"guarantee": "mean", "max_size": 4}, r"max_size must be in \[2, 3\]"),
        ({"guarantee": "probability", "delta": 0.0}, "delta"),
        ({"guarantee": "probability", "delta": 1.0}, "delta"),
    ],
)
def test_what_no_guarantee_can_use_is_refused(changes: dict[str, object], message: str) -> None:
    scores = [[0.5, 0.3, 0.2]]
    with pytest.raises(ValueError, match=message):
        calibrate("average_k", scores, average_k=2, **changes)  # type: ignore[arg-type]  # mixed


def test_scores_outside_0_to_1_have_no_probability_guarantee() -> None:
    for scores in ([[1.01, 0.3]], [[0.5, -0.01]]):
        with pytest.raises(ValueError, match=r"scores must be in \[0, 1\]"):
            calibrate("average_k", scores, average_k=1, guarantee="probability")


@pytest.mark.parametrize("at_once", [1, 5, 16, 10_000])
def test_a_size_that_every_set_keeps_goes_down_to_the_last_threshold(
    monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    thresholds = THRESHOLDS
    assert thresholds.size % 5 == 1  # a last block of one
    monkeypatch.setattr(florilege.calibration.threshold, "AT_ONCE", at_once)
    best = BestOfRows(3, 2, max_size=2, min_size=0)
    best.add(np.array([[0.5, 0.2, 0.1], [0.9, thresholds[-1], 0.0], [0.3, 0.3, 0.3]]))
    assert best.probability_threshold(2, delta=0.1) == thresholds[-1]
