"""The smooth top-k loss and the top-k probabilities: exact at any temperature."""

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Generator, Tensor

from florilege.training.losses import smooth_top_k
from florilege.training.losses.smooth_hinge import LARGEST_K
from tests.training.losses import oracles
from tests.training.losses.batches import Batch, batches

TEMPERATURES = [10.0, 1.0, 0.1, 0.01, 1e-3, 1e-4]


def gradient(scores: Tensor, labels: Tensor, k: int, tau: float) -> Tensor:
    leaf = scores.clone().requires_grad_()
    (slope,) = torch.autograd.grad(smooth_top_k(leaf, labels, k=k, tau=tau).sum(), leaf)
    return slope


@given(batches(), st.sampled_from([*TEMPERATURES, 1e-7]), st.sampled_from([0.0, 0.3, 1.0]))
@settings(max_examples=150)
def test_float64_is_the_enumeration_of_all_sets(batch: Batch, tau: float, margin: float) -> None:
    expected = [oracles.smooth_top_k(s, y, batch.k, tau, margin) for s, y in batch.rows]
    value = smooth_top_k(batch.scores, batch.labels, k=batch.k, tau=tau, margin=margin)
    torch.testing.assert_close(
        value, torch.tensor(expected, dtype=torch.float64), rtol=1e-11, atol=1e-10
    )


@pytest.mark.parametrize("k", [1, 2, 3, 5])
@pytest.mark.parametrize("tau", [10.0, 1.0, 0.1, 0.02])
def test_the_gradient_is_that_of_finite_differences(k: int, tau: float) -> None:
    scores = torch.randn(4, 6, dtype=torch.float64, generator=Generator().manual_seed(k))
    scores[1] = torch.tensor([1.0, 1, 1, 1, 0, 0])
    labels = torch.tensor([0, 2, 5, 3])
    assert torch.autograd.gradcheck(
        lambda s: smooth_top_k(s, labels, k=k, tau=tau), scores.requires_grad_()
    )


def near_ties(scores: Tensor) -> Tensor:
    near = 4 + 1e-6 * scores[:, :30]
    return torch.cat([near, scores[:, 30:]], dim=1)


