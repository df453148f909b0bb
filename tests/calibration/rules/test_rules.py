"""The set rules on their calibration scores, against loops."""

import json
import math
from fractions import Fraction
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from florilege.calibration.rules import RULES, RuleName, calibrate, class_weights, usual_guarantee
from florilege.calibration.sets import SetRule
from tests.calibration import oracles
from tests.calibration.strategies import Scores, average_ks, draw_labels, score_arrays


def as_sets(mask: np.ndarray[tuple[int, ...], np.dtype[np.bool_]]) -> list[set[int]]:
    return [set(np.flatnonzero(row).tolist()) for row in mask]


@settings(max_examples=200)
@given(data=st.data(), scores=score_arrays())
def test_average_k_is_algorithm_1(data: st.DataObject, scores: Scores) -> None:
    average_k = data.draw(average_ks(scores.shape[1]))
    rule = calibrate("average_k", scores, average_k=average_k, min_size=0)
    cut = oracles.average_k_cut(scores, average_k)
    assert rule.lambda_val == cut.lambda_val
    assert as_sets(rule.sets(scores)) == oracles.sets(scores, cut.lambda_val, min_size=0)
    assert rule.achieved == rule.sets(scores).sum() / len(scores)


@settings(max_examples=200)
@given(data=st.data(), scores=score_arrays(infinite=False))
def test_with_min_size_the_rest_alone_is_cut(data: st.DataObject, scores: Scores) -> None:
    average_k = data.draw(average_ks(scores.shape[1], lowest=1))
    rule = calibrate("average_k", scores, average_k=average_k, min_size=1)
    if scores.shape[1] > 1:
        cut = oracles.best_plus_cut(scores, average_k)
        assert rule.lambda_val == cut.lambda_val
        assert rule.achieved == (cut.kept + len(scores)) / len(scores)
        assert as_sets(rule.sets(scores)) == oracles.sets(scores, cut.lambda_val, min_size=1)
    sizes = rule.sets(scores).sum(axis=1)
    assert (sizes >= 1).all()
    assert rule.achieved == sizes.sum() / len(scores)
    excess = sizes.sum() - math.floor(Fraction(str(average_k)) * len(scores))
    assert excess == rule.ties


@pytest.mark.parametrize("min_size", [0, 1])
def test_one_class_is_a_set_of_its_own(min_size: int) -> None:
    rule = calibrate("average_k", np.array([[0.4], [0.6]]), average_k=1, min_size=min_size)
    assert rule.lambda_val == 0.4
    assert rule.achieved == 1.0


@settings(max_examples=100)
@given(data=st.data(), scores=score_arrays(infinite=False))
def test_top_k_holds_the_k_best(data: st.DataObject, scores: Scores) -> None:
    k = data.draw(st.integers(1, scores.shape[1]))
    rule = calibrate("top_k", scores, k=k)
    assert as_sets(rule.sets(scores)) == oracles.top_k_sets(scores, k)
    assert rule.lambda_val is None


@settings(max_examples=200)
@given(
    data=st.data(),
    scores=score_arrays(infinite=False),
    level=st.sampled_from([0.5, 0.8, 0.9, 0.95]),
    min_size=st.sampled_from([0, 1]),
)
def test_coverage_is_the_smallest_promise_keeping_set(
    data: st.DataObject, scores: Scores, level: float, min_size: int
) -> None:
    rows, scores = len(scores), np.abs(scores)
    labels = draw_labels(data, scores)
    rule = calibrate("coverage", scores, labels, coverage=level, min_size=min_size)
    rank = math.ceil(Fraction(str(level)) * (rows + 1))
    members = rule.sets(scores)
    hits = int(members[np.arange(rows), labels].sum())
    if rank > rows:
        assert members.all()
        assert rule.lambda_val == 0.0
        return
    assert hits >= rank
    lambda_val = rule.lambda_val
    assert lambda_val is not None
    higher = oracles.sets(scores, math.nextafter(lambda_val, math.inf), min_size)
    fewer = sum(label in result for label, result in zip(labels, higher, strict=True))
    best = int((scores.argmax(axis=1) == np.array(labels)).sum())
    assert fewer < rank or best >= rank  # the best classes alone keep the promise


