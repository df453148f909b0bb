"""Two bundles on the same photos: intervals by simulation."""

from dataclasses import replace

import numpy as np
import pytest

from florilege.calibration.comparison import ThresholdOrigin, compare
from florilege.calibration.photo_groups import observation_numbers

RUNS = 3000


def pair(
    gained: int, lost: int, both: int, neither: int
) -> tuple[tuple[list[bool], list[int]], tuple[list[bool], list[int]]]:
    """Sets of two bundles, all of size 3."""
    old = [False] * gained + [True] * lost + [True] * both + [False] * neither
    new = [True] * gained + [False] * lost + [True] * both + [False] * neither
    return (old, [3] * len(old)), (new, [3] * len(new))


def hits_ci95(gained: int, lost: int, rows: int) -> tuple[float, float]:
    return compare(*pair(gained, lost, rows - gained - lost, 0)).hit_rate.ci95


@pytest.mark.parametrize(
    ("gained", "lost", "rows"), [(0.1, 0.1, 60), (0.06, 0.02, 300), (0.005, 0.02, 1000)]
)
def test_the_interval_holds_the_truth_19_times_in_20(gained: float, lost: float, rows: int) -> None:
    counts = np.random.default_rng(1).multinomial(rows, [gained, lost, 1 - gained - lost], RUNS)
    inside = [
        low <= gained - lost <= high
        for low, high in (hits_ci95(int(g), int(x), rows) for g, x, _ in counts)
    ]
    assert np.mean(inside) == pytest.approx(0.95, abs=0.015 + 3 * np.sqrt(0.95 * 0.05 / RUNS))


@pytest.mark.parametrize(("gained", "lost", "rows"), [(30, 10, 1000), (0, 0, 5), (5, 0, 5)])
def test_for_fixed_thresholds_it_is_of_bonett_and_price(gained: int, lost: int, rows: int) -> None:
    more, fewer = (gained + 1) / (rows + 2), (lost + 1) / (rows + 2)
    half = 1.959964 * np.sqrt((more + fewer - (more - fewer) ** 2) / (rows + 2))
    expected = (more - fewer - half, min(1.0, more - fewer + half))
    assert hits_ci95(gained, lost, rows) == pytest.approx(expected, abs=1e-6)


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


def test_equal_bundles_are_told_apart_as_rarely_as_promised() -> None:
    counts = np.random.default_rng(4).multinomial(400, [0.05, 0.05, 0.9], RUNS)
    change = [compare(*pair(int(g), int(x), 400 - g - x, 0)).p_value for g, x, _ in counts]
    assert np.mean(np.array(change) <= 0.05) == pytest.approx(0.05, abs=0.015)


def test_a_comparison_holds_both_figures_and_their_change() -> None:
    (old_hits, _), (new_hits, _) = pair(6, 2, 80, 12)
    change = compare((old_hits, [2] * 100), (new_hits, [3] * 50 + [2] * 50), rule="average_k k=2")
    assert (change.rule, change.rows, change.gained, change.lost) == ("average_k k=2", 100, 6, 2)
    assert (change.hit_rate.old, change.hit_rate.new) == (0.82, 0.86)
    assert change.hit_rate.difference == pytest.approx(0.04)
    assert change.p_value == pytest.approx(0.205, abs=0.01)
    assert (change.size.old, change.size.new, change.size.difference) == (2.0, 2.5, 0.5)
    assert change.size.ci95[0] < 0.5 < change.size.ci95[1]


def test_the_same_bundle_twice_differs_by_nothing_that_is_known() -> None:
    sets = ([True, False, True], [1, 2, 3])
    change = compare(sets, sets, growth=(-4, 4))
    assert change.hit_rate.difference == change.size.difference == 0.0
    assert change.hit_rate.ci95[0] == -change.hit_rate.ci95[1] < 0
    assert change.p_value == 1.0
    rare = 1 - 0.025 ** (1 / 3)  # three photos of which none differs
    assert change.size.ci95 == pytest.approx((-4 * rare, 4 * rare))
    assert compare(sets, sets, growth=(0, 0)).size.ci95 == (0, 0)  # two sets of exactly k
    assert compare(sets, sets).size.ci95 == (-np.inf, np.inf)
    one = compare(([True], [1]), ([True], [3]), growth=(-9, 9)).size
    assert (one.difference, one.ci95) == (2, (2 - 0.975 * 11, 2 + 0.975 * 7))


