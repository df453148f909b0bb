import operator

import pytest
import torch
import torch.nn.functional as F

from florilege.errors import UsageError
from florilege.training import losses
from florilege.training.network import _class_weights, head_of
from tests.training.small import small_objective

LABELS = torch.tensor([0, 2, 1, 1])
ROWS = torch.arange(4)


def test_the_two_head_loss_gets_both_heads_in_order() -> None:
    objective = small_objective("two_head_average_k", {"average_k": 2}, class_counts=[2, 1, 1])
    generator = torch.Generator().manual_seed(0)
    both = torch.randn(4, 3, generator=generator), torch.randn(4, 3, generator=generator)
    expected = losses.two_head_average_k(*both, LABELS, average_k=2)
    assert objective.mean_set_size == 0
    torch.testing.assert_close(objective(both, LABELS, ROWS), expected)
    assert objective.mean_set_size == 2
    assert (objective.head, objective.loss_fn.average_k) == ("two_head", 2)


def test_half_precision_outputs_are_widened_before_they_are_scaled() -> None:
    objective = small_objective(
        "cross_entropy", {}, head="cosine", head_scale=3.3, class_counts=[2, 1, 1]
    )
    cosines = torch.rand(4, 3, generator=torch.Generator().manual_seed(0)).bfloat16()
    expected = F.cross_entropy(3.3 * cosines.float(), LABELS)
    torch.testing.assert_close(objective(cosines, LABELS, ROWS), expected)


def test_defaults_of_a_loss_come_from_the_data() -> None:
    counts = [3, 1, 2]
    margin = small_objective("ldam", {}, class_counts=counts).loss_fn
    assert margin.class_counts is not None
    assert (margin.class_counts.tolist(), margin.rows) == (counts, None)
    online = small_objective("role", {}, class_counts=counts).loss_fn
    assert (online.class_counts, online.rows) == (None, 6)


def test_a_loss_of_mixed_pictures_learns_that_a_target_has_two_classes() -> None:
    for own, positives in (({}, 2), ({"positives": 3}, 3)):
        options = {"k": 2, **own}
        objective = small_objective("smooth_top_k", options, class_counts=[2, 2, 2], mixup=0.5)
        assert objective.loss_fn.positives == positives


def test_parameters_of_the_user_win_over_the_data() -> None:
    options = {"rows": 15, "average_k": 2}
    result = small_objective("role", options, class_counts=[3, 3, 3]).loss_fn
    assert (result.rows, result.average_k) == (15, 2)
    counted = {"class_counts": [9, 8, 7]}
    margin = small_objective("ldam", counted, class_counts=[3, 3, 3]).loss_fn
    assert margin.class_counts is not None
    assert margin.class_counts.tolist() == [9, 8, 7]


@pytest.mark.parametrize(("name", "key"), [("smooth_top_k", "k"), ("role", "average_k")])
def test_a_default_set_size_too_large_for_the_classes_is_lowered_with_a_note(
    name: str, key: str
) -> None:
    objective = small_objective(name, {}, class_counts=[3] * 5)
    assert getattr(objective.loss_fn, key) == 4
    assert objective.notes == (f"loss {name}: {key} is 4, the largest for 5 classes",)
    enough = small_objective(name, {}, class_counts=[3] * 6)
    assert (getattr(enough.loss_fn, key), enough.notes) == (5, ())


