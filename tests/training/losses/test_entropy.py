"""Cross-entropy and focal loss."""

from functools import partial

import pytest
import torch
from hypothesis import given, settings

from tests.training.losses import oracles
from tests.training.losses.batches import Batch, batches
from training.losses import CrossEntropy, Focal, cross_entropy, focal

CLOSE = partial(pytest.approx, rel=1e-12, abs=1e-12)


@given(batches())
@settings(max_examples=60, deadline=None)
def test_both_losses_are_their_formulas(batch: Batch) -> None:
    plain = [oracles.cross_entropy(s, y) for s, y in batch.rows]
    assert cross_entropy(batch.scores, batch.labels).tolist() == CLOSE(plain)
    faded = [oracles.focal(s, y, 2.0) for s, y in batch.rows]
    assert focal(batch.scores, batch.labels).tolist() == CLOSE(faded)


def test_gamma_zero_is_cross_entropy() -> None:
    scores, labels = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 4
    torch.testing.assert_close(focal(scores, labels, gamma=0), cross_entropy(scores, labels))


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0, 2.0])
def test_the_slope_is_finite_where_the_probability_rounds_to_one(gamma: float) -> None:
    scores = torch.tensor([[50.0, 0.0], [200.0, -200.0]], requires_grad=True)
    torch.autograd.backward(focal(scores, torch.tensor([0, 0]), gamma=gamma).sum())
    assert scores.grad is not None
    assert torch.isfinite(scores.grad).all()


def test_a_masked_label_has_an_infinite_loss_as_in_cross_entropy() -> None:
    assert focal(torch.tensor([[0.0, -torch.inf]]), torch.tensor([1])).item() == torch.inf


def test_a_class_weight_stays_outside_of_the_fading() -> None:
    scores, labels = torch.randn(6, 4), torch.zeros(6, dtype=torch.int64)
    doubled = Focal(weight=[2.0, 1.0, 1.0, 1.0], reduction="none")(scores, labels)
    torch.testing.assert_close(doubled, 2 * focal(scores, labels))


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_smoothing_spreads_its_share_over_all_classes(smoothing: float) -> None:
    scores, labels = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 4
    entropies = -scores.log_softmax(1)  # (batch, classes)
    true = entropies.gather(1, labels.unsqueeze(1)).squeeze(1)
    expected = (1 - smoothing) * true + smoothing * entropies.mean(1)
    found = cross_entropy(scores, labels, label_smoothing=smoothing)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("smoothing", [-0.1, 1.0, float("nan")])
def test_a_smoothing_outside_of_its_range_is_refused(smoothing: float) -> None:
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\)"):
        CrossEntropy(label_smoothing=smoothing)
    with pytest.raises(ValueError, match=r"label_smoothing must be in \[0, 1\)"):
        cross_entropy(torch.zeros(1, 2), torch.tensor([0]), label_smoothing=smoothing)


def test_a_negative_gamma_is_refused() -> None:
    with pytest.raises(ValueError, match="gamma must be finite and at least 0, got -1"):
        Focal(gamma=-1)
