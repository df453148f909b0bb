"""LDAM and the margins of rare classes."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.training.losses import Ldam, ldam
from tests.training.losses import oracles
from tests.training.losses.batches import Batch, batches


@given(batches(), st.data())
@settings(max_examples=60)
def test_ldam_is_its_formula_for_hard_and_soft_labels(batch: Batch, data: st.DataObject) -> None:
    classes = batch.scores.shape[1]
    counts = data.draw(st.lists(st.integers(1, 10_000), min_size=classes, max_size=classes))
    expected = [oracles.ldam(s, y, counts, 0.5, 30.0) for s, y in batch.rows]
    value = ldam(batch.scores, batch.labels, class_counts=counts)
    assert value.tolist() == pytest.approx(expected, rel=1e-9, abs=1e-9)
    hard = torch.nn.functional.one_hot(batch.labels, classes).double()
    torch.testing.assert_close(
        ldam(batch.scores, hard, class_counts=counts), value, rtol=1e-9, atol=1e-9
    )


def test_margins_are_as_exact_as_float64_logits() -> None:
    loss = Ldam(class_counts=[1, 3], max_margin=0.3, scale=1).to(torch.float32)
    value = loss(torch.zeros(1, 2, dtype=torch.float64), torch.tensor([1]))
    lead = 0.3 / 3**0.25
    assert abs(value.item() - math.log1p(math.exp(lead))) < 1e-15


def test_a_masked_class_has_no_effect() -> None:
    scores = torch.tensor([[0.3, -torch.inf, 0.1]], dtype=torch.float64)
    value = ldam(scores, torch.tensor([0]), class_counts=[5, 5, 5], scale=1)
    expected = oracles.ldam([0.3, 0.1], 0, [5, 5], 0.5, 1)
    assert value.item() == pytest.approx(expected, rel=1e-12)


def test_counts_of_another_number_of_classes_are_refused() -> None:
    with pytest.raises(ValueError, match="one entry for each of 3 classes, got 2"):
        ldam(torch.zeros(1, 3), torch.tensor([0]), class_counts=[1, 2])
