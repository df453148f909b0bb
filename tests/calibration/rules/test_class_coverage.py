"""Thresholds between one for all rows and one for each class."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from florilege.calibration.conformal import class_quantiles, interpolate
from florilege.calibration.rules import calibrate
from florilege.calibration.rules.score_summary import ScoreSummary
from florilege.calibration.sets import SetRule
from tests.calibration.simulation import CLASSES, PRIOR, Sample, draw

TRUE = np.array([0.5, 0.4, 0.9, 0.3, 0.7, 0.2])
LABELS = np.array([0, 0, 0, 1, 2, 2])
# Scores of 0 in the set of a class whose threshold they make 0 would be a miss too many.
ZEROS = [
    *((0, score) for score in (0.1, 0.2, 0.4, 0.5, 0.8)),
    *((1, score) for score in (0.0, 0.2, 0.4, 0.5, 0.5)),
    *((2, score) for score in (0.0, 0.0, 0.0, 0.8)),
]
COUNTS = np.round(PRIOR * 10_000).astype(np.int64)


def weighted(sample: Sample, counts: list[int], w: float) -> tuple[list[float], list[float]]:
    """Factors of the classes, and the weighted score of each row's true class."""
    factors = [(1 - w) + w * sum(counts) / (len(counts) * count) for count in counts]
    rows = zip(sample.scores.tolist(), sample.labels.tolist(), strict=True)
    return factors, [scores[label] * factors[label] for scores, label in rows]


def quantile(values: list[float], coverage: float, more: int = 1) -> float:
    """The ``floor((1 - coverage) (n + more))``-th smallest, 0 if there is none."""
    rank = floor((len(values) + more) * (1 - Fraction(str(coverage))))
    return sorted(values)[rank - 1] if rank else 0.0


def members_of(sample: Sample, factors: list[float], thresholds: list[float]) -> list[list[bool]]:
    """The sets of the calibration rows themselves."""
    return [
        [
            score * factor >= threshold
            for score, factor, threshold in zip(row, factors, thresholds, strict=True)
        ]
        for row in sample.scores.tolist()
    ]


@pytest.mark.parametrize("macro_weight", [0.0, 1.0])
@pytest.mark.parametrize("coverage", [0.75, 0.9])
def test_at_the_ends_sets_are_those_of_one_quantile(coverage: float, macro_weight: float) -> None:
    sample, counts = draw(np.random.default_rng(4), 150), [int(count) for count in COUNTS]
    factors, true = weighted(sample, counts, macro_weight)
    thresholds = [quantile(true, coverage)] * CLASSES
    if macro_weight:
        by_class: list[list[float]] = [[] for _ in range(CLASSES)]
        for score, label in zip(true, sample.labels.tolist(), strict=True):
            by_class[label].append(score)
        thresholds = [quantile(of_class, coverage) for of_class in by_class]
    rule = calibrate(
        "class_coverage", *sample, coverage=coverage, macro_weight=macro_weight, min_size=0,
        class_counts=counts,
    )  # fmt: skip
    assert rule.sets(sample.scores).tolist() == members_of(sample, factors, thresholds)


@pytest.mark.parametrize("macro_weight", [0.2, 0.5, 0.9])
@pytest.mark.parametrize("coverage", [0.75, 0.9])
def test_between_them_a_new_photo_counts_among_those_that_choose(
    coverage: float, macro_weight: float
) -> None:
    """Each threshold from its definition: bisection for the least score that is in the set."""
    sample, counts, w = draw(np.random.default_rng(4), 150), list(map(int, COUNTS)), macro_weight
    _, true = weighted(sample, counts, w)
    of_class = [[s for s, label in zip(true, sample.labels, strict=True) if label == c]
                for c in range(CLASSES)]  # fmt: skip
    mixed = [w * quantile(own, coverage) + (1 - w) * quantile(true, coverage) for own in of_class]
    ratios = [s / mixed[label] for s, label in zip(true, sample.labels, strict=True)]
    factor = quantile(ratios, coverage)
    rank = floor(151 * (1 - Fraction(str(coverage))))
    below = sorted(true)[rank - 2]  # one rank lower

    def inside(score: float, label: int) -> bool:
        own = quantile([*of_class[label], score], coverage, more=0)
        return score >= factor * (w * own + (1 - w) * below)

    rule = calibrate(
        "class_coverage", *sample, coverage=coverage, macro_weight=w, min_size=0,
        class_counts=counts,
    )  # fmt: skip
    for label, threshold in enumerate(thresholds(rule).tolist()):
        low, high = 0.0, 100.0
        for _ in range(100):
            middle = (low + high) / 2
            low, high = (low, middle) if inside(middle, label) else (middle, high)
        assert threshold == pytest.approx(high)


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from([0.0, 0.1, 0.2, 0.4, 0.5, 0.8, 0.9])),
        min_size=2, max_size=24,
    ),
    coverage=st.sampled_from([0.5, 0.75, 0.9]),
    macro_weight=st.sampled_from([0.1, 0.5, 0.9]),
)  # fmt: skip
@example(rows=ZEROS, coverage=0.75, macro_weight=0.5)
def test_of_any_photos_each_in_turn_as_the_new_one_enough_are_covered(
    rows: list[tuple[int, float]], coverage: float, macro_weight: float
) -> None:
    """What makes the promise true for exchangeable photos, whatever they are: no error bar."""
    scores = np.zeros((len(rows), 3))
    labels = np.array([label for label, _ in rows])
    scores[np.arange(len(rows)), labels] = [score for _, score in rows]
    covered = 0
    for new in range(len(rows)):
        others = np.arange(len(rows)) != new
        rule = calibrate(
            "class_coverage", scores[others], labels[others], coverage=coverage, min_size=0,
            macro_weight=macro_weight, class_counts=[1, 1, 1],
        )  # fmt: skip
        covered += rule.sets(scores[[new]])[0, labels[new]]
    assert covered >= len(rows) * Fraction(str(coverage))


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
    assert 0 < thresholds(rule)[2] < 0.8 * plain.lambda_val
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


