"""Computation in blocks: any number of blocks, the last with one row."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from florilege.training.losses import (
    expected_positive,
    ldam,
    positive_bce,
    smooth_top_k,
    two_head_average_k,
)
from florilege.training.losses.base import SOFTPLUS_LIMIT
from florilege.training.losses.entropy import FLOOR

SHAPES = [(7, 40), (40, 7), (1, 50), (9, 9)]  # rows and classes


def _scores(rows: int, classes: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return (3 * torch.randn(rows, classes, generator=generator)).to(dtype).requires_grad_()


def _value_and_slope(scores: Tensor, labels: Tensor, k: int) -> tuple[Tensor, Tensor]:
    values = smooth_top_k(scores, labels, k=k)
    (slope,) = torch.autograd.grad(values.sum(), scores)
    return values.detach(), slope


@pytest.mark.parametrize("block_rows", [1, 2, 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("rows", "classes"), SHAPES)
def test_sums_over_subsets_are_the_same_in_blocks_of_any_length(
    rows: int, classes: int, dtype: torch.dtype, block_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores, labels = _scores(rows, classes, dtype), torch.arange(rows) % classes
    for k in (1, 3, 6):
        whole = _value_and_slope(scores, labels, k)
        with monkeypatch.context() as patch:
            patch.setattr(
                "florilege.training.losses.smooth_hinge._rows_at_once", lambda *_: block_rows
            )
            parts = _value_and_slope(scores, labels, k)
        atol = 1e-12 if dtype == torch.float64 else 1e-7
        torch.testing.assert_close(parts, whole, rtol=0.0, atol=atol)


@pytest.mark.parametrize("pairs", [1, 2, 3, 64])
@pytest.mark.parametrize(("rows", "classes"), SHAPES)
def test_soft_targets_cost_the_same_however_many_are_evaluated_together(
    rows: int, classes: int, pairs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    scores = _scores(rows, classes, torch.float64)
    targets = torch.rand(rows, classes, generator=torch.Generator().manual_seed(1))
    targets[targets < 0.3] = 0.0
    whole = _value_and_slope(scores, targets, 3)
    monkeypatch.setattr("florilege.training.losses.smooth_hinge.MIXTURE_ROWS", pairs)
    parts = _value_and_slope(scores, targets, 3)
    torch.testing.assert_close(parts, whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("beside", [-25.0, -1.0, 0.0, 1e-9, 1.0])
def test_the_binary_losses_are_exact_on_both_sides_of_the_softplus_limit(beside: float) -> None:
    score = SOFTPLUS_LIMIT + beside
    exact = score + math.log1p(math.exp(-score))
    scores, labels = torch.tensor([[-score, score]], dtype=torch.float64), torch.tensor([0])
    assert positive_bce(scores, labels).item() == exact
    result = expected_positive(scores, labels, average_k=1, beta=0.0).item()
    assert result == pytest.approx(exact, rel=1e-15)
    both = two_head_average_k(scores, torch.zeros_like(scores), labels, average_k=1).item()
    entropy = math.log(2)  # of the second head
    assert both == pytest.approx(entropy + 2 * exact, rel=1e-15)  # a positive and a negative


@pytest.mark.parametrize("beside", [-900.0, -1.0, 0.0, 1.0, 60.0])
def test_a_class_far_below_the_best_changes_nothing_on_either_side_of_the_floor(
    beside: float,
) -> None:
    scale = 30.0
    scores = torch.tensor([[1.0, 0.9, 1.0 + (FLOOR + beside) / scale]], requires_grad=True)
    label, wide = torch.tensor([1]), scores.detach().double().requires_grad_()
    value = ldam(scores, label, class_counts=[1, 1, 1], max_margin=0.0, scale=scale)
    exact = F.cross_entropy(scale * wide, label)
    (slope,) = torch.autograd.grad(value.sum(), scores)
    (exact_slope,) = torch.autograd.grad(exact, wide)
    assert value.item() == pytest.approx(exact.item(), rel=1e-6)
    torch.testing.assert_close(slope.double(), exact_slope, rtol=1e-4, atol=scale * 1e-30)
