"""Class counts, and values that are refused."""

import math
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


def test_a_k_must_leave_a_class_to_compare_with() -> None:
    batch = torch.zeros(1, 5), torch.tensor([0])
    checked(*batch, k=4)
    checked(*batch, k=np.int64(4))
    with pytest.raises(ValueError, match=r"k must be in \[1, 4\] for 5 classes, got 5"):
        checked(*batch, k=5)


NO_NUMBERS = ["1", None, True, torch.tensor(2.3), [1.0], 1j]


@pytest.mark.parametrize(
    ("name", "values", "message"),
    [
        ("k", [0, -1, 2.0, 1.5, math.nan, True, "3", None], "an integer of at least 1"),
        ("tau", [math.nan, math.inf, -0.1, 0.0], "finite and positive, got"),
        ("alpha", [math.nan, math.inf, -0.1], "finite and at least 0"),
        *((name, NO_NUMBERS, "a number, got") for name in ("tau", "alpha")),
    ],
)
def test_a_parameter_of_another_range_or_type_is_refused_by_name(
    name: str, values: list[Any], message: str
) -> None:
    for value in values:
        with pytest.raises(ValueError, match=f"{name} must be {message}"):
            check_parameters(**{name: value})
    check_parameters(alpha=0.0)
    check_parameters(alpha=np.float32(0.5))


def test_logits_must_be_a_floating_point_matrix() -> None:
    with pytest.raises(ValueError, match="logits"):
        checked(torch.zeros(3), torch.tensor([1]))
    with pytest.raises(ValueError, match="floating"):
        working(torch.ones(2, 2, dtype=torch.int64))
