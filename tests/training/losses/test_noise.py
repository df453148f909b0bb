"""The noised losses: eq. 10 to 13 at fixed noise, the worked example, memory."""

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from benchmarks.speed.memory import peak_bytes
from florilege.training.losses import (
    ImbalancedNoisedTopK,
    NoisedTopK,
    imbalanced_noised_top_k,
    noised_top_k,
)
from florilege.training.losses.base import Loss
from florilege.training.losses.hinges import _kth_largest, _Rank
from tests.training.losses import oracles
from tests.training.losses.batches import Batch, batches

EXAMPLE = torch.tensor([[2.4, 2.6, 2.3, 0.5]], dtype=torch.float64)
EXAMPLE_NOISE = torch.tensor(
    [[[0.2, -0.1, 0.1, 0.3]], [[0.1, 0.1, -0.1, 0.1]], [[-0.1, -0.1, 0.1, -0.1]]],
    dtype=torch.float64,
)


def noised_kth_largest(scores: Tensor, k: int, epsilon: float, **settings: Any) -> Tensor:
    """The mean k-th largest score itself, without a label."""
    defaults = {"noise_samples": 5, "sharing": "per_sample", "generator": None, "noise": None}
    return _kth_largest(scores, None, _Rank(k, epsilon, **{**defaults, **settings}))


def test_the_worked_example_of_the_paper_is_the_operator_with_k_two() -> None:
    scores = EXAMPLE.clone().requires_grad_()
    value = noised_kth_largest(scores, k=2, epsilon=1.0, noise=EXAMPLE_NOISE)
    (slope,) = torch.autograd.grad(value.sum(), scores)
    assert round(value.item(), 2) == 2.47
    torch.testing.assert_close(slope, torch.tensor([[1 / 3, 1 / 3, 1 / 3, 0]]).double())


@given(batches(), st.integers(1, 4), st.integers(0, 99), st.sampled_from([1e-3, 0.2, 5.0]))
@settings(max_examples=80)
def test_at_fixed_noise_both_losses_are_their_formulas(
    batch: Batch, samples: int, seed: int, epsilon: float
) -> None:
    generator = Generator().manual_seed(seed)
    noise = torch.randn(samples, *batch.scores.shape, generator=generator, dtype=torch.float64)
    counts = [1 + 7 * c for c in range(batch.scores.shape[1])]
    rows = list(enumerate(batch.rows))
    expected = [
        oracles.noised_top_k(s, y, batch.k, epsilon, noise[:, i].tolist()) for i, (s, y) in rows
    ]
    value = noised_top_k(batch.scores, batch.labels, k=batch.k, epsilon=epsilon, noise=noise)
    assert value.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-10)
    expected = [
        oracles.noised_top_k(
            s, y, batch.k, epsilon, noise[:, i].tolist(), oracles.margin(counts, y, 0.2), 60
        )
        for i, (s, y) in rows
    ]
    value = imbalanced_noised_top_k(
        batch.scores,
        batch.labels,
        class_counts=counts,
        k=batch.k,
        epsilon=epsilon,
        noise=noise,
    )
    assert value.tolist() == pytest.approx(expected, rel=1e-12, abs=1e-8)


@pytest.mark.parametrize("soft", [False, True])
def test_the_gradient_is_that_of_equation_12_and_of_finite_differences(soft: bool) -> None:
    generator = Generator().manual_seed(0)
    scores = torch.randn(5, 6, generator=generator, dtype=torch.float64)
    noise = torch.randn(4, 5, 6, generator=generator, dtype=torch.float64)
    labels = torch.tensor([0, 3, 5, 1, 2])
    scores[0, 0] = 9  # far ahead: no slope
    matches = set()
    targets = torch.rand(5, 6, generator=generator, dtype=torch.float64) if soft else labels
    assert torch.autograd.gradcheck(
        lambda s: noised_top_k(s, targets, k=2, epsilon=0.5, noise=noise),
        scores.clone().requires_grad_(),
    )
    if soft:
        return
    leaf = scores.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        noised_top_k(leaf, labels, k=2, epsilon=0.5, noise=noise).sum(), leaf
    )
    for i, (s, y) in enumerate(zip(scores.tolist(), labels.tolist(), strict=True)):
        expected = oracles.noised_kth_gradient(s, 3, 0.5, noise[:, i].tolist())
        expected[y] -= 1
        active = oracles.noised_top_k(s, y, 2, 0.5, noise[:, i].tolist()) > 0
        matches.add(active)
        result = [active * g for g in expected]
        torch.testing.assert_close(gradient[i], torch.tensor(result, dtype=torch.float64))
    assert matches == {True, False}


def test_the_mean_of_many_samples_is_the_expectation() -> None:
    value = noised_kth_largest(
        torch.zeros(1, 2), k=1, epsilon=2.0, noise_samples=20_000, generator=Generator()
    )
    assert value.item() == pytest.approx(2 / torch.pi**0.5, abs=0.05)  # E max of two normals


def test_a_generator_repeats_the_noise_and_moves_on() -> None:
    scores, labels = torch.randn(4, 9), torch.arange(4)
    loss = NoisedTopK(generator=Generator().manual_seed(3), reduction="none", epsilon=1.0)
    first, second = loss(scores, labels), loss(scores, labels)
    again = NoisedTopK(generator=Generator().manual_seed(3), reduction="none", epsilon=1.0)
    assert first.equal(again(scores, labels))
    assert not first.equal(second)


