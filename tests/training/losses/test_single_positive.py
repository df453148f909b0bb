"""Assume negative, positive BCE and expected positives."""

import pytest
import torch
from hypothesis import given, settings

from florilege.training.losses import (
    ExpectedPositive,
    expected_positive,
)
from tests.training.losses import oracles
from tests.training.losses.batches import Batch, batches
from tests.training.losses.examples import one_hot


@given(batches())
@settings(max_examples=40)
def test_expected_positive_is_its_formula_with_one_over_the_classes_as_beta(batch: Batch) -> None:
    rows, classes = batch.scores.shape
    targets = one_hot(batch.labels, classes)
    expected = oracles.expected_positive(
        batch.scores.tolist(), targets, 1.5, 1 / classes, [1.0] * classes
    )
    value = expected_positive(batch.scores, batch.labels, average_k=1.5)
    assert value.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
    total = ExpectedPositive(average_k=1.5, reduction="sum")(batch.scores, batch.labels)
    torch.testing.assert_close(total, value * rows)


def test_a_k_above_the_classes_is_refused() -> None:
    with pytest.raises(ValueError, match=r"average_k must be in \[1, 5\], got 5.5"):
        expected_positive(torch.zeros(1, 5), torch.tensor([0]), average_k=5.5)
