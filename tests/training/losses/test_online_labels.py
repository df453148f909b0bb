"""ROLE: its value, and when, how and where the estimates are updated."""

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from torch import Tensor

from florilege.training.losses import Role, expected_positive, role
from florilege.training.losses.arguments import BatchLabels
from florilege.training.losses.online_labels import (
    OBSERVED,
    UNOBSERVED,
    _Estimates,
    _Observed,
)
from tests.training.losses import oracles
from tests.training.losses.batches import Batch, batches
from tests.training.losses.examples import one_hot

ROWS, CLASSES = 12, 5
LABELS = torch.tensor([0, 3, 4])
INDEX = torch.tensor([7, 0, 11])


def logits(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, CLASSES, generator=generator, dtype=torch.float64)


def stored(loss: Role) -> Tensor:
    assert loss.estimates is not None
    return loss.estimates.logits


def seen(loss: Role) -> list[int]:
    assert loss.estimates is not None
    return (~loss.estimates.is_new).nonzero().flatten().tolist()


@given(batches())
@settings(max_examples=60)
def test_it_is_its_formula(batch: Batch) -> None:
    classes = batch.scores.shape[1]
    theta = batch.scores.flip(0, 1) / 2
    targets = one_hot(batch.labels, classes)
    expected = oracles.role(
        batch.scores.tolist(), theta.tolist(), targets, 1.5, 0.7, [1.0] * classes
    )
    value = role(batch.scores, batch.labels, estimates=theta, average_k=1.5, reg_weight=0.7)
    assert value.item() == pytest.approx(expected, rel=1e-11, abs=1e-11)


def test_each_side_learns_from_the_other_one_held_still() -> None:
    z, theta = logits().requires_grad_(), logits(1).requires_grad_()
    torch.autograd.backward(role(z, LABELS, estimates=theta, average_k=2, reg_weight=3))
    targets, step = one_hot(LABELS, CLASSES), 1e-6

    def half(own: Tensor, other: Tensor) -> float:
        return oracles.role_half(own.tolist(), other.tolist(), targets, 2, 3, [1.0] * CLASSES)

    for own, other in ((z, theta), (theta, z)):
        assert own.grad is not None
        for i, j in ((0, 0), (1, 2), (2, 4)):
            moved = own.detach().clone()
            moved[i, j] += step
            slope = (half(moved, other.detach()) - half(own.detach(), other.detach())) / step
            assert own.grad[i, j].item() == pytest.approx(slope, abs=1e-5)


def test_the_forward_pass_moves_nothing_and_the_backward_pass_moves_once() -> None:
    loss = Role(rows=ROWS, classes=CLASSES)
    start = stored(loss).clone()
    z = logits().requires_grad_()
    value = loss(z, LABELS, INDEX)
    assert stored(loss).equal(start)
    value.backward(retain_graph=True)
    moved = stored(loss).clone()
    assert (moved != start).any(1).nonzero().flatten().tolist() == [0, 7, 11]
    value.backward()
    assert stored(loss).equal(moved)


def test_nothing_moves_without_a_gradient_or_in_eval_mode() -> None:
    loss = Role(rows=ROWS, classes=CLASSES)
    start = stored(loss).clone()
    with torch.no_grad():
        loss(logits().requires_grad_(), LABELS, INDEX)
    loss(logits(), LABELS, INDEX)
    z = logits().requires_grad_()
    loss.eval()(z, LABELS, INDEX).backward()
    assert stored(loss).equal(start)
    assert z.grad is not None


@pytest.mark.parametrize("training", [True, False])
def test_inference_mode_gives_the_value_and_training_continues(training: bool) -> None:
    loss, z = Role(rows=ROWS, average_k=2).train(training), logits()
    with torch.inference_mode():
        value = loss(z, LABELS, INDEX).item()
    assert value == loss(z, LABELS, INDEX).item()
    before = stored(loss).clone()
    torch.autograd.backward(loss.train()(z.requires_grad_(), LABELS, INDEX))
    assert not stored(loss).equal(before)


def test_a_row_whose_step_is_not_finite_is_left_out_and_the_others_move() -> None:
    loss, plain = (Role(rows=ROWS, classes=CLASSES) for _ in range(2))
    start = stored(loss).clone()
    broken = logits()
    broken[1, 2] = torch.nan
    for module, z in ((loss, broken), (plain, logits())):
        module(z.requires_grad_(), LABELS, INDEX).backward()
    assert stored(loss)[[7, 11]].equal(stored(plain)[[7, 11]])
    unlabelled = torch.arange(CLASSES) != LABELS[1]
    assert stored(loss)[0, unlabelled].equal(start[0, unlabelled])
    assert seen(loss) == [7, 11]


@pytest.mark.parametrize("upstream", [1.0, 1024.0])
def test_the_step_is_that_of_each_image_alone_whatever_the_scale_of_the_loss(
    upstream: float,
) -> None:
    loss = Role(rows=ROWS, classes=CLASSES, average_k=2, reg_weight=0.5, theta_lr=0.1)
    z = logits().requires_grad_()
    theta = stored(loss)[INDEX].double()
    theta[torch.arange(3), LABELS] = OBSERVED
    leaf = theta.clone().requires_grad_()
    (slope,) = torch.autograd.grad(
        role(z, LABELS, estimates=leaf, average_k=2, reg_weight=0.5), leaf
    )
    (upstream * loss(z, LABELS, INDEX)).backward()
    torch.testing.assert_close(
        stored(loss)[INDEX].double(), theta - 0.1 * 3 * slope, rtol=1e-5, atol=1e-6
    )


