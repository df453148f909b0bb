"""Set rules as estimators: equal to the functions, and at home in scikit-learn and pandas."""

from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from florilege.calibration import AverageK, ClassCoverage, Coverage, TopK, rules
from florilege.calibration.rules import estimators
from florilege.calibration.rules.estimators import _SetEstimator

RANDOM = np.random.default_rng(3)
SCORES = RANDOM.dirichlet(np.full(6, 0.6), 400)
LABELS = np.array([RANDOM.choice(6, p=row) for row in SCORES])
COUNTS = [1, 2, 3, 50, 60, 70]
NAMES = ["ash", "birch", "elm", "fir", "oak", "yew"]
FITTED: list[tuple[_SetEstimator, dict[str, Any]]] = [
    (AverageK(2.5), {"average_k": 2.5}),
    (AverageK(2, min_size=0), {"average_k": 2, "min_size": 0}),
    (AverageK(2, guarantee="probability", delta=0.2, max_size=4),
     {"average_k": 2, "guarantee": "probability", "delta": 0.2, "max_size": 4}),
    (TopK(2), {"k": 2}),
    (Coverage(0.8), {"coverage": 0.8}),
    (Coverage(0.8, delta=0.3), {"coverage": 0.8, "delta": 0.3}),
    (estimators.BalancedAverageK(2, 0.75), {"average_k": 2, "macro_weight": 0.75}),
    (estimators.BalancedCoverage(0.8, class_counts=COUNTS),
     {"coverage": 0.8, "class_counts": COUNTS}),
    (ClassCoverage(0.8, 1.0), {"coverage": 0.8, "macro_weight": 1.0}),
]  # fmt: skip
each_rule = pytest.mark.parametrize(("estimator", "arguments"), FITTED, ids=repr)


@each_rule
def test_sets_are_those_of_the_function_and_survive_a_file(
    estimator: _SetEstimator, arguments: dict[str, Any], tmp_path: Path
) -> None:
    rule = rules.calibrate(estimator._rule, SCORES[:300], LABELS[:300], **arguments)
    assert estimator.fit(SCORES[:300], LABELS[:300]) is estimator
    assert estimator.threshold_ == rule.lambda_val
    expected = rule.sets(SCORES[300:])
    np.testing.assert_array_equal(estimator.predict_set(SCORES[300:]), expected)
    hits = expected[np.arange(100), LABELS[300:]].mean()
    assert estimator.score(SCORES[300:], LABELS[300:]) == hits
    estimator.save(tmp_path / "rule.json")
    copy = type(estimator).load(tmp_path / "rule.json")
    assert copy.get_params() == estimator.get_params()
    np.testing.assert_array_equal(copy.predict(SCORES[300:]), expected)
    for other in {*_SetEstimator.__subclasses__()} - {type(estimator)}:
        with pytest.raises(ValueError, match=other.__name__):
            other.load(tmp_path / "rule.json")


def test_a_mean_size_needs_no_labels_and_a_coverage_does() -> None:
    assert AverageK(2).fit(SCORES).predict_set(SCORES).sum() == 800
    with pytest.raises(ValueError, match="labels"):
        Coverage().fit(SCORES)


