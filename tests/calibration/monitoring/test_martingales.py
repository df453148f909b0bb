"""False alarms and power of the tests without labels, by simulation with Monte-Carlo error bars;
the capital of players against the plain sum over all starting rows."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import florilege.calibration.monitoring.martingales
from florilege.calibration.monitoring.martingales import DistributionTest, MeanTest, _Capital
from florilege.calibration.scores import EDGES
from tests.calibration.oracles import in_bins
from tests.calibration.simulation import draw

RUNS = 300
ALPHA = 0.1
ALARM = np.log(1 / ALPHA)
BAR = 3 * np.sqrt(ALPHA * (1 - ALPHA) / RUNS)
POOL = draw(np.random.default_rng(0), 30_000).scores.max(axis=1)


def at_the_top(random: np.random.Generator) -> np.ndarray:
    return random.geometric(1 / 3.2, 500).astype(float)


def at_the_bottom(random: np.random.Generator) -> np.ndarray:
    return random.choice([1.0, 12.0], 500, p=[0.8545454545, 0.1454545455])  # mean 2.6


def against_the_player(random: np.random.Generator) -> np.ndarray:
    """Means at one end for a while, then at the other: none is outside, no two rows are alike."""
    high = (np.arange(500) // 50) % 2 == 0
    return np.where(high, random.geometric(1 / 3.2, 500), random.binomial(13, 0.2, 500))


@pytest.mark.parametrize("stream", [at_the_top, at_the_bottom, against_the_player])
def test_a_mean_at_the_edge_of_the_claim_alarms_as_rarely_as_promised(
    stream: Callable[[np.random.Generator], np.ndarray],
) -> None:
    random, alarms = np.random.default_rng(1), 0
    for _ in range(RUNS):
        alarms += MeanTest(low=2.6, high=3.2, largest=40).update(stream(random)).max() >= ALARM
    assert alarms / RUNS <= ALPHA + BAR


def test_rows_that_repeat_four_times_alarm_as_rarely_as_promised() -> None:
    random, alarms = np.random.default_rng(1), np.zeros(2)
    for _ in range(RUNS):
        rows = np.repeat(at_the_top(random)[:125], 4)
        for place, cluster_size in enumerate((4, 1)):
            test = MeanTest(low=2.6, high=3.2, largest=40, cluster_size=cluster_size)
            alarms[place] += test.update(rows).max() >= ALARM
    assert alarms[0] / RUNS <= ALPHA + BAR
    assert alarms[1] / RUNS > 2 * ALPHA


@pytest.mark.parametrize(("mean", "most"), [(4.2, 150), (1.5, 500)])
def test_a_mean_outside_is_noticed_soon(mean: float, most: int) -> None:
    random, waits = np.random.default_rng(2), []
    for _ in range(40):
        evidence = MeanTest(low=2.6, high=3.2, largest=40).update(random.geometric(1 / mean, 2000))
        assert evidence.max() >= ALARM
        waits.append(int(np.argmax(evidence >= ALARM)))
    assert np.median(waits) < most


def test_sizes_beyond_the_largest_cannot_bankrupt_anyone() -> None:
    assert np.isfinite(MeanTest(low=2, high=3, largest=5).update([5, 1e9, 0])).all()


@pytest.mark.parametrize("claim", [(-1, 2, 5), (3, 2, 5), (0, 0, 1), (2, 3, 2), (1, 2, np.inf)])
def test_a_claim_out_of_order_is_refused(claim: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match="mean"):
        MeanTest(low=claim[0], high=claim[1], largest=claim[2])


@pytest.mark.parametrize("rows", [20, 300])
def test_scores_drawn_like_the_counted_ones_alarm_as_rarely_as_promised(rows: int) -> None:
    random, alarms = np.random.default_rng(3), 0
    for _ in range(RUNS):
        values = random.choice(POOL, rows + 300)
        test = DistributionTest(EDGES.tolist(), in_bins(values[:rows]).tolist(), seed=0)
        test.seed = int(random.integers(2**31))
        alarms += test.update(values[rows:]).max() >= ALARM
    assert alarms / RUNS <= ALPHA + BAR


def test_ranks_among_all_values_so_far_are_uniform_and_independent() -> None:
    random = np.random.default_rng(4)
    values = random.choice([0.1, 0.2, 0.2, 0.9], 30_000)
    test = DistributionTest([0.0, 0.15, 0.5], np.bincount([0, 1, 1, 2]).tolist())
    parts = []
    for part in np.split(values, 30):
        parts.append(test.ranks(part))
        test.rows += len(part)  # as playing does: each row has its own chance
    ranks = np.concatenate(parts)
    bar = 4 * np.sqrt(0.1 * 0.9 / 30_000)
    assert np.histogram(ranks, 10, (0, 1))[0] / 30_000 == pytest.approx(0.1, abs=bar)
    assert abs(np.corrcoef(ranks[1:], ranks[:-1])[0, 1]) < 4 / np.sqrt(30_000)


def test_larger_values_have_smaller_ranks() -> None:
    test = DistributionTest([0.0, 0.5], [50, 50])
    assert test.ranks(np.array([0.9]))[0] < 0.51 < test.ranks(np.array([0.1]))[0]
    assert test.counts.tolist() == [51, 51]


@pytest.mark.parametrize("values", [POOL**2, np.minimum(1.0, POOL * 1.3), 0.5 + 0.02 * POOL])
def test_other_scores_are_noticed(values: np.ndarray) -> None:
    random = np.random.default_rng(5)
    for _ in range(10):
        test = DistributionTest(EDGES.tolist(), in_bins(random.choice(POOL, 2000)).tolist())
        assert test.update(random.choice(values, 1500)).max() >= ALARM


@settings(max_examples=40)
@given(cuts=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(0, 100))
def test_batches_and_a_saved_state_make_no_difference(cuts: list[int], seed: int) -> None:
    values = np.random.default_rng(seed).choice(POOL, 60)
    counts = in_bins(POOL[:100]).tolist()
    whole, parts = (DistributionTest(EDGES.tolist(), counts, seed=seed) for _ in range(2))
    expected, evidence = whole.update(values), list[float]()
    for part in np.split(values, sorted(cuts)):
        evidence += parts.update(part).tolist()
        saved, parts = parts.to_plain(), DistributionTest(EDGES.tolist(), counts, seed=seed)
        parts.restore(saved)
    assert evidence == pytest.approx(expected.tolist())
    assert parts.counts.tolist() == whole.counts.tolist()
    assert parts.logs == pytest.approx(whole.logs)
    assert (whole.counts.sum(), whole.rows, parts.rows) == (160, 60, 60)


@pytest.mark.parametrize("at_once", [1, 8, 24, 25])
def test_values_in_blocks_are_the_same_test(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    values = np.random.default_rng(6).choice(POOL, 25)
    first, second = (DistributionTest(EDGES.tolist(), in_bins(POOL[:50]).tolist()) for _ in "ab")
    expected = first.update(values)
    monkeypatch.setattr(florilege.calibration.monitoring.martingales, "ROWS_AT_ONCE", at_once)
    assert second.update(values) == pytest.approx(expected)
    assert second.counts.tolist() == first.counts.tolist()


def test_a_histogram_that_is_none_is_refused() -> None:
    for edges, counts in (([0.0, 1.0], [1]), ([0.0], [0]), ([0.0, 1.0], [2, -1])):
        with pytest.raises(ValueError, match="one count"):
            DistributionTest(edges, counts)
    with pytest.raises(ValueError, match="ascend"):
        DistributionTest([1.0, 1.0], [1, 1])


def test_the_state_of_another_test_is_refused() -> None:
    test = DistributionTest([0.0, 0.5], [1, 1])
    with pytest.raises(ValueError, match="2 bins"):
        test.restore({**test.to_plain(), "counts": [1]})
    with pytest.raises(ValueError, match="finite numbers"):
        test.restore(MeanTest(low=1, high=2, largest=3).to_plain() | {"counts": [1, 1]})


def by_definition(log_gains: np.ndarray) -> list[float]:
    """_Capital after each row: a share 1/(k(k+1)) enters at row k and is multiplied from there."""
    capital = []
    for rows in range(1, len(log_gains) + 1):
        shares = [1 / (k * (k + 1)) for k in range(1, rows + 1)]
        grown = [
            share * np.exp(log_gains[k - 1 : rows].sum(axis=0)).mean()
            for k, share in enumerate(shares, start=1)
        ]
        capital.append(sum(grown) + 1 - sum(shares))
    return capital


@settings(max_examples=60)
@given(seed=st.integers(0, 1000), rows=st.integers(0, 12), players=st.integers(1, 4))
def test_shares_enter_at_every_row(seed: int, rows: int, players: int) -> None:
    gains = np.random.default_rng(seed).normal(0, 1, (rows, players))
    evidence = np.exp(_Capital(players).play(gains))
    assert evidence == pytest.approx(by_definition(gains))


def test_endless_loss_and_endless_gain_stay_finite() -> None:
    gains = np.stack([np.full(100_000, -2.0), np.full(100_000, 0.6)], axis=1)
    evidence = _Capital(2).play(gains)
    assert np.isfinite(evidence).all()
    assert evidence[-1] == pytest.approx(60_000 - 2 * np.log(2) + np.log(1.0), abs=1.0)


def test_the_wait_after_quiet_rows_grows_with_their_logarithm_only() -> None:
    def wait(quiet: int) -> int:
        capital = _Capital(1)
        capital.play(np.full((quiet, 1), -0.02))
        return int(np.argmax(capital.play(np.full((2000, 1), 0.1)) >= np.log(20)))

    assert wait(100_000) - wait(1000) < 100  # about 2 log(100) / 0.1; with a product 19,800
    assert wait(1000) < 180
