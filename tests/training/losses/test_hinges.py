"""The three top-k hinges."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from florilege.training.losses import (
    calibrated_top_k_hinge,
    convex_top_k_hinge,
    top_k_hinge,
)
from tests.training.losses import oracles
from tests.training.losses.batches import Batch, batches

Loss = Callable[..., Tensor]
Oracle = Callable[[oracles.Row, int, int], float]

PAIRS: list[tuple[Loss, Oracle]] = [
    (top_k_hinge, oracles.top_k_hinge),
    (convex_top_k_hinge, oracles.convex_top_k_hinge),
    (calibrated_top_k_hinge, oracles.calibrated_top_k_hinge),
]
ALL = pytest.mark.parametrize(("loss", "oracle"), PAIRS, ids=lambda f: getattr(f, "__name__", ""))


@ALL
def test_each_hinge_is_its_formula_for_hard_and_soft_labels(loss: Loss, oracle: Oracle) -> None:
    @given(batches())
    @settings(max_examples=60, deadline=None)
    def check(batch: Batch) -> None:
        expected = [oracle(s, y, batch.k) for s, y in batch.rows]
        value = loss(batch.scores, batch.labels, k=batch.k)
        torch.testing.assert_close(
            value, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-11
        )
        even = torch.full_like(batch.scores, 0.25)
        mixed = [
            0.25 * sum(oracle(s, c, batch.k) for c in range(len(s))) for s in batch.scores.tolist()
        ]
        torch.testing.assert_close(
            loss(batch.scores, even, k=batch.k),
            torch.tensor(mixed, dtype=torch.float64),
            rtol=1e-11,
            atol=1e-10,
        )

    check()


def test_lapin_leaves_the_label_out_of_the_ranking_and_yang_does_not() -> None:
    scores, label = torch.tensor([[4.0, 3.0, 2.0, 0.0]]), torch.tensor([1])
    assert top_k_hinge(scores, label, k=2).item() == 0.0  # 1 + 2 - 3
    assert calibrated_top_k_hinge(scores, label, k=1).item() == 1.0  # 1 + 3 - 3


@ALL
@pytest.mark.parametrize("k", [0, 4, 2.0])
def test_a_k_out_of_range_is_refused(loss: Loss, oracle: Oracle, k: int) -> None:
    with pytest.raises(ValueError, match="k must be"):
        loss(torch.zeros(1, 4), torch.tensor([0]), k=k)
