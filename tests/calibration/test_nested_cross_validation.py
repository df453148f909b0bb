"""The accuracy of a chosen candidate."""

import numpy as np
import pytest

from florilege.calibration.comparison import (
    FOLDS,
    choose,
    choose_simplest,
    interval_of_best,
)
from florilege.calibration.intervals import score_interval, wilson


def test_the_honest_rate_of_the_best_of_ten_equal_candidates_is_theirs() -> None:
    random, naive, honest, covers = np.random.default_rng(0), [], [], []
    for _ in range(400):
        hits = random.random((10, 600)) < 0.8
        best, honest_rate = choose(hits, seed=int(random.integers(1 << 30)))
        low, high = interval_of_best(hits[best], 10)
        naive.append(hits[best].mean())
        honest.append(honest_rate)
        covers.append(low <= 0.8 <= high)
    error = np.std(honest) / np.sqrt(400)
    assert np.mean(honest) == pytest.approx(0.8, abs=3 * error)
    assert np.mean(naive) > 0.8 + 0.01
    assert np.mean(covers) > 0.95 - 3 * np.sqrt(0.95 * 0.05 / 400)


@pytest.mark.parametrize("candidates", [1, 3])
def test_the_interval_of_the_best_holds_a_rate_that_hardly_any_row_misses(candidates: int) -> None:
    """One miss in 300 rows is usual where one row in 3,000 misses; Wilson's formula excludes it."""
    hits = np.arange(300) > 0
    assert score_interval(299 / 300, 300)[1] < 1 - 1 / 3000
    assert interval_of_best(hits, candidates)[1] >= wilson(299, 300)[1] > 1 - 1 / 3000
    assert interval_of_best(~hits, candidates)[0] <= wilson(1, 300)[0]


@pytest.mark.parametrize(
    ("hits", "folds", "expected"),
    [
        ([[1, 0, 1, 0], [1, 1, 1, 1]], FOLDS, (1, 1.0)),  # a clear winner keeps its rate
        ([[1, 0], [0, 1]], FOLDS, (0, 0.0)),  # the first of equal ones
        ([[1, 0], [0, 1]], 2, (0, 0.0)),  # each row is measured on the winner of the other one
        ([[0], [1]], FOLDS, (1, 0.0)),  # one row chooses nothing for itself
    ],
)
def test_each_fold_is_measured_on_the_winner_of_the_others(
    hits: list[list[int]], folds: int, expected: tuple[int, float]
) -> None:
    assert choose(hits, folds=folds) == expected


def test_in_the_other_folds_too_a_much_photographed_plant_has_one_vote() -> None:
    """Ten photos of one plant speak for the first candidate, a photo of three others against."""
    of_first = np.arange(13) < 10
    observations = [0] * 10 + [1, 2, 3]
    assert choose([of_first, ~of_first], observations=observations) == (1, 3 / 13)


@pytest.mark.parametrize("rows", [1, FOLDS - 1, FOLDS, FOLDS + 1, 3 * FOLDS + 1])
def test_a_single_candidate_keeps_its_rate_whatever_the_folds(rows: int) -> None:
    hits = np.arange(rows)[np.newaxis] % 3 == 0
    assert choose(hits) == (0, hits.mean())
    best, _ = choose(np.concatenate([hits, ~hits]))
    assert (hits, ~hits)[best].mean() >= 0.5


def test_what_gives_no_choice_is_refused() -> None:
    with pytest.raises(ValueError, match="shape"):
        choose([1, 0])
    with pytest.raises(ValueError, match="at least one"):
        choose(np.zeros((2, 0)))
    with pytest.raises(ValueError, match="folds"):
        choose([[1, 0]], folds=1)


def correlated(random: np.random.Generator, gain: float, rows: int = 500) -> np.ndarray:
    """Hits at two sizes of seven candidates: the first, and others that seldom differ from it."""
    first = random.random((1, rows, 2)) < 0.9
    differs = random.random((6, rows, 2)) < 0.06
    others = np.where(differs, random.random((6, rows, 2)) < 0.9 + gain / 0.06, first)
    return np.concatenate([first, others])


def test_equally_good_candidates_seldom_replace_the_first_and_the_gain_is_honest() -> None:
    random = np.random.default_rng(3)
    results = [choose_simplest(correlated(random, 0.0)) for _ in range(400)]
    gains = np.array([gain.mean() for _, gain in results])
    assert np.mean([index > 0 for index, _ in results]) < 0.35
    assert gains.min() >= 0
    assert gains.mean() < 0.002  # the best of six looks 0.006 better on the rows that chose it


def test_clearly_better_candidates_replace_the_first_and_the_gain_is_honest() -> None:
    random = np.random.default_rng(4)
    results = [choose_simplest(correlated(random, 0.006, rows=4000)) for _ in range(100)]
    gains = np.array([gain.mean() for _, gain in results])
    assert all(index > 0 for index, _ in results)
    assert gains.mean() == pytest.approx(0.006, abs=0.001)


def test_copies_of_each_row_choose_as_the_rows_alone() -> None:
    random = np.random.default_rng(5)
    for _ in range(20):
        alone = correlated(random, 0.004)
        plants = np.repeat(np.arange(500), 4)
        index, gain = choose_simplest(alone.repeat(4, axis=1), observations=plants)
        expected, expected_gain = choose_simplest(alone)
        assert index == expected
        assert gain == pytest.approx(expected_gain)


def test_one_plant_changes_nothing() -> None:
    index, gain = choose_simplest(
        correlated(np.random.default_rng(6), 0.006), observations=[1] * 500
    )
    assert (index, gain.tolist()) == (0, [0, 0])
