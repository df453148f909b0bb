"""Two bundles on the same photos: intervals by simulation."""

from math import comb

import numpy as np
import pytest

from florilege.calibration.comparison import compare, mcnemar, paired_interval

RUNS = 3000


def pair(
    gained: int, lost: int, both: int, neither: int
) -> tuple[tuple[list[bool], list[int]], tuple[list[bool], list[int]]]:
    """Sets of two bundles, all of size 3."""
    old = [False] * gained + [True] * lost + [True] * both + [False] * neither
    new = [True] * gained + [False] * lost + [True] * both + [False] * neither
    return (old, [3] * len(old)), (new, [3] * len(new))


@pytest.mark.parametrize(
    ("gained", "lost", "rows"), [(0.1, 0.1, 60), (0.06, 0.02, 300), (0.005, 0.02, 1000)]
)
def test_the_interval_holds_the_true_difference_19_times_in_20(
    gained: float, lost: float, rows: int
) -> None:
    counts = np.random.default_rng(1).multinomial(rows, [gained, lost, 1 - gained - lost], RUNS)
    inside = [
        low <= gained - lost <= high
        for low, high in (paired_interval(int(g), int(x), rows) for g, x, _ in counts)
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015 + 3 * np.sqrt(0.95 * 0.05 / RUNS))


def test_it_agrees_with_the_bootstrap_over_photos() -> None:
    random = np.random.default_rng(2)
    gained, lost, rows = 60, 25, 2000
    draws = random.multinomial(rows, np.array([gained, lost, rows - gained - lost]) / rows, 20_000)
    bootstrap = np.quantile((draws[:, 0] - draws[:, 1]) / rows, [0.025, 0.975])
    assert paired_interval(gained, lost, rows) == pytest.approx(tuple(bootstrap), abs=1e-3)


def test_the_size_interval_agrees_with_the_bootstrap_and_is_far_narrower_than_unpaired() -> None:
    random = np.random.default_rng(3)
    old = random.geometric(0.3, 1500)
    new = np.maximum(1, old + random.choice([-1, 0, 0, 0, 1], 1500))
    hits = np.ones(1500, dtype=bool)
    change = compare((hits, old), (hits, new)).size
    grown = new - old
    bootstrap = [grown[random.integers(0, 1500, 1500)].mean() for _ in range(4000)]
    assert change.ci95 == pytest.approx(tuple(np.quantile(bootstrap, [0.025, 0.975])), abs=4e-3)
    unpaired = 2 * 1.96 * np.sqrt(old.var() / 1500 + new.var() / 1500)
    assert change.ci95[1] - change.ci95[0] < unpaired / 3


def test_mcnemar_sums_the_binomial_tails() -> None:
    for gained in range(12):
        for lost in range(12):
            changed = gained + lost
            tail = sum(comb(changed, count) for count in range(min(gained, lost) + 1))
            assert mcnemar(gained, lost) == pytest.approx(min(1.0, 2 * tail / 2**changed))
    assert mcnemar(3000, 2600) < 1e-6
    assert mcnemar(5000, 0) == 0.0


def test_equal_bundles_are_told_apart_as_rarely_as_promised() -> None:
    counts = np.random.default_rng(4).multinomial(400, [0.05, 0.05, 0.9], RUNS)
    share = np.mean([mcnemar(int(gained), int(lost)) <= 0.05 for gained, lost, _ in counts])
    assert share <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / RUNS)


def test_a_comparison_holds_both_figures_and_their_change() -> None:
    (old_hits, _), (new_hits, _) = pair(6, 2, 80, 12)
    change = compare((old_hits, [2] * 100), (new_hits, [3] * 50 + [2] * 50), rule="average_k k=2")
    assert (change.rule, change.rows, change.gained, change.lost) == ("average_k k=2", 100, 6, 2)
    assert (change.hit_rate.old, change.hit_rate.new) == (0.82, 0.86)
    assert change.hit_rate.difference == pytest.approx(0.04)
    assert change.hit_rate.ci95 == paired_interval(6, 2, 100)
    assert change.p_value == mcnemar(6, 2)
    assert (change.size.old, change.size.new, change.size.difference) == (2.0, 2.5, 0.5)
    assert change.size.ci95[0] < 0.5 < change.size.ci95[1]


def test_the_same_bundle_twice_differs_by_nothing() -> None:
    sets = ([True, False, True], [1, 2, 3])
    change = compare(sets, sets)
    assert change.hit_rate.difference == change.size.difference == 0.0
    assert change.size.ci95 == (0.0, 0.0)
    assert change.hit_rate.ci95[0] == -change.hit_rate.ci95[1] < 0
    assert change.p_value == 1.0


def test_other_photos_or_none_are_refused() -> None:
    with pytest.raises(ValueError, match="same photos, got 1 and 2"):
        compare(([True], [1]), ([True, True], [1, 1]))
    for wrong in (([], []), ([1], [1]), ([True], [1, 2]), ([[True]], [[1]])):
        with pytest.raises(ValueError, match="hits must be bool"):
            compare(wrong, wrong)
    with pytest.raises(ValueError, match="counts of 3 rows"):
        paired_interval(2, 2, 3)