@pytest.mark.parametrize(
    ("name", "key", "largest"),
    [("two_head_average_k", "average_k", 4), ("role", "average_k", 4), ("smooth_top_k", "k", 3)],
)
def test_a_set_too_large_for_the_classes_is_refused(name: str, key: str, largest: int) -> None:
    message = rf"loss\.{key} must be in \[1, {largest}\] for 4 classes, got {largest + 1}"
    counts = [2, 2, 2, 2]
    with pytest.raises(UsageError, match=message):
        small_objective(name, {key: largest + 1}, class_counts=counts)
    small_objective(name, {key: largest}, class_counts=counts)


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("hinge", {}, "must be one of .*cross_entropy.*top_k_hinge"),
        ("cross_entropy", {"gamma": 2}, "loss cross_entropy: has no gamma"),
        ("two_head_average_k", {"alpha": -1}, "loss two_head_average_k: .*alpha"),
        ("two_head_average_k", {"alpha": "much"}, "loss two_head_average_k: "),
        ("focal", {"weight": [1, 2]}, "loss.weight must hold one number for each of 3 classes"),
        ("two_head_average_k", {"weight": [1] * 4}, "loss.weight must hold .* 3 classes, got 4"),
        ("ldam", {"class_counts": [1, 2]}, "loss.class_counts must hold .* 3 classes, got 2"),
        ("role", {"classes": 7}, "loss.classes must be 3, the classes of the data, got 7"),
        ("role", {"rows": 5}, "loss.rows must be at least 6, the training pictures, got 5"),
        ("focal", {"reduction": "none"}, "loss.reduction must be mean or sum in training"),
    ],
)
def test_unknown_losses_and_parameters_of_other_data_or_another_loop_are_refused(
    name: str, parameters: dict[str, object], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        small_objective(name, parameters, class_counts=[2, 2, 2])


@pytest.mark.parametrize(
    ("loss", "head"), [("cross_entropy", "two_head"), ("two_head_average_k", "linear")]
)
def test_a_head_the_loss_cannot_train_is_refused(loss: str, head: str) -> None:
    with pytest.raises(UsageError, match=f"loss {loss} "):
        head_of(loss, head)


@pytest.mark.parametrize(("given", "scale"), [(None, 10.0), (4.0, 4.0)])
def test_a_cosine_head_of_a_loss_without_scale_is_scaled_before_it(
    given: float | None, scale: float
) -> None:
    objective = small_objective(
        "cross_entropy", {}, head="cosine", head_scale=given, class_counts=[2, 1, 1]
    )
    cosines = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    expected = F.cross_entropy(scale * cosines, LABELS)
    torch.testing.assert_close(objective(cosines, LABELS, ROWS), expected)
    assert (objective.head, objective.scale) == ("cosine", scale)


def test_a_cosine_head_is_not_scaled_twice() -> None:
    counts = [2, 1, 1]
    objective = small_objective("ldam", {"scale": 7.0}, class_counts=counts)
    cosines = torch.rand(4, 3, generator=torch.Generator().manual_seed(0))
    expected = losses.ldam(cosines, LABELS, class_counts=counts, scale=7.0).mean()
    torch.testing.assert_close(objective(cosines, LABELS, ROWS), expected)
    assert objective.scale == 7.0


@pytest.mark.parametrize(
    ("loss", "head", "message"),
    [
        ("cross_entropy", "auto", "cross_entropy trains a linear head$"),
        ("ldam", "auto", "ldam trains a cosine head with loss.scale$"),
        ("two_head_average_k", "auto", "two_head_average_k trains a two_head head$"),
    ],
)
def test_a_head_scale_that_nothing_would_use_is_refused(loss: str, head: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        small_objective(loss, {}, head=head, head_scale=5.0, class_counts=[2, 1, 1])


@pytest.mark.parametrize("loss", ["ldam", "imbalanced_noised_top_k"])
def test_a_margin_loss_on_a_linear_head_has_scale_1_with_a_note(loss: str) -> None:
    counts = [2, 1, 1, 1, 1, 1]
    linear = small_objective(loss, {}, head="linear", class_counts=counts)
    assert linear.scale == 1.0
    assert linear.notes == (f"loss {loss}: scale is 1, because its default is for a cosine head",)
    options = small_objective(loss, {"scale": 5.0}, head="linear", class_counts=counts)
    assert (options.scale, options.notes) == (5.0, ())
    cosine = small_objective(loss, {}, class_counts=counts)
    assert cosine.scale is not None
    assert (cosine.scale >= 30, cosine.notes) == (True, ())


# Class weights, several batches per step, mixup -----------------------------------------------


def test_class_weights_are_a_power_of_the_counts_with_a_mean_of_one() -> None:
    counts = [1, 10, 100]
    objective = small_objective("cross_entropy", {}, class_counts=counts, class_weight_power=0.5)
    weight = objective.loss_fn.weight
    assert weight is not None
    result = weight.tolist()
    assert result[0] / result[2] == pytest.approx(10)
    assert sum(map(operator.mul, result, counts)) / 111 == pytest.approx(1)
    assert objective.notes == (
        f"loss cross_entropy: class weights from {result[2]:.3g} to {result[0]:.3g}",
    )
    logits = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    expected = F.cross_entropy(logits, LABELS, weight=weight.float())
    torch.testing.assert_close(objective(logits, LABELS, ROWS), expected)
    assert (objective.head, objective.scale) == ("linear", None)


def test_a_class_without_pictures_weighs_as_one_with_a_single_one() -> None:
    assert _class_weights([0, 1, 4], 1) == [2.5, 2.5, 0.625]


@pytest.mark.parametrize("power", [0.0, 1.0])
@pytest.mark.parametrize("soft", [False, True])
def test_batches_of_a_step_count_what_they_would_as_one(power: float, soft: bool) -> None:
    objective = small_objective("focal", {}, class_counts=[5, 1, 2], class_weight_power=power)
    logits = torch.randn(6, 3, generator=torch.Generator().manual_seed(0)).double()
    labels, parts = torch.tensor([0, 0, 2, 1, 0, 2]), (slice(0, 4), slice(4, 6))
    targets = F.one_hot(labels, 3).double() if soft else labels
    shares = objective.shares([labels[part] for part in parts], soft=soft)
    results = [
        share * objective.loss_fn(logits[part], targets[part])
        for share, part in zip(shares, parts, strict=True)
    ]
    torch.testing.assert_close(sum(results), objective.loss_fn(logits, targets))
    assert objective.shares([labels], soft=soft) == [1.0]


def test_candidates_are_chosen_over_the_batches_of_a_step_by_default() -> None:
    counts, name = [2, 1, 1], "two_head_average_k"
    result = small_objective(name, {"average_k": 2}, class_counts=counts, accumulate=4)
    assert isinstance(result.loss_fn, losses.TwoHeadAverageK)
    assert result.loss_fn.recent_batches == 3
    assert result.notes[0].startswith("loss two_head_average_k: recent_batches is 3, so that")
    options = {"average_k": 2, "recent_batches": 0}
    own = small_objective(name, options, class_counts=counts, accumulate=4)
    assert isinstance(own.loss_fn, losses.TwoHeadAverageK)
    assert (own.loss_fn.recent_batches, own.notes) == (0, ())


@pytest.mark.parametrize("name", losses.LOSSES)
def test_every_loss_takes_mixtures_or_refuses_them(name: str) -> None:
    if losses.LOSSES[name].takes_rows:
        with pytest.raises(UsageError, match=f"mixup cannot be used with loss {name}, which estim"):
            small_objective(name, {}, class_counts=[2] * 8, mixup=1.0)
        return
    objective = small_objective(name, {}, class_counts=[2] * 8, mixup=1.0)
    logits = torch.randn(4, 8, generator=torch.Generator().manual_seed(0))
    outputs = (logits, -logits) if objective.head == "two_head" else logits / 9
    targets = torch.eye(8)[:4].roll(1, 0) / 4 + torch.eye(8)[:4] * 3 / 4
    assert torch.isfinite(objective(outputs, targets, ROWS))