def test_coverage_that_the_best_class_alone_gives_adds_no_other() -> None:
    scores = np.random.default_rng(6).dirichlet(np.ones(4), 40)
    rule = calibrate("coverage", scores, scores.argmax(axis=1), coverage=0.9)
    assert rule.sets(scores).sum(axis=1).tolist() == [1] * 40


def test_coverage_out_of_reach_keeps_every_class_even_of_negative_scores() -> None:
    scores = np.array([[-1.0, -2.0], [-3.0, -4.0]])
    rule = calibrate("coverage", scores, [0, 1], coverage=0.9, min_size=0)
    assert rule.sets(scores).all()


def test_balanced_rules_are_the_plain_ones_on_reweighted_scores() -> None:
    random = np.random.default_rng(1)
    scores = random.dirichlet(np.ones(5), 200)
    labels = random.integers(0, 5, 200)
    counts = [1, 5, 20, 80, 0]
    for macro_weight in (0.0, 0.5, 1.0):
        weighted = scores * class_weights(counts, macro_weight)
        options: dict[str, Any] = {"class_counts": counts, "macro_weight": macro_weight}
        rule = calibrate("balanced_average_k", scores, average_k=2, **options)
        plain = calibrate("average_k", weighted, average_k=2)
        assert rule.lambda_val == plain.lambda_val
        assert (rule.sets(scores) == plain.sets(weighted)).all()
        rule = calibrate("balanced_coverage", scores, labels, coverage=0.9, **options)
        plain = calibrate("coverage", weighted, labels, coverage=0.9)
        assert rule.lambda_val == plain.lambda_val
        assert (rule.sets(scores) == plain.sets(weighted)).all()


def test_without_counts_the_labels_are_counted() -> None:
    scores = np.random.default_rng(4).dirichlet(np.ones(3), 30)
    labels = [0] * 20 + [1] * 9 + [2]
    counted = calibrate("balanced_average_k", scores, labels, average_k=2)
    given_counts = calibrate("balanced_average_k", scores, average_k=2, class_counts=[20, 9, 1])
    assert counted.lambda_val == given_counts.lambda_val


@settings(max_examples=60)
@given(scores=score_arrays(classes=4, infinite=False), seed=st.integers(0, 5))
def test_sets_shrink_as_k_falls(scores: Scores, seed: int) -> None:
    last = None
    for average_k in (4, 3.3, 2, 1.1, 1):
        result = calibrate("average_k", scores, average_k=average_k).sets(scores)
        assert last is None or not (result & ~last).any()
        last = result


def test_one_photo_is_compared_as_it_is_in_a_batch() -> None:
    scores = np.random.default_rng(5).dirichlet(np.ones(4), 20)
    rule = calibrate("balanced_average_k", scores, average_k=2, class_counts=[1, 2, 3, 4])
    together = rule.compare(scores)
    for row, values in enumerate(scores):
        assert (rule.compare(values) == together[row]).all()
        assert (rule.sets(values[np.newaxis])[0] == rule.sets(scores)[row]).all()


