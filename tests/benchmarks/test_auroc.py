"""Areas under the curve against all pairs, and their intervals by simulation."""

from math import erf

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.strangers.auroc import auroc, auroc_difference, auroc_interval, compare_methods

values = st.lists(st.sampled_from([0.0, 0.1, float(np.nextafter(0.1, 1)), 0.5, -np.inf, 2.0]),
                  min_size=1, max_size=12)  # fmt: skip
RUNS = 1000


@settings(max_examples=200)
@given(inside=values, outside=values)
def test_the_area_counts_all_pairs_and_ties_half(inside: list[float], outside: list[float]) -> None:
    pairs = [(a > b) + (a == b) / 2 for a in inside for b in outside]
    assert auroc(inside, outside) == pytest.approx(sum(pairs) / len(pairs))
    assert auroc(outside, inside) == pytest.approx(1 - auroc(inside, outside))


@settings(max_examples=100)
@given(inside=values, outside=values)
def test_the_interval_holds_the_area_and_stays_within_0_and_1(
    inside: list[float], outside: list[float]
) -> None:
    if min(len(inside), len(outside)) < 2:
        with pytest.raises(ValueError, match="at least 2 of each"):
            auroc_interval(inside, outside)
        return
    low, high = auroc_interval(inside, outside)
    assert 0 <= low <= auroc(inside, outside) + 1e-12
    assert auroc(inside, outside) - 1e-12 <= high <= 1
    assert high - low > 0.01 or len({*inside, *outside}) == 1  # one value tells nothing apart


@pytest.mark.parametrize(
    ("shift", "spread", "outside"), [(1, 1, 60), (2, 1, 60), (3, 1, 60), (2, 2.5, 60), (2, 1, 300)]
)
def test_the_interval_holds_the_true_area_19_times_in_20(
    shift: float, spread: float, outside: int
) -> None:
    random, total = np.random.default_rng(int(10 * shift + spread)), 0
    truth = (1 + erf(shift / np.sqrt(1 + spread**2) / np.sqrt(2))) / 2
    for _ in range(RUNS):
        result = auroc_interval(random.normal(shift, 1, 500), random.normal(0, spread, outside))
        total += result[0] <= truth <= result[1]
    assert 0.935 - 3 * np.sqrt(0.95 * 0.05 / RUNS) <= total / RUNS <= 0.985


def test_perfect_separation_of_few_photos_is_not_certain() -> None:
    low, high = auroc_interval(np.arange(2, 902), np.linspace(0, 1, 60))
    assert high == 1.0
    assert 0.85 < low < 0.97
    assert auroc_interval(np.arange(2, 902), np.linspace(0, 1, 600))[0] > low


def test_a_difference_on_the_same_photos_has_a_paired_interval() -> None:
    random, total, widths, apart = np.random.default_rng(1), 0, [], []
    for _ in range(RUNS):
        ours, others = random.normal(1.5, 1, 300), random.normal(0, 1, 80)
        first = (ours + random.normal(0, 0.3, 300), others + random.normal(0, 0.3, 80))
        second = (ours + random.normal(0, 0.3, 300), others + random.normal(0, 0.3, 80))
        difference, (low, high) = auroc_difference(first, second)
        assert difference == pytest.approx(auroc(*first) - auroc(*second))
        total += low <= 0 <= high
        widths.append(high - low)
        apart.append(auroc_interval(*first)[1] - auroc_interval(*first)[0])
    assert total / RUNS == pytest.approx(0.95, abs=0.01 + 3 * np.sqrt(0.95 * 0.05 / RUNS))
    assert np.mean(widths) < 0.7 * np.mean(apart)


def test_methods_stand_side_by_side_the_best_first() -> None:
    ours, others = np.linspace(0, 1, 200), np.linspace(-0.5, 0.5, 40)
    outcome = compare_methods(
        {"bad": -ours, "good": ours, "none": 0 * ours},
        {"bad": -others, "good": others, "none": 0 * others},
        share=0.05,
    )
    assert [result.method for result in outcome] == ["good", "none", "bad"]
    good, none = outcome[:2]
    assert (good.inside, good.outside) == (200, 40)
    assert (ours < good.threshold).sum() == 10
    assert good.caught == (others < good.threshold).mean() > 0.4
    assert good.caught_ci95[0] < good.caught < good.caught_ci95[1]
    assert good.ci95[0] < good.auroc < good.ci95[1]
    assert (none.auroc, none.caught) == (0.5, 0.0)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="at least 1 of each"):
        auroc([], [0.1])
    with pytest.raises(ValueError, match="no NaN"):
        auroc([0.1], [np.nan])
    with pytest.raises(ValueError, match="methods"):
        compare_methods({"a": [0.1]}, {"b": [0.1]})
    with pytest.raises(ValueError, match="same photos only"):
        auroc_difference(([1.0, 2.0], [0.0, 1.0]), ([1.0, 2.0], [0.0, 1.0, 2.0]))
