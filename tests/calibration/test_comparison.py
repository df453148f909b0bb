"""Two bundles on the same photos: intervals by simulation, and what a gate lets pass."""

from math import comb

import numpy as np
import pytest

from calibration.comparison import Comparison, compare, mcnemar, paired_interval
from calibration.offline.gate import Gate
from models.errors import UsageError

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
    held = [
        low <= gained - lost <= high
        for low, high in (paired_interval(int(g), int(x), rows) for g, x, _ in counts)
    ]
    assert np.mean(held) == pytest.approx(0.95, abs=0.015 + 3 * np.sqrt(0.95 * 0.05 / RUNS))


def test_it_agrees_with_the_bootstrap_over_photos() -> None:
    random = np.random.default_rng(2)
    gained, lost, rows = 60, 25, 2000
    drawn = random.multinomial(rows, np.array([gained, lost, rows - gained - lost]) / rows, 20_000)
    bootstrap = np.quantile((drawn[:, 0] - drawn[:, 1]) / rows, [0.025, 0.975])
    assert paired_interval(gained, lost, rows) == pytest.approx(tuple(bootstrap), abs=1e-3)


def test_the_size_interval_agrees_with_the_bootstrap_and_is_far_narrower_than_unpaired() -> None:
    random = np.random.default_rng(3)
    old = random.geometric(0.3, 1500)
    new = np.maximum(1, old + random.choice([-1, 0, 0, 0, 1], 1500))
    hits = np.ones(1500, dtype=bool)
    found = compare((hits, old), (hits, new)).size
    grown = new - old
    bootstrap = [grown[random.integers(0, 1500, 1500)].mean() for _ in range(4000)]
    assert found.ci95 == pytest.approx(tuple(np.quantile(bootstrap, [0.025, 0.975])), abs=4e-3)
    unpaired = 2 * 1.96 * np.sqrt(old.var() / 1500 + new.var() / 1500)
    assert found.ci95[1] - found.ci95[0] < unpaired / 3


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
    found = np.mean([mcnemar(int(gained), int(lost)) <= 0.05 for gained, lost, _ in counts])
    assert found <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / RUNS)


def test_a_comparison_holds_both_figures_and_their_change() -> None:
    (old_hits, _), (new_hits, _) = pair(6, 2, 80, 12)
    found = compare((old_hits, [2] * 100), (new_hits, [3] * 50 + [2] * 50), rule="average_k k=2")
    assert (found.rule, found.rows, found.gained, found.lost) == ("average_k k=2", 100, 6, 2)
    assert (found.hit_rate.old, found.hit_rate.new) == (0.82, 0.86)
    assert found.hit_rate.difference == pytest.approx(0.04)
    assert found.hit_rate.ci95 == paired_interval(6, 2, 100)
    assert found.p_value == mcnemar(6, 2)
    assert (found.size.old, found.size.new, found.size.difference) == (2.0, 2.5, 0.5)
    assert found.size.ci95[0] < 0.5 < found.size.ci95[1]


def test_the_same_bundle_twice_differs_by_nothing() -> None:
    sets = ([True, False, True], [1, 2, 3])
    found = compare(sets, sets)
    assert found.hit_rate.difference == found.size.difference == 0.0
    assert found.size.ci95 == (0.0, 0.0)
    assert found.hit_rate.ci95[0] == -found.hit_rate.ci95[1] < 0
    assert found.p_value == 1.0


def test_other_photos_or_none_are_refused() -> None:
    with pytest.raises(ValueError, match="same photos, got 1 and 2"):
        compare(([True], [1]), ([True, True], [1, 1]))
    for wrong in (([], []), ([1], [1]), ([True], [1, 2]), ([[True]], [[1]])):
        with pytest.raises(ValueError, match="hits must be bool"):
            compare(wrong, wrong)
    with pytest.raises(ValueError, match="counts of 3 rows"):
        paired_interval(2, 2, 3)


def found_with(gained: int, lost: int, rows: int = 1000, grown: float = 0.0) -> Comparison:
    old, new = pair(gained, lost, rows - gained - lost, 0)
    larger = (np.arange(rows) < grown * rows).astype(int)
    return compare(old, (new[0], np.array(new[1]) + larger), rule="average_k k=3")


