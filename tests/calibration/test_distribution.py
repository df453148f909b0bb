"""How scores are distributed."""

import numpy as np
import pytest

from calibration.distribution import EDGES, in_bins, logsumexp


def test_bins_hold_their_lower_edge_and_nothing_is_left_out() -> None:
    scores = np.array([0.0, 1e-9, EDGES[1], 0.5, np.nextafter(0.5, 0.0), 1.0])
    counts = in_bins(scores)
    assert counts[0] == 2
    assert counts[1] == 1
    assert EDGES[-5] == 0.5
    assert counts[-5:].tolist() == [1, 0, 0, 0, 1]
    assert counts[-6] == 1
    assert counts.sum() == scores.size


def test_edges_are_four_to_a_factor_of_two() -> None:
    assert np.diff(np.log2(EDGES[1:])) == pytest.approx(np.full(80, 0.25))
    assert (EDGES[0], EDGES[1], EDGES[-1]) == (0.0, 2.0**-20, 1.0)


def test_logsumexp_does_not_overflow() -> None:
    found = logsumexp(np.array([[1000.0, 1000.0], [0.0, np.log(3.0)]], dtype=np.float32))
    assert found == pytest.approx([1000 + np.log(2.0), np.log(4.0)], rel=1e-6)
