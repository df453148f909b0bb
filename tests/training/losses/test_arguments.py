"""Class counts, and values that are refused."""

from typing import Any

import numpy as np
import pytest
import torch

from florilege.training.losses.arguments import (
    check_parameters,
    checked,
    class_weights,
    count_classes,
    working,
)


@pytest.mark.parametrize(
    "given",
    [
        [1, 1, 2],
        (1, 1, 2),
        np.array([1, 1, 2]),
        np.array([1.0, 1.0, 2.0]),
        torch.tensor([1, 1, 2]),
        np.array([1, 1, 2], dtype=np.uint16),
        torch.tensor([1, 1, 2], dtype=torch.uint8),
    ],
    ids=["list", "tuple", "array", "floats", "tensor", "short", "bytes"],
)
def test_class_counts_are_whole_numbers_of_any_type(given: Any) -> None:
    counts = count_classes(given)
    assert counts.tolist() == [1, 1, 2]
    assert counts.dtype == torch.int64


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([3, 0, 1], r"got none for \[1\]"),
        ([1.5, 2.0], "whole numbers"),
        ([float("inf"), 2.0], "whole numbers"),
        (torch.tensor([float("nan"), 2.0]), "whole numbers"),
        (["1", "2"], "whole numbers"),
        ([1, None], "whole numbers"),
        ([[1, 2], [3]], "whole numbers"),
        ({0: 3, 1: 5}, "whole numbers"),
        ([[1, 2]], "must have shape"),
        ([], "must have shape"),
        ("many", "whole numbers"),
        (7, "must have shape"),
    ],
)
def test_counts_that_leave_a_class_without_a_margin_are_refused(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        count_classes(given)


def test_numbers_become_float64_weights_and_tensors_keep_their_type() -> None:
    weights = class_weights([0.1, 1])
    assert weights is not None
    assert weights.dtype == torch.float64
    whole = class_weights(torch.tensor([2, 1]))
    assert whole is not None
    assert whole.dtype == torch.float64
    assert whole.tolist() == [2.0, 1.0]
    remaining = class_weights(torch.ones(2))
    assert remaining is not None
    assert remaining.dtype == torch.float32


@pytest.mark.parametrize("k", [0, -1, 2.0, 1.5, float("nan"), True, "3", None])
def test_a_k_that_is_no_positive_whole_number_is_refused(k: Any) -> None:
    with pytest.raises(ValueError, match="k must be an integer of at least 1"):
        check_parameters(k=k)


def test_a_k_must_leave_a_class_to_compare_with() -> None:
    batch = torch.zeros(1, 5), torch.tensor([0])
    checked(*batch, k=4)
    checked(*batch, k=np.int64(4))
    with pytest.raises(ValueError, match=r"k must be in \[1, 4\] for 5 classes, got 5"):
        checked(*batch, k=5)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -0.1])
def test_a_number_outside_its_range_is_refused_by_name(value: float) -> None:
    with pytest.raises(ValueError, match="positive"):
        check_parameters(tau=value)
    with pytest.raises(ValueError, match=r"alpha must be finite and at least 0"):
        check_parameters(alpha=value)


@pytest.mark.parametrize("value", ["1", None, True, torch.tensor(2.3), [1.0], 1j])
def test_what_is_no_number_is_refused_by_name(value: Any) -> None:
    with pytest.raises(ValueError, match="number"):
        check_parameters(tau=value)
    with pytest.raises(ValueError, match="alpha"):
        check_parameters(alpha=value)


def test_zero_is_not_positive_but_at_least_zero() -> None:
    check_parameters(alpha=0.0)
    check_parameters(alpha=np.float32(0.5))
    with pytest.raises(ValueError, match=r"epsilon .* got 0"):
        check_parameters(epsilon=0.0)


def test_logits_must_be_a_floating_point_matrix() -> None:
    with pytest.raises(ValueError, match="logits"):
        checked(torch.zeros(3), torch.tensor([1]))
    with pytest.raises(ValueError, match="floating"):
        working(torch.ones(2, 2, dtype=torch.int64))