def test_the_error_is_that_of_all_photos_a_difference_rests_on() -> None:
    random, rows = np.random.default_rng(5), 4000
    old, new = (random.random(rows) < 0.8 for _ in range(2))
    sizes = [1.0 + random.poisson(2.0, rows) for _ in range(2)]

    def widths(*thresholds: ThresholdOrigin, data_sha256: str = "test") -> tuple[float, float]:
        change = compare(
            (old, sizes[0]), (new, sizes[1]), data_sha256=data_sha256, thresholds=thresholds
        )
        (low, high), (least, most) = change.hit_rate.ci95, change.size.ci95
        return (high - low) / 3.92, (most - least) / 3.92

    by_sizes = ThresholdOrigin(data_sha256="val", rows=500, fixes="sizes", hits_per_class=0.1)
    by_hits = replace(by_sizes, fixes="hits")
    hits_error, size_error = widths()
    expected = np.hypot(hits_error, 0.1 * np.sqrt(4 / 500)), np.hypot(size_error, np.sqrt(4 / 500))
    assert widths(by_sizes, by_sizes) == pytest.approx(expected, rel=0.05)
    apart = widths(by_sizes, replace(by_sizes, data_sha256="other val"))
    assert apart == pytest.approx(expected, rel=0.05)  # these networks have nothing in common
    share = np.sqrt(0.16 * 2 / 500)
    expected = np.hypot(hits_error, share), np.hypot(size_error, share / 0.1)
    assert widths(by_hits, by_hits) == pytest.approx(expected, rel=0.05)
    flat = replace(by_hits, hits_per_class=0.0)
    assert widths(flat, flat)[1] == pytest.approx(size_error)
    same = (old, sizes[0])
    twice = compare(same, same, data_sha256="test", thresholds=(by_hits, by_hits))
    assert twice.hit_rate.ci95 == compare(same, same).hit_rate.ci95  # the photos move both alike
    options = replace(by_sizes, fixes=None)
    assert widths(options, options) == widths()
    alike = ThresholdOrigin(data_sha256="test", rows=rows, fixes="sizes", hits_per_class=0.0)
    assert widths(alike, alike)[0] == pytest.approx(hits_error)


def test_four_photos_of_a_plant_are_no_four_plants() -> None:
    random, inside = np.random.default_rng(6), [0, 0]
    plants = observation_numbers([str(photo // 4) for photo in range(800)])
    for _ in range(600):
        alike = np.repeat(random.normal(size=200), 4) + 0.8 * random.normal(size=800)
        old, new = alike < 0.8, np.where(random.random(800) < 0.5, alike, -alike) < 0.8
        grown = np.where(alike > 1, 1.0, 0.0) - np.where(-alike > 1, 1.0, 0.0)
        for place, numbers in enumerate((plants, None)):
            change = compare((old, [3] * 800), (new, 3 + grown), observations=numbers)
            low, high = change.size.ci95
            inside[place] += low <= 0 <= high
    assert inside[0] / 600 == pytest.approx(0.95, abs=0.03)
    assert inside[1] / 600 < 0.85


def test_other_photos_or_none_are_refused() -> None:
    with pytest.raises(ValueError, match="same photos, got 1 and 2"):
        compare(([True], [1]), ([True, True], [1, 1]))
    for wrong in (([], []), ([1], [1]), ([True], [1, 2]), ([[True]], [[1]])):
        with pytest.raises(ValueError, match="hits"):
            compare(wrong, wrong)