@pytest.mark.parametrize(
    ("estimator", "scores", "labels", "word"),
    [
        (AverageK(2), np.where(SCORES > 0.9, np.nan, SCORES), None, "NaN"),
        (AverageK(2), SCORES[0], None, "shape"),
        (AverageK(2), SCORES + 0j, None, "dense"),
        (AverageK(2), np.ma.masked_greater(SCORES, 0.9), None, "dense"),
        (AverageK(2), iter(SCORES), None, "dense"),
        (AverageK(9), SCORES, None, "average_k"),
        (AverageK(**dict[str, Any](k="2")), SCORES, None, "average_k"),
        (AverageK(True), SCORES, None, "average_k"),
        (Coverage(1.5), SCORES, LABELS, "coverage"),
        (Coverage(0.9), SCORES, LABELS + 1, "label"),
        (Coverage(0.9), SCORES, LABELS[:5], "labels"),
        (Coverage(0.9), SCORES, LABELS[:, np.newaxis], "labels"),
        (Coverage(0.9), SCORES, np.array(NAMES)[LABELS], "DataFrame"),
        (Coverage(**dict[str, Any](coverage="0.9")), SCORES, LABELS, "coverage"),
        (Coverage(**dict[str, Any](coverage=None)), SCORES, LABELS, "coverage"),
        (TopK(True), SCORES, None, "k must"),
        (AverageK(2, max_size=4), SCORES, None, "guarantee"),
    ],
)
def test_misuse_is_refused(estimator: _SetEstimator, scores: Any, labels: Any, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        estimator.fit(scores, labels)


def test_parameters_of_numpy_can_be_saved(tmp_path: Path) -> None:
    numbers: list[Any] = [np.int64(2), np.float32(1.5), Fraction(3, 2), Decimal("1.5")]
    for k in numbers:
        rule = AverageK(k).fit(SCORES.astype(object))
        rule.save(tmp_path / "rule.json")
        loaded = AverageK.load(tmp_path / "rule.json")
        assert (loaded.k, loaded.threshold_) == (k, rule.threshold_)


@pytest.mark.parametrize(
    "content", ["{", "[]", "3", '{"rule": "top_k"}', "{}", '{"rule": {"rule": "top_k"}}']
)
def test_a_file_without_a_rule_of_the_class_is_refused(content: str, tmp_path: Path) -> None:
    (tmp_path / "rule.json").write_text(content)
    with pytest.raises(ValueError, match="holds no rule"):
        AverageK.load(tmp_path / "rule.json")


def test_sets_need_a_fitted_rule_and_the_same_classes() -> None:
    with pytest.raises((estimators.NotFittedError, ValueError), match="fit"):
        AverageK().predict_set(SCORES)
    with pytest.raises(ValueError, match="classes"):
        AverageK(2).fit(SCORES).predict_set(SCORES[:, :5])
    with pytest.raises(ValueError, match="gamma"):
        AverageK().set_params(gamma=1)
    assert AverageK().set_params(k=4).get_params()["k"] == 4


def test_data_frames_keep_their_index_and_columns_and_labels_are_names() -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(SCORES, columns=NAMES, index=range(1000, 1400))
    names = pandas.Series(NAMES)[LABELS]
    rule = Coverage(0.8).fit(frame, names)
    sets = rule.predict_set(frame)
    assert (list(sets.columns), list(sets.index)) == (NAMES, list(frame.index))
    plain = Coverage(0.8).fit(SCORES, LABELS)
    np.testing.assert_array_equal(sets.to_numpy(), plain.predict_set(SCORES))
    assert rule.score(frame, names) == plain.score(SCORES, LABELS)
    with pytest.raises(ValueError, match="order"):
        rule.predict_set(frame[NAMES[::-1]])
    with pytest.raises(ValueError, match="column"):
        Coverage(0.8).fit(frame, ["ivy", *names[1:]])
    with pytest.raises(ValueError, match="column"):
        AverageK(2).fit(pandas.DataFrame(SCORES, columns=["ash", *NAMES[:5]]))


def test_names_of_several_types_survive_a_file(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(SCORES, columns=["ash", 1, "elm", 2.5, "oak", 3])
    AverageK(2).fit(frame).save(tmp_path / "rule.json")
    assert AverageK.load(tmp_path / "rule.json").predict_set(frame).to_numpy().sum() == 800


def test_rules_work_in_pipelines_and_cross_validation() -> None:
    pytest.importorskip("sklearn")
    from sklearn.base import clone
    from sklearn.exceptions import NotFittedError
    from sklearn.model_selection import GridSearchCV, cross_val_predict, cross_val_score
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import FunctionTransformer
    from sklearn.utils.validation import check_is_fitted

    fitted = AverageK(2.5, min_size=0).fit(SCORES, LABELS)
    copy = clone(fitted)
    assert (copy.k, copy.min_size) == (2.5, 0)
    for call in (copy.predict_set, check_is_fitted):
        with pytest.raises(NotFittedError):
            call(copy if call is check_is_fitted else SCORES)
    check_is_fitted(fitted)
    pipeline = make_pipeline(FunctionTransformer(np.exp), AverageK(2)).fit(np.log(SCORES), LABELS)
    np.testing.assert_array_equal(
        pipeline.predict(np.log(SCORES)), AverageK(2).fit(SCORES).predict_set(SCORES)
    )
    assert 0.5 < pipeline.score(np.log(SCORES), LABELS) < 1
    hits = cross_val_score(AverageK(2), SCORES, LABELS, cv=4)
    ours = AverageK(2).fit(SCORES[100:]).score(SCORES[:100], LABELS[:100])
    assert hits[0] == ours
    assert cross_val_predict(AverageK(2), SCORES, LABELS, cv=4).shape == SCORES.shape
    search = GridSearchCV(AverageK(), {"k": [1, 2, 3]}).fit(SCORES, LABELS)
    assert search.best_params_ == {"k": 3}


@pytest.mark.parametrize("rule", [AverageK, estimators.BalancedAverageK])
def test_sets_that_ties_enlarge_are_a_warning_with_their_size(rule: type) -> None:
    """Votes of 30 networks: no threshold tells apart the classes with one vote."""
    random = np.random.default_rng(0)
    labels = random.integers(0, 50, 1000)
    votes = random.multinomial(30, np.full(50, 0.02), size=1000) / 30
    onehot = np.eye(50)[labels]
    for scores in (votes, onehot):
        with pytest.warns(UserWarning, match=r"many scores are equal, so sets hold \d+\.\d\d"):
            rule(3).fit(scores, labels)
    smooth = votes + random.uniform(0, 0.001, votes.shape)
    rule(3).fit(smooth, labels)  # an error in this suite if it warned