def test_shared_noise_is_the_same_for_every_row_and_per_sample_noise_is_not() -> None:
    scores = torch.randn(1, 9).expand(4, 9)
    shared = noised_kth_largest(scores, k=3, epsilon=1.0, sharing="shared")
    alone = noised_kth_largest(scores, k=3, epsilon=1.0)
    assert shared.unique().numel() == 1  # type: ignore[no-untyped-call]
    assert alone.unique().numel() == 4  # type: ignore[no-untyped-call]


def test_each_sample_brings_noise_of_its_own() -> None:
    scores = torch.zeros(1, 9, requires_grad=True)
    (slope,) = torch.autograd.grad(
        noised_kth_largest(scores, k=3, epsilon=1.0, noise_samples=30).sum(), scores
    )
    assert (slope > 0).sum() > 3


@pytest.mark.parametrize("at_once", [1, 2, 3, 7])
def test_samples_in_several_draws_are_those_of_one(
    at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, noise = torch.randn(4, 9, requires_grad=True), torch.randn(7, 4, 9)
    labels = torch.arange(4)
    whole = noised_top_k(scores, labels, k=3, epsilon=0.5, noise=noise)
    (slope,) = torch.autograd.grad(whole.sum(), scores)
    monkeypatch.setattr("florilege.training.losses.hinges.MOST_NUMBERS", at_once * 36)
    parts = noised_top_k(scores, labels, k=3, epsilon=0.5, noise=noise)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(torch.autograd.grad(parts.sum(), scores)[0], slope)


@pytest.mark.parametrize("samples", [1, 5, 150])
@pytest.mark.parametrize("sharing", ["per_sample", "shared"])
@pytest.mark.parametrize("soft", [False, True])
def test_memory_grows_with_the_samples_up_to_a_limit_only(
    samples: int, sharing: str, soft: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("florilege.training.losses.hinges.MOST_NUMBERS", 64 * 500)
    logits, labels = torch.randn(64, 500, requires_grad=True), torch.arange(64)
    targets = torch.rand(64, 500) if soft else labels
    plain = NoisedTopK(noise_samples=samples, sharing=sharing)
    tailed = ImbalancedNoisedTopK(class_counts=[3] * 500, noise_samples=samples)
    losses: tuple[Loss, ...] = (plain, tailed)
    for loss in losses:

        def step(loss: Loss = loss) -> None:
            logits.grad = None
            loss(logits, targets).backward()

        a_few_per_row = 64 * 16
        assert peak_bytes(step) <= 4 * (3 * 64 * 500 + a_few_per_row)


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        *(
            (torch.zeros(s), r"shape \(noise_samples, 2, 4\)")
            for s in [(2, 4), (2, 3, 4), (2, 2, 5), (0, 2, 4)]
        ),
        (torch.tensor([[[0.0, 0, 0, 0]], [[0, 0, 0, torch.nan]]]), "finite"),
        (torch.tensor([[[0.0, 0, 0, 0]], [[0, 0, 0, torch.inf]]]), "finite"),
    ],
)
def test_noise_of_another_shape_or_that_is_not_finite_is_refused(
    noise: Tensor, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        noised_top_k(torch.zeros(2, 4), torch.tensor([0, 1]), k=2, noise=noise)


@pytest.mark.parametrize("sharing", ["per_sample", "shared"])
def test_a_seed_gives_the_same_noise_however_the_logits_lie_in_memory(sharing: str) -> None:
    scores = torch.randn(6, 9)
    results = [
        noised_kth_largest(
            value,
            k=3,
            epsilon=1.0,
            sharing=sharing,
            generator=Generator().manual_seed(0),
        )
        for value in (scores, scores.T.contiguous().T)
    ]
    assert results[0].equal(results[1])


def test_soft_targets_have_the_slack_of_their_class_as_gradient() -> None:
    scores, noise = torch.randn(3, 5, dtype=torch.float64), torch.randn(2, 3, 5).double()
    targets = torch.rand(3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda t: noised_top_k(scores, t, k=2, epsilon=0.5, noise=noise), targets
    )


def test_noise_decides_how_many_samples_there_are() -> None:
    noise = torch.randn(3, 2, 4)
    expected = noise.topk(2).values[..., -1].mean(0)
    for label in ({}, {"noise_samples": 3}):
        value = noised_kth_largest(torch.zeros(2, 4), k=2, epsilon=1, noise=noise, **label)
        torch.testing.assert_close(value, expected)


@pytest.mark.parametrize(
    "loss", [noised_top_k, partial(imbalanced_noised_top_k, class_counts=[1] * 4)]
)
def test_another_number_of_samples_than_the_noise_holds_is_refused(
    loss: Callable[..., Tensor],
) -> None:
    logits, labels, noise = torch.zeros(2, 4), torch.tensor([0, 1]), torch.zeros(3, 2, 4)
    for label in (4, 2):
        with pytest.raises(ValueError, match=f"noise_samples must be 3, .* got {label}"):
            loss(logits, labels, k=2, noise_samples=label, noise=noise)