@pytest.mark.parametrize(
    ("rule", "arguments", "message"),
    [
        ("no_rule", {}, "rule must be one of average_k, top_k"),
        ("average_k", {}, "needs average_k"),
        ("top_k", {}, "needs k"),
        ("coverage", {"labels": [0, 1]}, "needs coverage"),
        ("coverage", {"coverage": 0.9}, "needs labels"),
        ("balanced_average_k", {"average_k": 1}, "needs class_counts"),
        ("average_k", {"average_k": 1, "coverage": 0.9}, "takes no coverage"),
        ("top_k", {"k": 1, "average_k": 1}, "takes no average_k"),
        ("average_k", {"average_k": 0.9}, r"average_k must be in \[1, 2\]"),
        ("average_k", {"average_k": 2.1, "min_size": 0}, r"average_k must be in \[0, 2\]"),
        ("average_k", {"average_k": 1, "min_size": 2}, "min_size must be 0 or 1, got 2"),
        ("coverage", {"labels": [0, 1], "coverage": 1.0}, r"coverage must be"),
        ("coverage", {"labels": [0, 1], "coverage": 0.0}, r"coverage must be"),
        ("top_k", {"k": 3}, r"k must be an integer in \[1, 2\]"),
        *(("balanced_average_k", {"average_k": 1, "class_counts": counts}, "count")
          for counts in ([1], [1, 2, 3])),
    ],
)  # fmt: skip
def test_what_no_rule_uses_is_refused(rule: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        calibrate(rule, [[0.6, 0.4], [0.5, 0.5]], **arguments)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_every_rule_refuses_nan_with_its_row(rule: str) -> None:
    scores = np.full((3, 2), 0.5)
    scores[1, 0] = np.nan
    size = {RULES[rule].takes: 0.9 if RULES[rule].asks == "coverage" else 1}
    with pytest.raises(ValueError, match="row 1, class 0"):
        calibrate(rule, scores, [0, 1, 0], class_counts=[1, 1], **size)  # type: ignore[arg-type]  # mixed


def test_sets_of_another_number_of_classes_are_refused() -> None:
    rule = SetRule(
        rule="balanced_average_k", lambda_val=0.5, min_size=1, rows=1, class_weights=np.ones(3)
    )
    with pytest.raises(ValueError, match="3 classes, got 2"):
        rule.sets([[0.5, 0.5]])


def test_weights_run_from_one_to_the_inverse_of_the_prior() -> None:
    assert class_weights([1, 4, 5], 0.0).tolist() == [1.0, 1.0, 1.0]
    assert class_weights([1, 4, 5], 1.0) == pytest.approx(np.array([10 / 3, 10 / 12, 10 / 15]))
    assert class_weights([1, 4, 5]) == pytest.approx((1 + class_weights([1, 4, 5], 1.0)) / 2)
    assert class_weights([7, 7], 0.3) == pytest.approx(np.ones(2))
    assert (class_weights([0, 3], 1.0) == class_weights([1, 3], 1.0)).all()


@pytest.mark.parametrize("macro_weight", [-0.1, 1.1, np.nan])
def test_a_share_out_of_range_is_refused(macro_weight: float) -> None:
    with pytest.raises(ValueError, match=r"macro_weight must be in \[0, 1\]"):
        class_weights([1], macro_weight)


def test_the_table_names_every_rule_and_what_it_asks_for() -> None:
    assert tuple(RULES) == get_args(RuleName)
    table = {name: (spec.asks, spec.guarantee) for name, spec in RULES.items()}
    assert table == {
        name: ("coverage", "mean") if name.endswith("coverage") else ("k", None) for name in RULES
    }
    assert [name for name, spec in RULES.items() if spec.balanced] == [
        "balanced_average_k",
        "balanced_coverage",
        "class_coverage",
    ]
    assert usual_guarantee("no_rule") is None


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("min_size", [0, 1])
def test_a_saved_rule_gives_the_same_sets(name: str, min_size: int) -> None:
    random = np.random.default_rng(3)
    values, labels = random.dirichlet(np.full(6, 0.3), 300), random.integers(0, 6, 300)
    sizes: dict[str, Any] = {"average_k": 1.7, "k": 2, "coverage": 0.9}
    takes = RULES[name].takes
    rule = calibrate(name, values, labels, min_size=min_size, **{takes: sizes[takes]})
    again = SetRule.from_json(rule.to_json())
    assert (again.sets(values) == rule.sets(values)).all()
    assert again.to_json() == rule.to_json()
    assert (again.lambda_val, again.rows, again.ties) == (rule.lambda_val, rule.rows, rule.ties)


@pytest.mark.parametrize(
    "change", [{"lambda": 0.5}, {"lambda_val": np.nan}, {"class_weights": "heavy"}, None]
)
def test_what_is_not_a_saved_rule_is_refused(change: dict[str, Any] | None) -> None:
    content = json.loads(calibrate("top_k", [[0.5, 0.5]], k=1).to_json())
    with pytest.raises(ValueError, match="rule"):
        SetRule.from_json("[]" if change is None else json.dumps(content | change))


@pytest.mark.parametrize("rule", ["coverage", "balanced_coverage"])
def test_where_the_best_class_suffices_it_is_alone_whatever_the_scale_of_scores(rule: str) -> None:
    scores = np.tile([5.0, 3.0, 2.0], (30, 1))
    labels = np.array([0] * 29 + [1])
    counts: dict[str, Any] = {"class_counts": [1, 1, 1]} if rule == "balanced_coverage" else {}
    members = calibrate(rule, scores, labels, coverage=0.9, **counts).sets(scores)
    assert as_sets(members) == [{0}] * 30