KINDS: dict[str, Callable[[Tensor], Tensor]] = {
    "ordinary": lambda s: s,
    "wide": lambda s: 5 * s,
    "all tied": torch.zeros_like,
    "near ties": near_ties,
    "one-hot": lambda s: 10 * (torch.arange(s.shape[1]) == 3).float().expand_as(s),
    "masked": lambda s: s.masked_fill(s[:1] < 0, -torch.inf),
    "coarse": lambda s: (4 * s).round() / 4,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("classes", [100, 1000])
def test_a_float32_gradient_is_within_a_millionth_of_k_of_float64(kind: str, classes: int) -> None:
    generator = Generator().manual_seed(classes)
    scores = KINDS[kind](torch.randn(6, classes, generator=generator))
    open_classes = torch.isfinite(scores[0]).nonzero().flatten()
    labels = open_classes[torch.randint(len(open_classes), (6,), generator=generator)]
    labels[0] = scores[0].argmax()
    for k in (1, 2, 5, 10, 20):
        for tau in TEMPERATURES:
            single = gradient(scores, labels, k, tau)
            double = gradient(scores.double(), labels, k, tau)
            assert torch.isfinite(single).all()
            assert (single - double).abs().max() < 1e-6 / k
            torch.testing.assert_close(
                smooth_top_k(scores, labels, k=k, tau=tau).double(),
                smooth_top_k(scores.double(), labels, k=k, tau=tau),
                rtol=1e-6,
                atol=1e-6 * tau,
            )


@pytest.mark.parametrize("kind", ["ordinary", "all tied"])
def test_a_hundred_thousand_classes_keep_that_precision(kind: str) -> None:
    scores = KINDS[kind](torch.randn(2, 100_000, generator=Generator().manual_seed(1)))
    labels = torch.tensor([7, 99_999])
    for k, tau in ((1, 1.0), (5, 0.1), (20, 10.0), (20, 1e-4)):
        error = gradient(scores, labels, k, tau) - gradient(scores.double(), labels, k, tau)
        assert error.abs().max() < 1e-6 / k


@pytest.mark.parametrize(
    ("k", "classes"), [(5, 10_000), (100, 1000), (200, 10_000), (LARGEST_K, 2000)]
)
@pytest.mark.parametrize("ahead", [None, 0, -1, 1])
def test_a_large_k_is_as_exact(k: int, classes: int, ahead: int | None) -> None:
    """All classes tie, or about k of them are far ahead; C(10,000, 200) is 10^424."""
    scores = torch.randn(1, classes, generator=Generator().manual_seed(k))
    if ahead is not None:
        scores = torch.zeros(1, classes)
        scores[0, : k + ahead if ahead else 0] = 1000.0
    label, row = torch.tensor([classes - 1]), scores[0].double().tolist()
    for tau in (10.0, 0.01):
        value = smooth_top_k(scores, label, k=k, tau=tau).item()
        exact = oracles.smooth_top_k_of_many(row, classes - 1, k, tau)
        assert value == pytest.approx(exact, rel=1e-6, abs=1e-6 * tau)
        assert gradient(scores, label, k, tau).isfinite().all()


@pytest.mark.parametrize("k", [1, 2, 5, 20, 100])
@pytest.mark.parametrize("tail", [1, 3, 10])
def test_ties_at_the_border_of_the_head_are_exact(k: int, tail: int) -> None:
    """The 3k - 1 best and ``tail`` times k more tie: the worst there is for a circle of points."""
    scores = torch.zeros(2, 3 * k - 1 + tail * k + 1, dtype=torch.float64)
    scores[1, : k - 1] = 3.0 * k
    scores[:, -1] = 0.3
    label = scores.shape[1] - 1
    value = smooth_top_k(scores, torch.full((2,), label), k=k)
    exact = [oracles.smooth_top_k_of_many(row, label, k, 1.0) for row in scores.tolist()]
    assert value.tolist() == pytest.approx(exact, rel=2e-12)


@pytest.mark.parametrize(("k", "classes"), [(5, 10_000), (100, 3000), (200, 3000)])
def test_a_large_k_has_as_exact_a_gradient(k: int, classes: int) -> None:
    scores = torch.randn(1, classes, generator=Generator().manual_seed(k))
    row, order = scores[0].double().tolist(), scores[0, :-1].argsort(descending=True).tolist()
    slope = gradient(scores, torch.tensor([classes - 1]), k, 1.0)[0]
    for rank in (0, k - 1, 2 * k, classes - 2):
        exact = oracles.smooth_top_k_gradient(row, classes - 1, k, 1.0, order[rank])
        assert slope[order[rank]].item() == pytest.approx(exact, rel=1e-4, abs=1e-12)


def test_a_k_beyond_the_range_of_float64_is_refused() -> None:
    with pytest.raises(ValueError, match="k must be at most 600 here, got 601; noised_top_k"):
        smooth_top_k(torch.zeros(1, 2000), torch.tensor([0]), k=LARGEST_K + 1)


def test_the_gradient_of_a_class_surely_in_the_set_does_not_blow_up() -> None:
    scores = torch.cat([torch.full((1, 30), 3.0), torch.zeros(1, 70)], dim=1)
    scores[0, :30] += 1e-7 * torch.arange(30)
    assert gradient(scores, torch.tensor([50]), 5, 1e-4).abs().max() <= 1 / 5 + 1e-6


def test_a_row_with_too_few_open_classes_gives_zero() -> None:
    scores = torch.tensor([[1.0, 2.0, -torch.inf, -torch.inf], [1.0, 2.0, 3.0, 4.0]])
    slope = gradient(scores, torch.tensor([0, 0]), 3, 0.5)
    value = smooth_top_k(scores, torch.tensor([0, 0]), k=3, tau=0.5)
    assert value[0] == 0
    assert not slope[0].any()
    assert value[1].item() == pytest.approx(oracles.smooth_top_k([1, 2, 3, 4], 0, 3, 0.5))


@pytest.mark.parametrize("k", [2, 20])
def test_a_logit_that_is_no_number_makes_its_row_so_and_no_other(k: int) -> None:
    scores = torch.randn(2, 100, generator=Generator().manual_seed(0))
    labels, clean = torch.tensor([0, 1]), scores[1].clone()
    scores[0, 5] = torch.nan
    value = smooth_top_k(scores, labels, k=k)
    assert value[0].isnan()
    assert value[1].item() == pytest.approx(smooth_top_k(clean[None], labels[1:], k=k).item())


def test_a_class_that_is_in_the_set_with_probability_one_half_divides_nothing_by_zero() -> None:
    scores = torch.full((1, 32), -60.0, dtype=torch.float64)
    scores[0, [0, 1, 2, 31]] = 0.0  # three others tie: sets of 1.5 of them are expected
    scores.requires_grad_()
    value = smooth_top_k(scores, torch.tensor([31]), k=2)
    (slope,) = torch.autograd.grad(value.sum(), scores)
    exact = oracles.smooth_top_k_of_many(scores[0].tolist(), 31, 2, 1.0)
    assert value.item() == pytest.approx(exact, rel=1e-12)
    assert slope.sum().item() == pytest.approx(0.0, abs=1e-12)