def test_the_module_has_the_value_and_slope_of_the_function() -> None:
    loss = Role(rows=ROWS, classes=CLASSES, average_k=2)
    assert loss.estimates is not None
    loss.estimates.is_new.fill_(False)
    theta = stored(loss)[INDEX].double()
    ours, theirs = logits().requires_grad_(), logits().requires_grad_()
    value = loss(ours, LABELS, INDEX)
    expected = role(theirs, LABELS, estimates=theta, average_k=2)
    torch.testing.assert_close(value, expected)
    value.backward()
    torch.autograd.backward(expected)
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_an_image_that_comes_twice_takes_both_steps() -> None:
    once, twice = (Role(rows=ROWS, classes=CLASSES, reg_weight=0) for _ in range(2))
    z = logits()[:1]
    once(z.clone().requires_grad_(), LABELS[:1], INDEX[:1]).backward()
    both = z.repeat(2, 1).requires_grad_()
    twice(both, LABELS[:1].repeat(2), INDEX[:1].repeat(2)).backward()
    start = _Estimates(ROWS, CLASSES).read(_pairs())
    step = stored(once)[7] - start[0]
    torch.testing.assert_close(stored(twice)[7], start[0] + 2 * step)


def _pairs() -> _Observed:
    scores = torch.zeros(1, CLASSES)
    return _Observed.of(INDEX[:1], BatchLabels.of(scores, LABELS[:1], None, -100))


def test_ignored_rows_keep_their_estimates() -> None:
    loss = Role(rows=ROWS, classes=CLASSES)
    start = stored(loss).clone()
    labels = torch.tensor([0, -100, 4])
    loss(logits().requires_grad_(), labels, INDEX).backward()
    assert (stored(loss) != start).any(1).nonzero().flatten().tolist() == [7, 11]
    assert seen(loss) == [7, 11]


def test_estimates_start_between_40_and_60_percent_and_labels_at_99_5() -> None:
    estimates = _Estimates(999, 1000)
    assert estimates.logits.abs().max() <= UNOBSERVED
    assert torch.sigmoid(torch.tensor(UNOBSERVED)).item() == pytest.approx(0.6)
    assert torch.sigmoid(torch.tensor(OBSERVED)).item() == pytest.approx(0.995)
    assert estimates.logits[-1].std() > 0.1
    expected = _Estimates(9, 4).logits
    for default in (torch.float32, torch.bfloat16):
        torch.set_default_dtype(default)
        result = _Estimates(9, 4).logits
        torch.set_default_dtype(torch.float32)
        assert result.equal(expected)
    assert estimates.read(_pairs())[0, 0].item() == pytest.approx(OBSERVED)


def test_estimates_approach_what_the_classifier_says() -> None:
    loss = Role(rows=3, classes=CLASSES, reg_weight=0, theta_lr=1.0)
    z = torch.full((3, CLASSES), -3.0)
    z[:, 1] = 3.0
    for _ in range(200):
        loss(z.clone().requires_grad_(), LABELS, torch.arange(3)).backward()
    beside = torch.sigmoid(stored(loss))[torch.nn.functional.one_hot(LABELS, CLASSES) == 0]
    expected = torch.sigmoid(z)[torch.nn.functional.one_hot(LABELS, CLASSES) == 0]
    torch.testing.assert_close(beside, expected, atol=1e-3, rtol=0)


def test_a_checkpoint_brings_the_estimates_back(tmp_path: Path) -> None:
    first = Role(rows=ROWS)
    first(logits().requires_grad_(), LABELS, INDEX).backward()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = Role(rows=ROWS)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert stored(second).equal(stored(first))
    value = first(logits(1), LABELS, INDEX)
    assert value.equal(second(logits(1), LABELS, INDEX))


def test_estimates_of_another_data_set_are_refused() -> None:
    first = Role(rows=ROWS, classes=CLASSES)
    with pytest.raises(ValueError, match=r"estimates must have shape \(9, None\)"):
        Role(rows=9).load_state_dict(first.state_dict())
    with pytest.raises(ValueError, match=r"estimates must have shape \(12, 4\)"):
        Role(rows=ROWS, classes=4).load_state_dict(first.state_dict())


def test_before_the_first_batch_there_is_nothing_to_save() -> None:
    first, second = Role(rows=ROWS), Role(rows=ROWS)
    second.load_state_dict(first.state_dict())
    assert second.estimates is None


def test_in_eval_mode_the_value_needs_no_position() -> None:
    loss = Role(rows=ROWS, average_k=2, reg_weight=0.5).eval()
    expected = expected_positive(logits(), LABELS, average_k=2, beta=0.5 / CLASSES)
    torch.testing.assert_close(loss(logits(), LABELS), expected)
    with pytest.raises(ValueError, match="row_index"):
        loss.train()(logits(), LABELS)


@pytest.mark.parametrize(
    ("row_index", "message"),
    [
        (torch.tensor([0, 1, 12]), r"row_index must be in \[0, 11\], got 0 to 12"),
        (torch.tensor([-1, 1, 2]), r"row_index must be in \[0, 11\], got -1 to 2"),
        (torch.tensor([0, 1]), r"row_index must be int64 of shape \(3,\)"),
        (torch.tensor([0.0, 1.0, 2.0]), "row_index must be int64"),
    ],
)
def test_positions_outside_of_the_training_set_are_refused(row_index: Tensor, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Role(rows=ROWS)(logits(), LABELS, row_index)


def test_a_batch_of_another_number_of_classes_is_refused() -> None:
    with pytest.raises(ValueError, match="logits must have 4 classes, got 5"):
        Role(rows=ROWS, classes=4)(logits(), LABELS, INDEX)
    with pytest.raises(ValueError, match="estimates"):
        role(logits(), LABELS, estimates=torch.zeros(3, 4))
