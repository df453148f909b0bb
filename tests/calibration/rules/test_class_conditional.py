"""One threshold a class, and that of all rows for small classes."""

import numpy as np
import pytest

from florilege.calibration.conformal import conformal_rank
from florilege.calibration.rules import calibrate
from florilege.calibration.rules.class_conditional import class_thresholds
from tests.calibration.simulation import CLASSES, draw

TRUE = np.array([0.5, 0.1, 0.9, 0.3, 0.7, 0.2])
LABELS = np.array([0, 0, 0, 1, 2, 2])


def test_a_class_with_enough_rows_has_its_own_quantile_and_the_others_that_of_all_rows() -> None:
    true = np.array([0.5, 0.4, 0.9, 0.3, 0.7, 0.2])
    result, small = class_thresholds(true, LABELS, 4, 0.75)
    assert conformal_rank(0.75, 3) == conformal_rank(0.75, 6) == 1
    assert result.tolist() == [0.4, 0.2, 0.2, 0.2]  # the lowest of its three, and of all six
    assert small.tolist() == [False, True, True, True]


def test_where_all_rows_are_too_few_every_class_is_in_every_set() -> None:
    result, small = class_thresholds(TRUE[3:], LABELS[3:], 4, 0.9)
    assert result.tolist() == [-np.inf] * 4
    assert small.all()


@pytest.mark.parametrize("min_size", [0, 1])
def test_every_class_with_enough_rows_is_covered(min_size: int) -> None:
    random = np.random.default_rng(1)
    calibration, new = draw(random, 8000), draw(random, 120_000)
    result = calibrate("class_coverage", *calibration, coverage=0.8, min_size=min_size)
    hits = result.sets(new.scores)[np.arange(len(new.labels)), new.labels]
    for label in range(CLASSES):
        mine = hits[new.labels == label]
        rows = int((calibration.labels == label).sum())
        bar = 4.5 * np.sqrt(0.2 * 0.8 * (1 / rows + 1 / len(mine)))  # thirty are compared
        assert mine.mean() >= 0.8 - bar
        if min_size == 0:
            assert mine.mean() <= 0.8 + 1 / rows + bar
    plain = calibrate("coverage", *calibration, coverage=0.8, min_size=0)
    plain_hits = plain.sets(new.scores)[np.arange(len(new.labels)), new.labels]
    assert min(plain_hits[new.labels == label].mean() for label in range(CLASSES)) < 0.6


def test_the_sets_are_those_of_a_threshold_a_class() -> None:
    random = np.random.default_rng(2)
    calibration, new = draw(random, 3000), draw(random, 500)
    rule = calibrate("class_coverage", *calibration, coverage=0.9, min_size=0)
    true = calibration.scores[np.arange(3000), calibration.labels]
    expected, small = class_thresholds(true, calibration.labels, CLASSES, 0.9)
    assert (rule.sets(new.scores) == (new.scores >= expected)).all()
    assert (rule.sets(new.scores) == (rule.compare(new.scores) >= 0)).all()
    assert rule.small_classes == small.sum()


def test_a_class_without_rows_has_the_threshold_of_all() -> None:
    scores, labels = np.random.default_rng(3).dirichlet(np.ones(3), 40), [0, 1] * 20
    rule = calibrate("class_coverage", scores, labels, coverage=0.9, min_size=0)
    plain = calibrate("coverage", scores, labels, coverage=0.9, min_size=0)
    assert (rule.sets(scores)[:, 2] == plain.sets(scores)[:, 2]).all()
    assert rule.small_classes == 1


def test_the_best_class_is_best_by_its_score_not_by_its_distance_from_the_threshold() -> None:
    scores = np.array([[0.6, 0.4]] * 20)
    rule = calibrate("class_coverage", scores, [0] * 10 + [1] * 10, coverage=0.9)
    assert rule.sets([[0.3, 0.29]])[0].tolist() == [True, False]
