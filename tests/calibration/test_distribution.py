"""How scores are distributed."""

import numpy as np
import pytest

from florilege.calibration.scores import EDGES, LOGSUMEXP_BINS, DistributionOf, logsumexp


def test_bins_hold_their_lower_edge_and_nothing_is_left_out() -> None:
    scores = np.array([0.0, 1e-9, EDGES[1], 0.5, np.nextafter(0.5, 0.0), 1.0])
    gathered = DistributionOf()
    gathered.update(np.zeros((scores.size, 1), np.float32), scores[:, np.newaxis])
    counts = np.array(gathered.result().all_scores)
    assert gathered.result().best_scores == gathered.result().all_scores
    assert EDGES[-5] == 0.5
    assert counts[:2].tolist() == [2, 1]
    assert counts[-6:].tolist() == [1, 1, 0, 0, 0, 1]
    assert counts.sum() == scores.size


def test_edges_are_four_to_a_factor_of_two() -> None:
    assert np.diff(np.log2(EDGES[1:])) == pytest.approx(np.full(80, 0.25))
    assert (EDGES[0], EDGES[1], EDGES[-1]) == (0.0, 2.0**-20, 1.0)


@pytest.mark.parametrize("rows", [1, 2, LOGSUMEXP_BINS, LOGSUMEXP_BINS + 1, 300])
@pytest.mark.parametrize("one_value", [False, True])
def test_the_bins_of_log_sum_exp_hold_every_photo(rows: int, one_value: bool) -> None:
    random, gathered = np.random.default_rng(rows), DistributionOf()
    logits = random.normal(size=(1 if one_value else rows, 3)).astype(np.float32)
    gathered.update(np.broadcast_to(logits, (rows, 3)), np.full((rows, 3), 1 / 3))
    result = gathered.result()
    assert sum(result.logsumexp) == rows
    assert len(result.logsumexp) == len(result.logsumexp_edges)
    assert len(result.logsumexp) <= (1 if one_value else LOGSUMEXP_BINS)
    if not one_value:
        values = np.logaddexp.reduce(logits.astype(np.float64), axis=1)
        assert result.logsumexp_edges[0] == pytest.approx(values.min())
        assert (
            sum(result.logsumexp[-4:]) == (values >= result.logsumexp_edges[-4:][0] - 1e-12).sum()
        )
        assert rows // LOGSUMEXP_BINS <= min(result.logsumexp)
        assert max(result.logsumexp) <= rows // LOGSUMEXP_BINS + 2


def test_logsumexp_does_not_overflow() -> None:
    result = logsumexp(np.array([[1000.0, 1000.0], [0.0, np.log(3.0)]], dtype=np.float32))
    assert result == pytest.approx([1000 + np.log(2.0), np.log(4.0)], rel=1e-6)