@pytest.mark.parametrize(
    ("gate", "gained", "lost", "grown", "passes"),
    [
        (Gate(), 20, 20, 0.0, True),
        (Gate(), 10, 20, 0.0, True),  # worse, but not surely
        (Gate(), 5, 40, 0.0, False),
        (Gate(hit_rate_loss=0.03), 5, 40, 0.0, True),
        (Gate(hit_rate_loss=0.02), 5, 80, 0.0, False),
        (Gate(), 0, 0, 0.1, False),
        (Gate(size_growth=0.1), 0, 0, 0.1, True),
        (Gate(proof="no_worse", size_growth=0.1), 20, 20, 0.0, False),  # cannot be ruled out
        (Gate(proof="no_worse", hit_rate_loss=0.02), 20, 20, 0.0, True),
        (Gate(proof="no_worse", hit_rate_loss=0.02), 5, 25, 0.0, False),
        (Gate(proof="no_worse", hit_rate_loss=0.02, size_growth=0.1), 0, 0, 0.1, False),
        (Gate(proof="no_worse", hit_rate_loss=0.02, size_growth=0.2), 0, 0, 0.1, True),
        (Gate(min_rows=1001), 20, 0, 0.0, False),
        (Gate(min_rows=1000), 20, 0, 0.0, True),
    ],
)
def test_a_gate_closes_on_what_it_says(
    gate: Gate, gained: int, lost: int, grown: float, passes: bool
) -> None:
    assert (gate.reasons(found_with(gained, lost, grown=grown)) == []) == passes


def test_reasons_name_rule_figures_and_what_was_allowed() -> None:
    (loss,) = Gate(hit_rate_loss=0.01).reasons(found_with(5, 60))
    assert loss.startswith("average_k k=3: hit rate 0.9950 -> 0.9400, change -0.0550 (-0.07")
    assert loss.endswith("a loss of more than the 0.01 allowed is certain")
    (growth,) = Gate(proof="no_worse", hit_rate_loss=1).reasons(found_with(0, 0, grown=0.2))
    assert "mean set size 3.000 -> 3.200, change +0.2000" in growth
    assert growth.endswith("a growth of more than the 0 allowed cannot be ruled out")
    (rows,) = Gate(min_rows=5000).reasons(found_with(0, 0))
    assert rows == "average_k k=3: 1,000 photos, the gate needs 5,000"


def test_a_gate_stops_an_equal_bundle_and_passes_a_worse_one_as_rarely_as_it_says() -> None:
    random, rows = np.random.default_rng(5), 800
    equal = random.multinomial(rows, [0.05, 0.05, 0.9], 1000)
    worse = random.multinomial(rows, [0.04, 0.06, 0.9], 1000)
    bar = 3 * np.sqrt(0.025 * 0.975 / 1000)
    stopped = np.mean([bool(Gate().reasons(found_with(int(g), int(x), rows))) for g, x, _ in equal])
    strict = Gate(proof="no_worse", hit_rate_loss=0.02)
    passed = np.mean([not strict.reasons(found_with(int(g), int(x), rows)) for g, x, _ in worse])
    assert stopped <= 0.025 + 0.005 + bar
    assert passed <= 0.025 + 0.005 + bar
    assert stopped > 0
    assert passed > 0


def test_a_gate_file_is_read_and_its_mistakes_are_named() -> None:
    assert Gate.from_plain(None) == Gate()
    assert Gate.from_plain({}) == Gate()
    plain = {"hit_rate_loss": 0.005, "size_growth": 0, "proof": "no_worse", "min_rows": 500}
    assert Gate.from_plain(plain) == Gate(
        hit_rate_loss=0.005, size_growth=0, proof="no_worse", min_rows=500
    )
    for wrong, said in (
        ([1], "a gate file holds some of hit_rate_loss, size_growth, proof, min_rows"),
        ({"hit_loss": 1, 3: 4}, "a gate file has no hit_loss, 3; it may hold"),
        ({"hit_rate_loss": -0.1}, "hit_rate_loss must be a number of at least 0, got -0.1"),
        ({"hit_rate_loss": True}, "hit_rate_loss must be"),
        ({"size_growth": "much"}, "size_growth must be a number"),
        ({"size_growth": float("nan")}, "size_growth must be a number"),
        ({"proof": "maybe"}, "proof must be worse or no_worse, got 'maybe'"),
        ({"min_rows": 0}, "min_rows must be a whole number from 1, got 0"),
        ({"min_rows": 1.5}, "min_rows must be"),
    ):
        with pytest.raises(UsageError, match=said):
            Gate.from_plain(wrong)
