"""Accuracies and sizes against loops."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.calibration import metrics
from florilege.calibration.metrics import FEW_BELOW, MANY_ABOVE
from tests.calibration import oracles
from tests.calibration.strategies import Scores, draw_labels, score_arrays

EVEN = [[0.5, 0.5], [0.5, 0.5]]


def class_by_class(hits: list[bool], labels: list[int]) -> float:
    """Mean over classes of the mean over rows, by loops."""
    shares = []
    for label in set(labels):
        mine = [hit for hit, true in zip(hits, labels, strict=True) if true == label]
        shares.append(sum(mine) / len(mine))
    return sum(shares) / len(shares)


@settings(max_examples=100)
@given(data=st.data(), scores=score_arrays())
def test_average_k_figures_are_those_of_loops(data: st.DataObject, scores: Scores) -> None:
    labels = draw_labels(data, scores)
    lambda_val = float(data.draw(st.sampled_from(scores.ravel().tolist())))
    members = oracles.sets(scores, lambda_val, min_size=0)
    hits = [label in members_of for label, members_of in zip(labels, members, strict=True)]
    sizes = [len(members_of) for members_of in members]
    assert metrics.average_k_accuracy(scores, labels, lambda_val) == np.mean(hits)
    assert metrics.macro_average_k_accuracy(scores, labels, lambda_val) == pytest.approx(
        class_by_class(hits, labels)
    )
    assert metrics.mean_set_size(scores, lambda_val) == np.mean(sizes)
    histogram = metrics.set_size_histogram(scores, lambda_val)
    assert histogram.tolist() == [sizes.count(size) for size in range(scores.shape[1] + 1)]


@settings(max_examples=100)
@given(data=st.data(), scores=score_arrays())
def test_top_k_figures_are_those_of_a_stable_sort(data: st.DataObject, scores: Scores) -> None:
    labels = draw_labels(data, scores)
    k = data.draw(st.integers(1, scores.shape[1]))
    members = oracles.top_k_sets(scores, k)
    hits = [label in members_of for label, members_of in zip(labels, members, strict=True)]
    assert metrics.top_k_accuracy(scores, labels, k) == np.mean(hits)
    assert metrics.macro_top_k_accuracy(scores, labels, k) == pytest.approx(
        class_by_class(hits, labels)
    )


def test_a_single_precision_score_just_below_a_double_threshold_is_out() -> None:
    score = np.float32(0.3)
    above = float(np.nextafter(np.float64(score), 1.0))  # rounds to the score in single precision
    assert metrics.average_k_accuracy(np.array([[score]]), [0], above) == 0.0
    assert metrics.mean_set_size(np.array([[score]]), above) == 0.0
    assert metrics.mean_set_size(np.array([[score]]), float(score)) == 1.0


def test_shot_groups_cut_at_20_and_100_training_images() -> None:
    assert (FEW_BELOW, MANY_ABOVE) == (20, 100)
    groups = metrics.shot_groups([0, FEW_BELOW - 1, FEW_BELOW, MANY_ABOVE, MANY_ABOVE + 1])
    assert groups["few"].tolist() == [True, True, False, False, False]
    assert groups["medium"].tolist() == [False, False, True, True, False]
    assert groups["many"].tolist() == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("metric", "arguments", "message"),
    [
        *((metrics.top_k_accuracy, (EVEN, [0, 0], k), r"k must be an integer in \[1, 2\]")
          for k in (0, 3, 1.5)),
        (metrics.average_k_accuracy, (EVEN, [0], 0.5), "shape"),
        (metrics.average_k_accuracy, (EVEN, [0.0, 1.0], 0.5), "integers"),
        (metrics.average_k_accuracy, (EVEN, [0, 2], 0.5), r"\[0, 2\), got 2 in row 1"),
        (metrics.average_k_accuracy, (EVEN, [-1, 0], 0.5), r"\[0, 2\), got -1 in row 0"),
        (metrics.average_k_accuracy, (EVEN, [0, 0], math.nan), "lambda_val"),
        (metrics.average_k_accuracy, (EVEN, [0, 0], None), "lambda_val"),  # that of `top_k`
        (metrics.mean_set_size, (EVEN, math.nan), "lambda_val"),
        (metrics.mean_set_size, (EVEN, None), "lambda_val"),
        (metrics.mean_set_size, ([[np.nan, 0.5]], 0.5), "row 0"),
        (metrics.set_size_histogram, ([[np.nan, 0.5]], 0.5), "row 0"),
        (metrics.shot_groups, ([1, -1],), "at least 0"),
        (metrics.shot_groups, ([[1, 2]],), "shape"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(
    metric: Callable[..., object], arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        metric(*arguments)
