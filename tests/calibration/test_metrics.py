"""Ranks against sorted lists, and groups of classes."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.calibration import metrics
from florilege.calibration.metrics import FEW_BELOW, MANY_ABOVE
from tests.calibration import oracles
from tests.calibration.strategies import Scores, draw_labels, score_arrays


@settings(max_examples=100, deadline=None)
@given(data=st.data(), scores=score_arrays())
def test_the_rank_of_the_true_class_is_that_of_a_stable_sort(
    data: st.DataObject, scores: Scores
) -> None:
    labels = draw_labels(data, scores)
    ranks = metrics.true_class_ranks(scores, np.array(labels))
    for k in range(1, scores.shape[1] + 1):
        members = oracles.top_k_sets(scores, k)
        hits = [label in members_of for label, members_of in zip(labels, members, strict=True)]
        assert (ranks < k).tolist() == hits


def test_shot_groups_cut_at_20_and_100_training_images() -> None:
    assert (FEW_BELOW, MANY_ABOVE) == (20, 100)
    groups = metrics.shot_groups([0, FEW_BELOW - 1, FEW_BELOW, MANY_ABOVE, MANY_ABOVE + 1])
    assert groups["few"].tolist() == [True, True, False, False, False]
    assert groups["medium"].tolist() == [False, False, True, True, False]
    assert groups["many"].tolist() == [False, False, False, False, True]


@pytest.mark.parametrize(
    ("metric", "arguments", "message"),
    [
        *((partial(metrics.check_k, classes=2), (k,), r"k must be an integer in \[1, 2\]")
          for k in (0, 3, 1.5, True)),
        (metrics.shot_groups, ([1, -1],), "at least 0"),
        (metrics.shot_groups, ([[1, 2]],), "shape"),
    ],
)  # fmt: skip
def test_wrong_arguments_are_named(
    metric: Callable[..., object], arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        metric(*arguments)
