"""Intervals for the hit rate from labelled requests, checked by simulation and by exact sums."""

from math import comb
from typing import Any

import numpy as np
import pytest

from calibration.live.audit import anytime_interval, audit, clopper_pearson

RUNS = 2000


def at_most(hits: int, rows: int, p: float) -> float:
    return sum(
        comb(rows, count) * p**count * (1 - p) ** (rows - count) for count in range(hits + 1)
    )


@pytest.mark.parametrize("rows", [1, 2, 7, 40])
@pytest.mark.parametrize("level", [0.8, 0.95])
def test_the_exact_interval_solves_the_binomial_tails(rows: int, level: float) -> None:
    for hits in range(rows + 1):
        low, high = clopper_pearson(hits, rows, level=level)
        assert low <= hits / rows <= high
        if hits:
            assert 1 - at_most(hits - 1, rows, low) == pytest.approx((1 - level) / 2)
        else:
            assert low == 0.0
        if hits < rows:
            assert at_most(hits, rows, high) == pytest.approx((1 - level) / 2)
        else:
            assert high == 1.0


@pytest.mark.parametrize("p", [0.5, 0.93, 0.99])
def test_the_exact_interval_holds_the_truth_as_often_as_promised(p: float) -> None:
    for rows in (20, 150):
        chances = [
            comb(rows, hits) * p**hits * (1 - p) ** (rows - hits) for hits in range(rows + 1)
        ]
        held = 0.0
        for hits, chance in enumerate(chances):
            low, high = clopper_pearson(hits, rows)
            held += chance * (low <= p <= high)
        assert held >= 0.95


@pytest.mark.parametrize("p", [0.5, 0.93])
def test_all_intervals_on_the_way_hold_the_truth_as_often_as_promised(p: float) -> None:
    random, rows, level, left_out, naive = np.random.default_rng(1), 300, 0.9, 0, 0
    table = {
        (hits, count): anytime_interval(hits, count, level=level)
        for count in range(1, rows + 1)
        for hits in range(count + 1)
        if abs(hits / count - p) < 6 * np.sqrt(0.25 / count)
    }
    for _ in range(RUNS):
        hits = (random.random(rows) < p).cumsum()
        ends = [table[int(found), count] for count, found in enumerate(hits, start=1)]
        left_out += any(not low <= p <= high for low, high in ends)
        count = np.arange(1, rows + 1)
        share = hits / count
        half = 1.645 * np.sqrt(np.maximum(share * (1 - share), 1e-9) / count)
        naive += bool((abs(share - p) > half)[20:].any())
    assert left_out / RUNS <= 1 - level + 3 * np.sqrt(level * (1 - level) / RUNS)
    assert left_out > 0
    assert naive / RUNS > 0.3  # looking again and again at intervals for one look


def test_the_anytime_interval_is_where_the_capital_stays_below_its_limit() -> None:
    grid = np.linspace(0, 1, 2_000_001)[1:-1]
    for hits, rows in ((3, 10), (0, 5), (5, 5), (180, 200)):
        spread = np.exp(hits * np.log(grid) + (rows - hits) * np.log1p(-grid))
        held = grid[spread > spread.mean() / 20]  # a uniform spread against each p
        low, high = anytime_interval(hits, rows)
        assert (low, high) == pytest.approx((held.min(), held.max()), abs=2e-6)


def test_intervals_shrink_with_rows_and_grow_with_the_level() -> None:
    for interval in (clopper_pearson, anytime_interval):
        widths = [np.diff(interval(9 * n, 10 * n))[0] for n in (1, 10, 100, 1000)]
        assert (np.diff(widths) < 0).all()
        assert np.diff(interval(90, 100, level=0.99)) > np.diff(interval(90, 100))
    fixed, anytime = clopper_pearson(90, 100), anytime_interval(90, 100)
    assert anytime[0] < fixed[0] < fixed[1] < anytime[1]


def test_large_samples_are_no_trouble() -> None:
    low, high = clopper_pearson(93_000, 100_000)
    assert (low, high) == pytest.approx((0.93 - 0.00159, 0.93 + 0.00158), abs=5e-5)
    assert anytime_interval(93_000, 100_000)[0] == pytest.approx(0.927, abs=1e-3)


def test_an_audit_counts_hits_and_requests_without_a_label() -> None:
    rows: list[dict[str, Any]] = [
        {"class_id": "1", "set": ["1", "2"]},
        {"class_id": "3", "set": ("1", "2")},
        {"class_id": None, "set": ["1"]},
        {"class_id": "2", "set": ["2"], "more": "is ignored"},
    ]
    found = audit(rows, level=0.9)
    assert (found.rows, found.hits, found.skipped, found.level) == (3, 2, 1, 0.9)
    assert found.hit_rate == pytest.approx(2 / 3)
    assert found.fixed == clopper_pearson(2, 3, level=0.9)
    assert found.anytime == anytime_interval(2, 3, level=0.9)


def test_wrong_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="no request is labelled"):
        audit([{"class_id": None, "set": []}])
    with pytest.raises(ValueError, match="feedback row 1 must have class_id and set"):
        audit([{"class_id": "1", "set": []}, {"class_id": "1"}])
    with pytest.raises(ValueError, match="feedback row 0"):
        audit([{"class_id": "1", "set": "1"}])
    for hits, rows, level in ((-1, 5, 0.9), (6, 5, 0.9), (0, 0, 0.9), (1, 5, 1.0)):
        for interval in (clopper_pearson, anytime_interval):
            with pytest.raises(ValueError, match="hits must be in"):
                interval(hits, rows, level=level)
