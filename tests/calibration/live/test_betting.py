"""The capital of players against the plain sum over all starting rows."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from calibration.live.betting import Capital


def by_definition(log_gains: np.ndarray) -> list[float]:
    """Capital after each row: a share 1/(k(k+1)) enters at row k and is multiplied from there."""
    capital = []
    for rows in range(1, len(log_gains) + 1):
        shares = [1 / (k * (k + 1)) for k in range(1, rows + 1)]
        grown = [
            share * np.exp(log_gains[k - 1 : rows].sum(axis=0)).mean()
            for k, share in enumerate(shares, start=1)
        ]
        capital.append(sum(grown) + 1 - sum(shares))
    return capital


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000), rows=st.integers(0, 12), players=st.integers(1, 4))
def test_shares_enter_at_every_row(seed: int, rows: int, players: int) -> None:
    gains = np.random.default_rng(seed).normal(0, 1, (rows, players))
    found = np.exp(Capital(players).play(gains))
    assert found == pytest.approx(by_definition(gains))


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 1000), cuts=st.lists(st.integers(0, 20), max_size=4))
def test_any_cut_into_batches_gives_the_same_capital(seed: int, cuts: list[int]) -> None:
    gains = np.random.default_rng(seed).normal(0, 1, (20, 3))
    whole, parts = Capital(3), Capital(3)
    expected = whole.play(gains)
    found = np.concatenate([parts.play(part) for part in np.split(gains, sorted(cuts))])
    assert found == pytest.approx(expected)
    assert parts.logs == pytest.approx(whole.logs)
    assert parts.rows == whole.rows == 20


def test_who_does_not_bet_keeps_the_capital() -> None:
    assert Capital(2).play(np.zeros((5000, 2))) == pytest.approx(0.0, abs=1e-9)


def test_endless_loss_and_endless_gain_stay_finite() -> None:
    gains = np.stack([np.full(100_000, -2.0), np.full(100_000, 0.6)], axis=1)
    found = Capital(2).play(gains)
    assert np.isfinite(found).all()
    assert found[-1] == pytest.approx(60_000 - 2 * np.log(2) + np.log(1.0), abs=1.0)


def test_the_wait_after_quiet_rows_grows_with_their_logarithm_only() -> None:
    def wait(quiet: int) -> int:
        capital = Capital(1)
        capital.play(np.full((quiet, 1), -0.02))
        return int(np.argmax(capital.play(np.full((2000, 1), 0.1)) >= np.log(20)))

    assert wait(100_000) - wait(1000) < 100  # about 2 log(100) / 0.1; with a product 19,800
    assert wait(1000) < 180
