"""Cross-entropy, focal loss and generalised cross-entropy."""

import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.training.losses import (
    cross_entropy,
    focal,
    generalised_cross_entropy,
)
from tests.training.losses import oracles
from tests.training.losses.batches import Batch, batches


@given(batches(extreme=False), st.sampled_from([0.1, 0.7, 1.0]))
@settings(max_examples=40, deadline=None)
def test_a_label_of_probability_p_pulls_p_to_the_q_as_hard_as_in_cross_entropy(
    batch: Batch, q: float
) -> None:
    gradients = []
    for loss in (partial(generalised_cross_entropy, q=q), cross_entropy):
        scores = batch.scores.clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(scores, batch.labels).sum(), scores)
        gradients.append(slope)
    powers = [math.exp(-q * oracles.cross_entropy(s, y)) for s, y in batch.rows]
    fading = torch.tensor(powers, dtype=torch.float64).unsqueeze(1)
    torch.testing.assert_close(gradients[0], fading * gradients[1], rtol=1e-10, atol=1e-300)


def test_a_small_q_is_cross_entropy_and_q_one_is_the_probability_of_an_error() -> None:
    scores, labels = torch.randn(6, 4, dtype=torch.float64) * 5, torch.arange(6) % 4
    entropy = cross_entropy(scores, labels)
    torch.testing.assert_close(generalised_cross_entropy(scores, labels, q=1e-14), entropy)
    error = 1 - scores.softmax(1).gather(1, labels.unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(generalised_cross_entropy(scores, labels, q=1), error)


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


def test_gamma_zero_is_cross_entropy() -> None:
    scores, labels = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 4
    torch.testing.assert_close(focal(scores, labels, gamma=0), cross_entropy(scores, labels))


@pytest.mark.parametrize("gamma", [0.1, 0.5, 1.0, 2.0])
def test_the_slope_is_finite_where_the_probability_rounds_to_one(gamma: float) -> None:
    scores = torch.tensor([[50.0, 0.0], [200.0, -200.0]], requires_grad=True)
    (slope,) = torch.autograd.grad(focal(scores, torch.tensor([0, 0]), gamma=gamma).sum(), scores)
    assert torch.isfinite(slope).all()


def test_a_masked_label_has_an_infinite_loss_as_in_cross_entropy() -> None:
    assert focal(torch.tensor([[0.0, -torch.inf]]), torch.tensor([1])).item() == torch.inf


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_smoothing_spreads_its_share_over_all_classes(smoothing: float) -> None:
    scores, labels = torch.randn(6, 4, dtype=torch.float64), torch.arange(6) % 4
    entropies = -scores.log_softmax(1)  # (batch, classes)
    true = entropies.gather(1, labels.unsqueeze(1)).squeeze(1)
    expected = (1 - smoothing) * true + smoothing * entropies.mean(1)
    result = cross_entropy(scores, labels, label_smoothing=smoothing)
    torch.testing.assert_close(result, expected)
