"""Every combination of options, against loops over the oracle of one row."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import florilege.training.losses
from florilege.training.losses import build
from tests.training.losses import examples, oracles
from tests.training.losses.examples import CLASSES, COUPLED, PER_EXAMPLE, WEIGHT, Example, call

IGNORED = 3

EXAMPLES = pytest.mark.parametrize("example", PER_EXAMPLE, ids=lambda example: example.key)
COUPLED_KEYS = pytest.mark.parametrize("key", COUPLED)


def label_kinds() -> list[Tensor]:
    """Integer labels, integer labels with some ignored, soft targets."""
    some_ignored = examples.labels()
    some_ignored[[0, 5]] = IGNORED
    return [examples.labels(), some_ignored, examples.soft_targets()]


def weighted_rows(
    example: Example, labels: Tensor, weight: list[float] | None, ignore: int
) -> tuple[list[float], float]:
    """Value of each row, and the divisor of the mean."""
    weights = weight or [1.0] * CLASSES
    smoothing = example.parameters.get("label_smoothing", 0.0)
    values, divisor = [], 0.0
    for s, label in zip(examples.scores().tolist(), labels.tolist(), strict=True):
        if not isinstance(label, list) and label == ignore:
            values.append(0.0)
            continue
        options = label if isinstance(label, list) else [float(c == label) for c in range(CLASSES)]
        # the smoothed share of a label carries the weight of the class it is spread to
        targets = [(1 - smoothing) * t + smoothing / CLASSES for t in options]
        loss = oracles.cross_entropy if smoothing else example.oracle
        shares = [t * w for t, w in zip(targets, weights, strict=True)]
        values.append(oracles.mixture(loss, s, shares))
        divisor += 1.0 if isinstance(label, list) else weights[label]
    return values, divisor


@EXAMPLES
def test_every_combination_of_options_is_the_loop_over_rows(example: Example) -> None:
    for labels, weight, reduction, ignore in itertools.product(
        label_kinds(), (None, WEIGHT), ("mean", "sum", "none"), (-100, IGNORED)
    ):
        if not labels.is_floating_point() and ignore == -100 and labels[0] == IGNORED:
            continue
        options = {"weight": weight, "reduction": reduction, "ignore_index": ignore}
        loss = build(example.key, **example.parameters, **options)
        values, divisor = weighted_rows(example, labels, weight, ignore)
        expected: Any = values
        if reduction != "none":
            expected = sum(values) / (divisor if reduction == "mean" else 1)
        torch.testing.assert_close(
            loss(examples.scores(), labels),
            torch.tensor(expected, dtype=torch.float64),
            rtol=1e-10,
            atol=1e-10,
        )


def targets_of(labels: Tensor, ignore: int) -> tuple[list[int], list[list[float]]]:
    """The counted rows, and their targets as rows of numbers."""
    if labels.is_floating_point():
        return list(range(len(labels))), labels.tolist()
    remaining = [i for i, label in enumerate(labels.tolist()) if label != ignore]
    return remaining, [[float(c == labels[i]) for c in range(CLASSES)] for i in remaining]


@COUPLED_KEYS
def test_coupled_losses_with_every_combination_of_options_are_their_oracle(key: str) -> None:
    z, sccp = examples.scores().tolist(), examples.scores(seed=7).tolist()
    for labels, weight, reduction in itertools.product(
        label_kinds(), (None, WEIGHT), ("mean", "sum")
    ):
        options = {"weight": weight, "reduction": reduction, "ignore_index": IGNORED}
        loss: Any = build(key, **COUPLED[key], **options)
        remaining, targets = targets_of(labels, IGNORED)
        weights, soft = weight or [1.0] * CLASSES, labels.is_floating_point()
        rows, other = [z[i] for i in remaining], [sccp[i] for i in remaining]
        if key == "expected_positive":
            value = loss(examples.scores(), labels)
            expected = oracles.expected_positive(rows, targets, 2.3, 0.3, weights, soft=soft)
        elif key == "two_head_average_k":
            value = loss(examples.scores(), examples.scores(seed=7), labels)
            expected = oracles.two_head_average_k(
                rows, other, targets, 2.5, 0.4, weights, soft=soft
            )
        else:
            loss.estimates.logits.copy_(examples.scores(seed=7))
            loss.estimates.is_new.fill_(False)
            theta = loss.estimates.logits.double().tolist()
            value = loss(examples.scores(), labels, torch.arange(8))
            expected = oracles.role(
                rows, [theta[i] for i in remaining], targets, 2.3, 0.6, weights, soft=soft
            )
        if reduction == "sum":
            expected *= len(remaining)
        torch.testing.assert_close(
            value, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10
        )


def slope_of(key: str, parameters: dict[str, Any], logits: Tensor, labels: Tensor) -> Tensor:
    """The gradient of the loss to the logits."""
    value = call(key, build(key, **parameters), logits.requires_grad_(), labels)
    return torch.autograd.grad(value, logits)[0]


def check_finite(key: str, parameters: dict[str, Any], logits: Tensor, labels: Tensor) -> None:
    """The loss and its gradient are finite."""
    assert torch.isfinite(call(key, build(key, **parameters), logits, labels))
    assert torch.isfinite(slope_of(key, parameters, logits, labels)).all()


ALL = [(e.key, e.parameters) for e in PER_EXAMPLE] + list(COUPLED.items())
EVERY = pytest.mark.parametrize(("key", "parameters"), ALL, ids=[key for key, _ in ALL])


@EVERY
def test_a_batch_without_a_counted_row_gives_zero_with_a_gradient(
    key: str, parameters: dict[str, Any]
) -> None:
    logits = examples.scores().requires_grad_()
    value = call(key, build(key, **parameters), logits, torch.full((8,), -100))
    (slope,) = torch.autograd.grad(value, logits)
    assert value.item() == 0
    assert not slope.any()


@EVERY
def test_a_batch_whose_labels_weigh_nothing_gives_no_gradient_also_if_the_loss_is_scaled(
    key: str, parameters: dict[str, Any]
) -> None:
    if key == "cross_entropy":
        parameters = {}  # what is smoothed has the weights of other classes
    if key == "expected_positive":  # what it asks of the size of the sets has no weight
        parameters = {**parameters, "beta": 0.0}
    if key in ("role", "two_head_average_k"):
        parameters = {**parameters, "weight": [0.0] * (CLASSES - 1) + [1.0]}
    loss = build(key, **{"weight": WEIGHT, **parameters})
    logits = examples.scores(dtype=torch.float32).requires_grad_()
    value = call(key, loss, logits, torch.full((8,), WEIGHT.index(0)))
    (slope,) = torch.autograd.grad(value * 2**16, logits)  # as with float16
    assert torch.isfinite(slope).all()
    if key not in ("role", "two_head_average_k"):
        assert not slope.any()


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_weights_of_half_precision_targets_are_not_rounded(
    key: str, parameters: dict[str, Any], dtype: torch.dtype
) -> None:
    logits, targets = examples.scores(dtype=torch.float32), examples.soft_targets().to(dtype)
    values = []
    for given in (targets, targets.float()):
        torch.manual_seed(0)
        loss = build(key, **{**parameters, "weight": [0.7, 1.3, 0.1, 2.1, 3.3]})
        values.append(call(key, loss, logits, given))
    torch.testing.assert_close(values[0], values[1], rtol=1e-6, atol=1e-6)


@EVERY
def test_an_ignored_row_leaves_value_and_gradient_of_the_others(
    key: str, parameters: dict[str, Any]
) -> None:
    if "noised" in key:
        parameters = {**parameters, "epsilon": 1e-13}
    labels = torch.cat([examples.labels(6), torch.tensor([-100, -100])])
    with_ignored = slope_of(key, parameters, examples.scores(), labels)
    alone = slope_of(key, parameters, examples.scores()[:6], labels[:6])
    torch.testing.assert_close(with_ignored[:6], alone, rtol=1e-10, atol=1e-12)
    assert not with_ignored[6:].any()


@EVERY
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_finite(
    key: str, parameters: dict[str, Any], dtype: torch.dtype
) -> None:
    logits = (examples.scores() * 50).to(dtype).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = call(key, build(key, **parameters), logits, examples.labels())
    (slope,) = torch.autograd.grad(value, logits)
    exact = call(key, build(key, **parameters), logits.detach().float(), examples.labels())
    assert value.dtype == torch.float32
    torch.testing.assert_close(value, exact, rtol=1e-5, atol=1e-5)
    assert slope.dtype == dtype
    assert torch.isfinite(slope).all()


@EVERY
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_logits_give_finite_values_and_gradients(
    key: str, parameters: dict[str, Any], dtype: torch.dtype
) -> None:
    logits = torch.where(examples.scores() > 0, 1e4, -1e4).to(dtype)
    check_finite(key, parameters, logits, examples.labels())


@pytest.mark.parametrize(
    ("key", "parameters"),
    [(key, value) for key, value in ALL if "noised" not in key and key != "role"],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_gradients_are_those_of_finite_differences_for_hard_and_soft_labels(
    key: str, parameters: dict[str, Any]
) -> None:
    loss = build(key, weight=WEIGHT, **parameters)
    for labels in (examples.labels(4), examples.soft_targets(4)):
        logits = examples.scores(4, seed=3).requires_grad_()
        assert torch.autograd.gradcheck(
            lambda z, labels=labels: call(key, loss, z, labels),
            logits,
        )


@COUPLED_KEYS
def test_coupled_losses_refuse_one_value_per_example(key: str) -> None:
    with pytest.raises(ValueError, match="whole"):
        build(key, **COUPLED[key], reduction="none")


@EVERY
def test_options_that_make_no_sense_are_refused(key: str, parameters: dict[str, Any]) -> None:
    for option, message in (
        ({"reduction": "average"}, "reduction must be one of 'mean', 'sum'"),
        ({"weight": [1.0, float("nan")]}, "weight must be finite"),
        ({"weight": [1.0, -1.0]}, "weight must be finite, at least 0"),
        ({"weight": [0, 0, 0]}, "weight must be .* not all 0"),
        ({"weight": torch.ones(5, dtype=torch.complex64)}, "weight must be real numbers"),
        ({"weight": "heavy"}, "weight must be real numbers"),
        ({"weight": [[1.0]]}, r"weight must be real numbers of shape \(classes,\)"),
        ({"ignore_index": 0.5}, "ignore_index must be an integer"),
        ({"ignore_index": 10**20}, "ignore_index must be an integer of 64 bits"),
    ):
        with pytest.raises(ValueError, match=message):
            build(key, **{**parameters, **option})


@EVERY
@pytest.mark.parametrize("weight", [None, WEIGHT])
def test_tensors_that_do_not_fit_are_refused(
    key: str, parameters: dict[str, Any], weight: list[float] | None
) -> None:
    loss = build(key, weight=weight, **parameters)
    logits, labels = examples.scores(), examples.labels()
    with pytest.raises(ValueError, match=r"labels must be in \[0, 4\], got 5"):
        call(key, loss, logits, labels.masked_fill(labels == labels[0], 5))
    with pytest.raises(ValueError, match=r"labels must be in \[0, 4\], got -1"):
        call(key, loss, logits, labels.masked_fill(labels == labels[0], -1))
    with pytest.raises(ValueError, match="labels"):
        call(key, loss, logits, labels[:7])
    with pytest.raises(ValueError, match=r"classes, int64 \(8,\), or soft targets .*float32"):
        call(key, loss, logits, labels.float())
    with pytest.raises(ValueError, match="labels must be int64"):
        call(key, loss, logits, labels.int())
    with pytest.raises(ValueError, match="targets"):
        call(key, loss, logits, torch.ones(8, CLASSES + 1))
    with pytest.raises(ValueError, match="weight"):
        call(key, build(key, weight=[1.0, 2.0], **parameters), logits, labels)


@EVERY
def test_an_ignored_row_whose_first_class_is_masked_leaves_finite_gradients(
    key: str, parameters: dict[str, Any]
) -> None:
    logits, labels = examples.scores(), examples.labels()
    logits[0, 0], labels[0] = -torch.inf, -100
    check_finite(key, parameters, logits, labels)


@pytest.mark.parametrize(
    ("key", "parameters"),
    # cross_entropy gives torch's values; the estimates of role know no masked class
    [(key, value) for key, value in ALL if key not in ("cross_entropy", "role")],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_masked_class_without_a_target_leaves_value_and_gradient_finite(
    key: str, parameters: dict[str, Any]
) -> None:
    logits, targets = examples.scores(), torch.zeros(8, CLASSES)
    logits[:, 4] = -torch.inf
    targets[:, 0], targets[:, 2] = 0.25, 0.75
    check_finite(key, parameters, logits, targets)


@EVERY
def test_labels_of_one_byte_are_those_of_eight_also_beside_an_ignored_negative_number(
    key: str, parameters: dict[str, Any]
) -> None:
    classes = 200  # label 156 has the bits of the ignored -100
    parameters = {
        name: {"class_counts": [3] * classes, "classes": classes}.get(name, value)
        for name, value in parameters.items()
    }
    logits = torch.randn(8, classes, dtype=torch.float64)
    labels = torch.tensor([156, 156, 0, 199, 7, 156, 3, 100])
    whole, byte = (
        call(key, build(key, reduction="sum", **parameters), logits, value)
        for value in (labels, labels.to(torch.uint8))
    )
    torch.testing.assert_close(byte, whole, rtol=1e-9, atol=1e-11)


def test_functions_take_labels_of_one_byte_too() -> None:
    labels = examples.labels()
    for example in PER_EXAMPLE:
        function = getattr(florilege.training.losses, example.key)
        whole, byte = (
            function(examples.scores(), value, **example.parameters)
            for value in (labels, labels.to(torch.uint8))
        )
        torch.testing.assert_close(byte, whole, rtol=1e-9, atol=1e-11)


@EVERY
def test_a_second_derivative_is_right_or_refused_also_beside_other_terms(
    key: str, parameters: dict[str, Any]
) -> None:
    logits = examples.scores(4, seed=3).requires_grad_()
    loss = build(key, **parameters)

    def value(z: Tensor) -> Tensor:
        return call(key, loss, z, examples.labels(4)).sum() + z.exp().sum()

    refusal = ""
    try:
        torch.autograd.grad(value(logits), logits, create_graph=True)
    except RuntimeError as error:
        refusal = str(error)
    assert "create_graph" in refusal or torch.autograd.gradgradcheck(value, logits)
