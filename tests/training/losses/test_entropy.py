"""Cross-entropy, focal loss and generalised cross-entropy."""

import math

import pytest
import torch

from florilege.training.losses import (
    cross_entropy,
    focal,
    generalised_cross_entropy,
)
from tests.training.losses import oracles


@pytest.mark.parametrize("q", [1e-3, 0.3, 0.7, 1.0])
@pytest.mark.parametrize("soft", [False, True])
def test_in_float32_the_slope_of_a_doubtful_label_is_small_and_not_lost(
    q: float, soft: bool
) -> None:
    leads = [1e4, 88.0, 30.0, 1.0, 0.0, -1.0, -12.0, -30.0, -80.0, -1e4]
    scores = torch.tensor([[lead, 0.0, 0.0] for lead in leads], requires_grad=True)
    labels = torch.zeros(len(leads), dtype=torch.int64)
    options = torch.nn.functional.one_hot(labels, 3).float() if soft else labels
    (slope,) = torch.autograd.grad(generalised_cross_entropy(scores, options, q=q).sum(), scores)
    for lead, result in zip(leads, slope[:, 0].tolist(), strict=True):
        entropy = oracles.cross_entropy([lead, 0.0, 0.0], 0)
        others = 2 / (2 + math.exp(lead)) if lead < 700 else 0.0
        assert result == pytest.approx(-math.exp(-q * entropy) * others, rel=2e-5, abs=1e-7)
        if -50 < -q * entropy < -5:
            assert result == pytest.approx(-math.exp(-q * entropy) * others, rel=2e-5)


def test_a_masked_label_costs_one_over_q_and_pulls_nothing() -> None:
    scores = torch.tensor([[0.0, -torch.inf, 1.0]], requires_grad=True)
    loss = generalised_cross_entropy(scores, torch.tensor([1]), q=0.5)
    (slope,) = torch.autograd.grad(loss.sum(), scores)
    assert loss.tolist() == [2.0]
    assert slope.tolist() == [[0.0, 0.0, 0.0]]


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0, 2.0])
def test_the_slope_is_finite_where_the_probability_rounds_to_one(gamma: float) -> None:
    scores = torch.tensor([[50.0, 0.0], [200.0, -200.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(focal(scores, torch.tensor([0, 0]), gamma=gamma).sum(), scores)
    assert torch.isfinite(slope).all()


def test_a_masked_label_has_an_infinite_loss_as_in_cross_entropy() -> None:
    assert focal(torch.tensor([[0.0, -torch.inf]]), torch.tensor([1])).item() == torch.inf


def test_smoothing_spreads_its_share_over_all_classes() -> None:
    scores, labels = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 4
    entropies = -scores.log_softmax(1)  # (batch, classes)
    true = entropies.gather(1, labels.unsqueeze(1)).squeeze(1)
    result = cross_entropy(scores, labels, label_smoothing=0.3)
    torch.testing.assert_close(result, 0.7 * true + 0.3 * entropies.mean(1))
