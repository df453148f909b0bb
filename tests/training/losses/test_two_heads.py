"""The two-head average-K loss against loops over eq. 10 to 15."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from florilege.training.losses import TwoHeadAverageK, two_head_average_k
from tests.training.losses import oracles
from tests.training.losses.batches import Batch, batches
from tests.training.losses.examples import one_hot


@given(
    batches(), st.sampled_from([1.0, 1.5, 2.0, 2.25, math.inf]), st.sampled_from([0.0, 0.3, 5.0])
)
@settings(max_examples=150)
def test_it_is_its_formula_for_any_k_with_ties(
    batch: Batch, average_k: float, alpha: float
) -> None:
    z, sccp, labels = batch.scores, batch.scores.flip(0, 1), batch.labels
    average_k = min(average_k, z.shape[1])
    log_p = torch.log_softmax(sccp, dim=1)  # rank what the loss ranks: rounding makes ties
    count = oracles.round_half_up((average_k - 1) * len(z))
    targets, weight = one_hot(labels, z.shape[1]), [1.0] * z.shape[1]
    choice = oracles.candidates(log_p.tolist(), targets, count)
    expected = oracles.two_head_average_k(
        z.tolist(), sccp.tolist(), targets, average_k, alpha, weight, chosen=choice
    )
    value = two_head_average_k(z, sccp, labels, average_k=average_k, alpha=alpha)
    assert value.item() == pytest.approx(expected, rel=1e-11, abs=1e-11)


def gradients(z: Tensor, sccp: Tensor, labels: Tensor, **parameters: Any) -> tuple[Tensor, ...]:
    z, sccp = z.clone().requires_grad_(), sccp.clone().requires_grad_()
    return torch.autograd.grad(two_head_average_k(z, sccp, labels, **parameters), (z, sccp))


def test_both_heads_have_the_gradients_of_finite_differences() -> None:
    generator = torch.Generator().manual_seed(2)
    z = torch.randn(5, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    sccp = torch.randn(5, 6, generator=generator, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 3, -100])
    for average_k in (1.0, 2.5, 6.0):
        assert torch.autograd.gradcheck(
            lambda a, b, k=average_k: two_head_average_k(a, b, labels, average_k=k, alpha=0.7),
            (z, sccp),
        )


def test_candidates_are_ranked_where_the_softmax_has_saturated() -> None:
    sccp = torch.tensor([[200.0, 3.0, 2.0, 1.0], [200.0, 1.0, 3.0, 2.0]])
    assert (sccp.softmax(1)[:, 1:] == 0).all()
    slope, _ = gradients(torch.zeros(2, 4), sccp, torch.tensor([0, 0]), average_k=2)
    assert (slope < 0).nonzero().tolist() == [[0, 0], [0, 1], [1, 0], [1, 2]]


def test_at_k_of_all_classes_no_class_is_a_negative_not_even_a_masked_one() -> None:
    sccp = torch.tensor([[1.0, -torch.inf, 0.0], [0.0, 1.0, 2.0]])
    slope, _ = gradients(torch.zeros(2, 3), sccp, torch.tensor([0, 2]), average_k=3)
    assert (slope < 0).all()


def test_a_label_is_never_chosen_though_masked_classes_rank_as_low() -> None:
    sccp = torch.tensor([[0.0, -torch.inf, -torch.inf, -torch.inf]])
    loss = TwoHeadAverageK(average_k=3)
    loss(torch.zeros(1, 4), sccp, torch.tensor([0]))
    assert loss.mean_set_size.item() == 3


@pytest.mark.parametrize(("average_k", "size"), [(1, 1), (2.5, 2.5), (1.1, 1 + 1 / 8), (5, 5)])
def test_the_achieved_set_size_is_exposed(average_k: float, size: float) -> None:
    loss = TwoHeadAverageK(average_k=average_k)
    loss(torch.randn(8, 5), torch.randn(8, 5), torch.arange(8) % 5)
    assert loss.mean_set_size.item() == pytest.approx(size)


def test_ignored_rows_are_neither_counted_nor_chosen() -> None:
    loss = TwoHeadAverageK(average_k=2)
    sccp = torch.zeros(4, 5)
    labels = torch.tensor([-100, 0, -100, 1])
    z = torch.zeros(4, 5, requires_grad=True)
    loss(z, sccp, labels).backward()
    assert loss.mean_set_size.item() == 2
    assert z.grad is not None
    assert not z.grad[[0, 2]].any()
    assert z.grad[[1, 3]].all()


def test_a_batch_without_a_counted_row_leaves_the_size_as_it_was() -> None:
    loss = TwoHeadAverageK(average_k=2)
    scores = torch.zeros(3, 5)
    loss(scores, scores, torch.tensor([0, 1, 2]))
    assert loss(scores, scores, torch.tensor([-100, -100, -100])) == 0
    assert loss.mean_set_size.item() == 2


def test_scores_of_an_ignored_row_may_be_infinite() -> None:
    scores = torch.zeros(2, 4)
    scores[0, 0] = -torch.inf
    result = two_head_average_k(scores, scores, torch.tensor([-100, 1]), average_k=2)
    assert result == two_head_average_k(scores[1:], scores[1:], torch.tensor([1]), average_k=2)


def test_classes_with_a_soft_target_are_no_candidates() -> None:
    targets = torch.tensor([[0.6, 0.4, 0.0, 0.0]])
    sccp = torch.tensor([[1.0, 9.0, 0.5, 0.0]])
    slope, _ = gradients(torch.zeros(1, 4), sccp, targets, average_k=2, alpha=2)
    torch.testing.assert_close(slope, torch.tensor([[-0.3, -0.2, -1.0, 1.0]]))


def test_layout_and_type_of_what_is_given_change_nothing() -> None:
    generator = torch.Generator().manual_seed(4)
    z, sccp = torch.randn(2, 6, 5, generator=generator)
    targets = torch.rand(6, 5, generator=generator).softmax(1)
    expected = gradients(z, sccp, targets, average_k=2)
    turned = [each.T.contiguous().T for each in (z, sccp, targets.double())]
    torch.testing.assert_close(gradients(*turned, average_k=2), expected)


def test_small_batches_with_recent_values_choose_as_one_large_batch() -> None:
    z, sccp = torch.zeros(64, 10), torch.randn(64, 10, generator=torch.Generator().manual_seed(5))
    labels = torch.zeros(64, dtype=torch.int64)
    large, _ = gradients(z, sccp, labels, average_k=3)
    loss = TwoHeadAverageK(average_k=3, recent_batches=7)
    for _ in range(2):  # in the second round the window holds the seven other parts
        parts = []
        for part, rows in zip(sccp.split(8), z.split(8), strict=True):  # type: ignore[no-untyped-call]
            leaf = rows.clone().requires_grad_()
            loss(leaf, part, labels[:8]).backward()
            parts.append(leaf.grad)
    assert torch.cat(parts).lt(0).equal(large.lt(0))


def test_the_sizes_of_a_large_batch_follow_from_its_shape_alone() -> None:
    loss = TwoHeadAverageK(average_k=2.3, recent_batches=2).to("meta")
    heads = torch.randn(2, 64, 1081, device="meta", requires_grad=True)
    for _ in range(3):
        loss(*heads, torch.zeros(64, dtype=torch.int64, device="meta")).backward()
    assert heads.grad is not None


def test_recent_values_are_left_alone_in_eval_mode() -> None:
    loss = TwoHeadAverageK(average_k=2, recent_batches=3).eval()
    heads, labels = (torch.randn(2, 4), torch.randn(2, 4)), torch.tensor([0, 1])
    loss(*heads, labels)
    assert loss.get_extra_state() == {"recent": []}
    loss.train()(heads[0], torch.eye(4)[:2] * 99, labels)  # the label's own classes are no rivals
    loss(heads[0], torch.eye(4)[2:] * 99, labels)
    expected = two_head_average_k(*heads, labels, average_k=2)
    assert loss.eval()(*heads, labels).equal(expected)
    assert not loss.train()(*heads, labels).equal(expected)


def test_recent_values_come_back_with_the_checkpoint() -> None:
    first, second = (TwoHeadAverageK(average_k=2, recent_batches=2) for _ in range(2))
    z, sccp, labels = torch.zeros(4, 5), torch.randn(4, 5), torch.arange(4)
    for _ in range(3):
        first(z, sccp * 3, labels)
    second.load_state_dict(first.state_dict())
    assert len(second.get_extra_state()["recent"]) == 2
    for _ in range(2):  # the second window keeps its length too
        assert first(z, sccp, labels).equal(second(z, sccp, labels))
        assert first.mean_set_size.equal(second.mean_set_size)
    assert len(second.get_extra_state()["recent"]) == 2


def test_a_k_above_the_classes_and_heads_of_two_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"average_k must be in \[1, 4\], got 4.5"):
        two_head_average_k(torch.zeros(1, 4), torch.zeros(1, 4), torch.tensor([0]), average_k=4.5)
    with pytest.raises(ValueError, match="heads"):
        two_head_average_k(torch.zeros(1, 4), torch.zeros(1, 6), torch.tensor([0]))