def test_data_of_which_the_interpolation_alone_misses_twice_as_many_are_covered() -> None:
    """A tenth of photos is of class 1 and hard; class 0 has just too few low scores for a cut."""
    labels = np.repeat([0, 1], [9000, 1000])
    true = np.ones(10_000)
    true[:855] = 0.4  # 9.5 % of class 0, whose own threshold is 1
    true[9000:9950] = 0.3  # own threshold 0.3; with class 0 the threshold of all rows is 0.4
    own, shared = class_quantiles(true, labels, 2, 0.9)
    assert (own.tolist(), shared) == ([1.0, 0.3], 0.4)
    assert (true >= interpolate(own, shared, 0.5)[labels]).mean() < 0.82
    scores = np.zeros((10_000, 2))
    scores[np.arange(10_000), labels] = true
    rule = calibrate("class_coverage", scores, labels, coverage=0.9, class_counts=[1, 1],
                     macro_weight=0.5, min_size=0)  # fmt: skip
    assert rule.sets(scores)[np.arange(10_000), labels].mean() >= 0.9


def test_scores_of_0_that_must_be_covered_leave_no_class_out() -> None:
    scores = np.zeros((100, 2))
    scores[:80, 0] = np.linspace(0.5, 0.9, 80)
    labels = np.repeat([0, 1], [80, 20])  # those of class 1 have a score of 0
    options = {"class_counts": [1, 1], "macro_weight": 0.5, "min_size": 0}
    rule = calibrate("class_coverage", scores, labels, coverage=0.9, **options)  # type: ignore[arg-type]  # mixed
    assert thresholds(rule).tolist() == [0, 0]
    rule = calibrate("class_coverage", scores, labels, coverage=0.75, **options)  # type: ignore[arg-type]  # mixed
    assert (thresholds(rule) > 0).all()  # the twenty are the misses
    assert 0 <= (scores[:80, 0] < thresholds(rule)[0]).sum() <= 5


def test_scores_below_0_have_no_ratio_to_a_threshold() -> None:
    options = {"coverage": 0.5, "class_counts": [1, 1]}
    with pytest.raises(ValueError, match=r"must be 0 or more .* got -1"):
        calibrate("class_coverage", [[2.0, -1.0]] * 20, [0] * 20, **options)  # type: ignore[arg-type]  # mixed
    rule = calibrate("class_coverage", [[2.0, -1.0]] * 20, [0] * 20, macro_weight=1, **options)  # type: ignore[arg-type]  # mixed
    assert rule.sets([[2.0, -1.0]]).tolist() == [[True, True]]


def test_the_best_class_is_best_by_its_score_not_by_its_distance_from_the_threshold() -> None:
    scores = np.array([[0.6, 0.4]] * 20)
    rule = calibrate("class_coverage", scores, [0] * 10 + [1] * 10, coverage=0.9)
    assert rule.sets([[0.3, 0.29]])[0].tolist() == [True, False]


def thresholds(rule: SetRule) -> NDArray[np.float64]:
    """Those of a rule that has one for each class."""
    assert rule.class_thresholds is not None
    return rule.class_thresholds


@pytest.mark.parametrize("macro_weight", [0.0, 0.5, 1.0])
def test_every_threshold_allows_for_the_scores_that_the_photos_compared(
    macro_weight: float,
) -> None:
    sample = draw(np.random.default_rng(6), 3000)
    lines = []
    for candidates in (1, 8):
        summary = ScoreSummary(
            rows=3000, classes=CLASSES, max_average_k=1, min_size=0, candidates=candidates
        )
        summary.update(*sample)
        lines.append(thresholds(summary.class_coverage(0.9, macro_weight=macro_weight)))
    common = np.bincount(sample.labels, minlength=CLASSES) > 200
    assert (lines[1][common] < lines[0][common]).all()
    assert (lines[1] > 0.5 * lines[0])[common].all()


def test_photos_that_tie_at_the_threshold_are_all_in_their_sets() -> None:
    """Also where a score divided by a threshold, times that threshold, is above the score."""
    for seed in range(60):
        random = np.random.default_rng(seed)
        scores = random.choice(random.random(4), (40, 2))
        labels = random.integers(2, size=40)
        rule = calibrate(
            "class_coverage", scores, labels, coverage=0.8, min_size=0, class_counts=[3, 5]
        )
        hits = rule.sets(scores)[np.arange(40), labels]
        assert np.count_nonzero(~hits) < floor(0.2 * 41)
