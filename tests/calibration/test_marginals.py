"""Top-k marginals against the sum over all subsets."""

from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.calibration.marginals import HEAVY, LARGEST_K, ROWS_AT_ONCE, top_k_marginals
from tests.calibration.oracles import marginals


@settings(max_examples=150)
@given(
    data=st.data(),
    logits=st.lists(st.floats(-12, 12) | st.sampled_from([0.0, 5.0]), min_size=1, max_size=12),
)
def test_marginals_are_sums_over_all_subsets(data: st.DataObject, logits: list[float]) -> None:
    k = data.draw(st.integers(1, len(logits)) if len(logits) < 10 else st.integers(1, 3))
    result = top_k_marginals([logits], k)
    assert result[0] == pytest.approx(np.array(marginals(logits, k)), abs=1e-12)


def exact(logits: np.ndarray, k: int) -> list[float]:
    """Marginals with 300 digits: the product of all factors, then each divided out."""
    with localcontext(prec=300):
        weights = [Decimal(float(logit)).exp() for logit in logits]
        whole = [Decimal(1)] + [Decimal(0)] * k
        for weight in weights:
            for power in range(k, 0, -1):
                whole[power] += weight * whole[power - 1]
        result = []
        for weight in weights:
            others = Decimal(1)
            for power in range(1, k):
                others = whole[power] - weight * others
            result.append(float(weight * others / whole[k]))
    return result


@pytest.mark.parametrize("k", [1, 2, 7, LARGEST_K])
@pytest.mark.parametrize(
    "logits",
    [
        np.zeros(100),
        np.random.default_rng(5).normal(0, 0.01, 100),
        np.random.default_rng(6).normal(0, 8, 100),
        -0.7 * np.arange(100.0),  # whatever is left out, one class weighs half of the rest
        np.where(np.arange(100) % 9, -4.0, 4.0),
        np.repeat([20.0, 0.0, -20.0], [30, 40, 30]),
        np.concatenate([np.zeros(HEAVY * LARGEST_K), np.full(60, -1e-9)]),
        np.where(np.arange(100) < LARGEST_K + 3, np.linspace(0, 0.5, 100), -50.0),
        np.where(np.arange(100) < HEAVY * LARGEST_K + 1, np.linspace(0, 0.5, 100), -50.0),
        np.concatenate([np.zeros(2), np.full(98, -3.0)]),
    ],
)
def test_marginals_of_many_classes_have_all_their_digits(k: int, logits: np.ndarray) -> None:
    assert len(logits) > HEAVY * k
    result = top_k_marginals(logits[np.newaxis], k)[0]
    assert result == pytest.approx(np.array(exact(logits, k)), abs=1e-14)


@pytest.mark.parametrize("k", [1, 2, 5, LARGEST_K])
@pytest.mark.parametrize("classes", [21, 100, 1081])
@pytest.mark.parametrize("scale", [0.0, 1.0, 10.0, 1000.0])
def test_marginals_are_probabilities_that_sum_to_k(k: int, classes: int, scale: float) -> None:
    logits = scale * np.random.default_rng(classes).normal(size=(3, classes))
    result = top_k_marginals(logits, k)
    assert result.sum(axis=1) == pytest.approx(np.full(3, k), abs=1e-9)
    assert (result >= 0).all()
    assert (result <= 1).all()


def test_one_dominant_class_is_in_every_set_and_leaves_the_rest_alike() -> None:
    logits = np.zeros((1, 101))
    logits[0, 7] = 700.0
    result = top_k_marginals(logits, 20)
    assert result[0, 7] == pytest.approx(1.0, abs=1e-9)
    assert np.delete(result[0], 7) == pytest.approx(np.full(100, 0.19), abs=1e-9)


def test_one_is_the_softmax_and_classes_are_permuted_and_ordered_like_their_logits() -> None:
    logits = np.sort(np.random.default_rng(1).normal(0, 3, (4, 37)))
    powers = np.exp(logits)
    assert top_k_marginals(logits, 1) == pytest.approx(powers / powers.sum(axis=1, keepdims=True))
    result, order = top_k_marginals(logits, 5), np.random.default_rng(3).permutation(37)
    assert (np.diff(result) >= -1e-15).all()
    assert top_k_marginals(logits[:, order], 5) == pytest.approx(result[:, order], abs=1e-13)


@pytest.mark.parametrize("rows", [1, ROWS_AT_ONCE, ROWS_AT_ONCE + 1, 2 * ROWS_AT_ONCE + 6])
def test_a_class_at_minus_infinity_has_none_and_more_rows_than_a_block_are_fine(rows: int) -> None:
    logits = np.random.default_rng(4).normal(size=(rows, 5))
    logits[:, 2] = -np.inf
    result = top_k_marginals(logits, 2)
    assert (result[:, 2] == 0).all()
    assert result[-1] == pytest.approx(top_k_marginals(logits[-1:], 2)[0], abs=1e-15)


@pytest.mark.parametrize(
    ("logits", "k", "message"),
    [
        *((np.zeros((1, classes)), k, r"k must be in \[1, ")
          for k, classes in ((0, 5), (6, 5), (LARGEST_K + 1, 50))),
        *((np.where(np.arange(200).reshape(40, 5) == 191, bad, 0.0), 2, "row 38")
          for bad in (np.nan, np.inf)),
        ([[0.0, -np.inf, -np.inf]], 2, "2 finite values"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(logits: np.ndarray, k: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        top_k_marginals(logits, k)
