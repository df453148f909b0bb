"""The rules that the front compares ours with, and how it compares them."""

import numpy as np
import pytest

from benchmarks.rules.front import _front, _gap
from benchmarks.rules.front_rules import (
    Task,
    by_tail,
    figures,
    fuzzy,
    interpolated,
    ours,
    tail_aware,
    weighted,
)
from benchmarks.rules.front_scores import Problem
from florilege.calibration.conformal import class_quantiles
from tests.calibration.simulation import CLASSES, PRIOR, draw


@pytest.fixture
def task() -> Task:
    sample = draw(np.random.default_rng(0), 900)
    counts = np.round(PRIOR * 10_000).astype(np.int64)
    problem = Problem(val=sample, test=sample, counts=counts, genus=np.zeros(CLASSES, np.int64),
                      means=np.eye(CLASSES), choice="")  # fmt: skip
    return Task(sample.scores, sample.labels, 0.8, problem)


def test_figures_count_each_class_that_has_photos_once() -> None:
    sets = np.array([[1, 0, 1], [1, 1, 1], [0, 1, 0], [0, 0, 0]], dtype=bool)
    result = figures(sets, np.array([0, 0, 2, 2]))
    assert result == {
        **{"size": 1.5, "size_90": pytest.approx(2.7), "macro": 0.5, "below_half": 0.5},
        "micro": 0.5,
    }


def test_borrowing_nothing_is_class_wise_and_everything_is_marginal(task: Task) -> None:
    own, shared = class_quantiles(task.true, task.labels, CLASSES, task.coverage)
    alone = fuzzy(task, lambda place: np.eye(CLASSES)[place])
    assert alone.tolist() == np.maximum(own, 0).tolist()
    assert fuzzy(task, lambda _: np.ones(CLASSES)).tolist() == [shared] * CLASSES


def test_our_rule_without_a_tail_is_the_published_interpolation(task: Task) -> None:
    equal = Problem(**{**vars(task.problem), "counts": np.ones(CLASSES, dtype=np.int64)})
    mine = weighted(task._replace(problem=equal), 0.7)(task.scores)
    assert (mine == interpolated(task, 0.7)(task.scores)).all()


def test_our_rule_is_the_weighted_interpolation_with_a_factor_below_weight_1(task: Task) -> None:
    both = ours("class_coverage"), weighted
    mine, alone = (rule(task, 1.0)(task.scores) for rule in both)
    assert (mine == alone).all()
    mine, alone = (rule(task, 0.5)(task.scores) for rule in both)
    assert mine.sum() < alone.sum()
    assert figures(mine, task.labels)["micro"] == pytest.approx(0.8, abs=0.01)


def test_common_species_alone_are_lowered_by_their_rank() -> None:
    scores = np.array([[0.5, 0.3, 0.2], [0.2, 0.7, 0.1]])
    lowered = tail_aware(scores, np.array([1000, 10, 10]), 0.1)
    assert lowered == pytest.approx(np.array([[0.5, 0.3, 0.2], [0.1, 0.7, 0.1]]))


def test_lowered_scores_have_a_threshold_of_their_own(task: Task) -> None:
    alone, lowered = by_tail(task, 0.0)(task.scores), by_tail(task, 0.1)(task.scores)
    assert (alone == ours("coverage")(task, "")(task.scores)).all()
    assert (alone != lowered).any()
    assert figures(lowered, task.labels)["micro"] == pytest.approx(0.8, abs=0.01)


def test_a_gap_is_measured_at_the_same_size_on_the_points_that_none_dominates() -> None:
    def point(size: float, macro: float) -> np.ndarray:
        return np.array([[size, 0.0, macro, 0.0, 0.0]])

    front = _front([point(4, 0.9), point(1, 0.5), point(1.5, 0.4), point(2, 0.7)])
    assert front[0, :, 0].tolist() == [1, 2, 4]
    assert _gap(point(np.sqrt(2), 0.5), front) == pytest.approx(0.1)  # sizes are logarithmic
    assert np.isnan(_gap(point(8, 0.9), front)).all()
