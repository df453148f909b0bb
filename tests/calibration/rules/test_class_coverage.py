"""Thresholds between one for all rows and one for each class."""

from fractions import Fraction
from math import ceil

import numpy as np
import pytest
from numpy.typing import NDArray

from florilege.calibration.conformal import (
    class_quantiles,
    interpolate,
    promised_coverage,
)
from florilege.calibration.rules import calibrate
from florilege.calibration.sets import SetRule
from tests.calibration.simulation import CLASSES, PRIOR, Sample, draw

TRUE = np.array([0.5, 0.4, 0.9, 0.3, 0.7, 0.2])
LABELS = np.array([0, 0, 0, 1, 2, 2])
COUNTS = np.round(PRIOR * 10_000).astype(np.int64)


def oracle(sample: Sample, counts: list[int], coverage: float, w: float) -> list[list[bool]]:
    """The sets of the calibration rows themselves, from the formulas, with ``min_size`` 0.

    Nonconformity is the negative weighted score, as in the paper; its quantile is the
    ``ceil((n + 1) coverage)``-th smallest, and 0, the score that no class is below, without one.
    """
    factors = [(1 - w) + w * sum(counts) / (len(counts) * count) for count in counts]

    def quantile(rows: list[int]) -> float:
        wrong = sorted(-float(sample.scores[i][sample.labels[i]]) * factors[sample.labels[i]]
                       for i in rows)  # fmt: skip
        rank = ceil((len(rows) + 1) * Fraction(str(coverage)))
        return 0.0 if rank > len(rows) else wrong[rank - 1]

    every = list(range(len(sample.labels)))
    shared = quantile(every)
    result = []
    for i in every:
        members = []
        for label, factor in enumerate(factors):
            own = quantile([j for j in every if sample.labels[j] == label])
            bound = w * own + (1 - w) * shared
            members.append(-float(sample.scores[i][label]) * factor <= bound + 1e-12)
        result.append(members)
    return result


@pytest.mark.parametrize("macro_weight", [0.0, 0.2, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("coverage", [0.75, 0.9])
def test_sets_are_those_of_the_formula(coverage: float, macro_weight: float) -> None:
    sample = draw(np.random.default_rng(4), 150)
    counts = [int(count) for count in COUNTS]
    rule = calibrate(
        "class_coverage", *sample, coverage=coverage, macro_weight=macro_weight, min_size=0,
        class_counts=counts,
    )  # fmt: skip
    assert rule.sets(sample.scores).tolist() == oracle(sample, counts, coverage, macro_weight)


def test_a_class_has_the_quantile_of_its_rows_or_none_where_they_are_too_few() -> None:
    own, shared = class_quantiles(TRUE, LABELS, 4, 0.75)
    assert own.tolist() == [0.4, -np.inf, -np.inf, -np.inf]  # the lowest of its three
    assert shared == 0.2  # of all six
    assert class_quantiles(TRUE, LABELS, 4, 0.9)[1] == -np.inf


def test_too_few_rows_leave_the_rest_of_the_threshold_of_all() -> None:
    scores, labels = np.random.default_rng(3).dirichlet(np.ones(3), 40), [0, 1] * 20
    options = {"coverage": 0.9, "min_size": 0, "class_counts": [1, 1, 1]}
    plain = calibrate("coverage", scores, labels, coverage=0.9, min_size=0)
    rule = calibrate("class_coverage", scores, labels, macro_weight=0.25, **options)  # type: ignore[arg-type]  # mixed
    assert plain.lambda_val is not None
    assert thresholds(rule)[2] == pytest.approx(0.75 * plain.lambda_val)
    rule = calibrate("class_coverage", scores, labels, macro_weight=1.0, **options)  # type: ignore[arg-type]  # mixed
    assert rule.sets(scores)[:, 2].all()


@pytest.mark.parametrize("min_size", [0, 1])
def test_a_macro_weight_of_zero_is_the_rule_for_all_photos(min_size: int) -> None:
    sample = draw(np.random.default_rng(5), 400)
    options = {"coverage": 0.9, "min_size": min_size}
    plain = calibrate("coverage", *sample, **options)  # type: ignore[arg-type]  # mixed
    rule = calibrate("class_coverage", *sample, macro_weight=0.0, **options)  # type: ignore[arg-type]  # mixed
    assert thresholds(rule).tolist() == [plain.lambda_val] * CLASSES
    assert (rule.sets(sample.scores) == plain.sets(sample.scores)).all()


def test_equal_thresholds_stay_what_they_are() -> None:
    own = np.array([0.1, 0.3, 1 / 3])
    for weight in np.linspace(0, 1, 101):
        for shared in own:
            mixed = interpolate(own, shared, weight)
            assert mixed[own == shared] == shared
            assert (mixed >= np.minimum(own, shared)).all()
            assert (mixed <= np.maximum(own, shared)).all()
    assert interpolate(own, 0.7, 1.0).tolist() == own.tolist()


def test_the_promise_is_the_sum_of_two_misses_but_at_the_ends() -> None:
    assert [promised_coverage(0.95, weight) for weight in (0.0, 1e-9, 0.5, 1.0)] == [
        *(0.95, 0.9, 0.9, 0.95)
    ]
    assert promised_coverage(0.4, 0.5) == 0.0


def test_some_data_come_close_to_twice_the_misses() -> None:
    """A tenth of photos is of class 1 and hard; class 0 has just too few low scores for a cut."""
    labels = np.repeat([0, 1], [9000, 1000])
    true = np.ones(10_000)
    true[:855] = 0.4  # 9.5 % of class 0, whose own threshold is 1
    true[9000:9950] = 0.3  # own threshold 0.3; with class 0 the threshold of all rows is 0.4
    own, shared = class_quantiles(true, labels, 2, 0.9)
    assert (own.tolist(), shared) == ([1.0, 0.3], 0.4)
    covered = (true >= interpolate(own, shared, 0.5)[labels]).mean()
    assert promised_coverage(0.9, 0.5) <= covered < 0.82


def test_the_best_class_is_best_by_its_score_not_by_its_distance_from_the_threshold() -> None:
    scores = np.array([[0.6, 0.4]] * 20)
    rule = calibrate("class_coverage", scores, [0] * 10 + [1] * 10, coverage=0.9)
    assert rule.sets([[0.3, 0.29]])[0].tolist() == [True, False]


def thresholds(rule: SetRule) -> NDArray[np.float64]:
    """Those of a rule that has one for each class."""
    assert rule.class_thresholds is not None
    return rule.class_thresholds


def test_each_class_allows_for_the_scores_that_its_photos_compared() -> None:
    sample = draw(np.random.default_rng(6), 3000)
    every = np.arange(sample.labels.size)
    true = sample.scores[every, sample.labels]
    one, eight = (
        class_quantiles(true, sample.labels, CLASSES, 0.9, candidates=candidates)
        for candidates in (1, 8)
    )
    common = np.bincount(sample.labels, minlength=CLASSES) > 200
    assert (eight[0][common] < one[0][common]).all()
    assert eight[1] < one[1]
