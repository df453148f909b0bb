"""The answer compared with the papers' rule, computed by hand from the logits."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from florilege.calibration.record import CalibrationRecord
from florilege.calibration.view import PLAIN, View
from florilege.server.answers.answer import _best_first
from florilege.server.problems import Code
from tests.server import garden
from tests.server.answers.answer_by_hand import TABLE, ask, by_hand, logits, scores_of
from tests.server.raised_problem import raises_problem


@pytest.mark.parametrize("k", [1.0, 2.0, 3.0, 4.7])
@pytest.mark.parametrize("seed", range(6))
def test_the_set_is_what_reaches_lambda_and_the_best_class(
    record: CalibrationRecord, k: float, seed: int
) -> None:
    values = logits(seed=seed)
    scores = by_hand(record, values)
    result = ask(record, values, k=k)
    lambda_val = record.point(PLAIN, record.setting("average_k", k)).lambda_val
    assert lambda_val is not None
    expected = {id_ for id_, score in scores.items() if score >= lambda_val}
    expected |= {max(scores, key=lambda id_: scores[id_])}
    assert scores_of(result) == pytest.approx({id_: scores[id_] for id_ in expected})
    assert list(scores_of(result).values()) == sorted(scores_of(result).values(), reverse=True)
    assert (result.set.lambda_val, result.set.size) == (lambda_val, len(expected))


@given(
    st.lists(
        st.tuples(st.sampled_from([-0.0, 0.0, 0.5, np.nextafter(0.5, 1), -1.0]), st.booleans())
    )
)
def test_members_come_first_best_first_and_ties_keep_their_order(
    ranks: list[tuple[float, bool]],
) -> None:
    ranked = np.array([rank for rank, _ in ranks])
    inside = np.array([member for _, member in ranks], bool)
    expected = sorted(range(len(ranks)), key=lambda index: (not inside[index], -ranked[index]))
    assert _best_first(ranked, inside) + _best_first(ranked, ~inside) == expected


def test_without_k_the_default_is_used_and_reported(record: CalibrationRecord) -> None:
    result = ask(record, logits())
    assert record.default_k == result.query.k == result.set.k == 3.0
    assert result.best_match == result.results[0].taxon.scientific_name
    assert result == ask(record, logits(), k=3.0)


def test_top_k_gives_exactly_k_and_no_lambda(record: CalibrationRecord) -> None:
    result = ask(record, logits(), rule="top_k", k=5)
    assert (result.set.size, len(result.results), result.set.lambda_val) == (5, 5, None)
    scores = by_hand(record, logits())
    best = sorted(scores, key=lambda id_: -scores[id_])[:5]
    assert [r.class_id for r in result.results] == best


def test_coverage_rules_take_a_coverage_and_balanced_scores_are_those_compared(
    record: CalibrationRecord,
) -> None:
    result = ask(record, logits(), rule="coverage", coverage=0.9)
    assert (result.set.coverage, result.set.k, result.query.coverage) == (0.9, None, 0.9)
    balanced = ask(record, logits(), rule="balanced_average_k", k=3, include=["scores"])
    point = record.point(PLAIN, record.setting("balanced_average_k", 3))
    compared = point.compare(list(by_hand(record, logits()).values()))
    assert scores_of(balanced) == pytest.approx(dict(zip(TABLE.ids, compared, strict=True)))
    assert point.lambda_val is not None
    assert all(r.in_set == (r.score >= point.lambda_val) for r in balanced.results[1:])
    assert balanced.set.lambda_val == point.lambda_val


def test_include_scores_appends_the_other_classes_in_order(record: CalibrationRecord) -> None:
    plain = ask(record, logits())
    full = ask(record, logits(), include=["scores"])
    assert full.results[: plain.set.size] == plain.results
    assert len(full.results) == len(garden.FLOWERS)
    assert [r.rank for r in full.results] == list(range(1, 13))
    assert [r.in_set for r in full.results] == [i < plain.set.size for i in range(12)]
    scores = [r.score for r in full.results]
    assert scores == sorted(scores, reverse=True)
    assert not full.set.truncated


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"min_score": 2},
        {"min_score": 0},
        {"include": ["scores"]},
        {"min_score": -2, "include": ["scores"]},
        {"always": [-1]},
        {"always": [-1, 0, 5], "min_score": 0, "include": ["scores"]},
    ],
)
def test_max_results_min_score_and_always_change_only_what_is_listed(
    record: CalibrationRecord, fields: dict[str, Any]
) -> None:
    whole = ask(record, logits(), k=6, include=["scores"])
    size = whole.set.size
    required = [whole.results[at].class_id for at in fields.get("always", [])]
    if "min_score" in fields:
        fields = {**fields, "min_score": whole.results[fields["min_score"]].score}
    for most in (1, 2, size - 1, size, size + 1, None):
        listed = [
            each.class_id
            for each in whole.results
            if (each.in_set or "include" in fields) and each.score >= fields.get("min_score", 0)
        ][:most]
        expected = [r for r in whole.results if r.class_id in {*listed, *required}]
        query = {**fields, "max_results": most, "always": required}
        result = ask(record, logits(), k=6, **query)
        assert result.results == expected
        truncated = sum(each.in_set for each in expected) < size
        assert result.set == whole.set.model_copy(update={"truncated": truncated})
        assert result.best_match == whole.best_match


def test_more_photos_than_calibrated_are_averaged_and_called_uncalibrated(
    record: CalibrationRecord,
) -> None:
    assert record.photos == (1, 2, 3, 4)
    values = logits(photos=5, seed=1)
    result = ask(record, values, include=["scores"])
    assert scores_of(result) == pytest.approx(by_hand(record, values))
    assert result.query.images == 5
    assert not result.set.calibrated
    about = result.set
    assert [about.expected_size, about.hit_rate, about.statement] == [None] * 3
    assert [w.code for w in result.warnings] == ["fusion_not_calibrated"]
    assert result.set.lambda_val == record.point(PLAIN, record.setting("average_k", 3)).lambda_val


@pytest.mark.parametrize("photos", [2, 3, 4])
def test_several_photos_have_a_threshold_of_their_own_where_calibrated(
    record: CalibrationRecord, photos: int
) -> None:
    values = logits(photos=photos, seed=1)
    result = ask(record, values, k=2, include=["scores"])
    point = record.point(View(photos=photos), record.setting("average_k", 2))
    assert point.lambda_val != record.point(PLAIN, record.setting("average_k", 2)).lambda_val
    assert (result.set.calibrated, result.set.lambda_val) == (True, point.lambda_val)
    assert result.set.expected_size is not None
    assert result.set.expected_size.rows == point.rows < 480
    assert scores_of(result) == pytest.approx(by_hand(record, values))
    assert point.lambda_val is not None
    assert all(r.in_set == (r.score >= point.lambda_val) for r in result.results[1:])
    assert [w.code for w in result.warnings] == ["fusion_from_same_class"]


@pytest.mark.parametrize("rule", ["average_k", "top_k", "coverage"])
def test_several_photos_get_the_default_k_of_one_photo(
    record: CalibrationRecord, rule: str
) -> None:
    one, two = (ask(record, logits(photos=photos), rule=rule) for photos in (1, 2))
    assert (one.set.k, one.set.coverage) == (two.set.k, two.set.coverage)


def test_several_photos_get_the_default_k_even_if_they_are_not_calibrated_for_it(
    record: CalibrationRecord,
) -> None:
    tables = []
    for table in record.tables:
        rules = []
        for rule in table.rules:
            remaining = (c for c in rule.counts if table.view.photos == 1 or c.value != 3)
            rules.append(replace(rule, counts=tuple(remaining)))
        tables.append(replace(table, rules=tuple(rules)))
    result = ask(replace(record, tables=tuple(tables)), logits(photos=2))
    assert (result.set.k, result.set.calibrated) == (3.0, False)
    assert result.set.lambda_val == record.point(PLAIN, record.setting("average_k", 3)).lambda_val


def test_top_k_of_several_photos_is_nested(record: CalibrationRecord) -> None:
    """Marginals of one k are no scores of another: sets by their mean were not nested."""
    values = logits(photos=3, seed=4)
    best = sorted(by_hand(record, values).items(), key=lambda pair: -pair[1])
    for k in (1, 2, 5):
        result = ask(record, values, rule="top_k", k=k)
        assert [r.class_id for r in result.results] == [class_id for class_id, _ in best[:k]]


def test_an_answer_says_how_often_sets_of_its_size_were_right(record: CalibrationRecord) -> None:
    """Small sets are right more often than the rate of all sets, large ones less."""
    rates, point = {}, record.point(PLAIN, record.setting("average_k", 3))
    for seed in range(40):
        result = ask(record, logits(seed=seed)).set
        rate = result.hit_rate_at_size
        if rate is not None:
            rates[result.size] = rate
    assert len(rates) > 2
    for size, rate in rates.items():
        index = record.size_bins.index(size)
        assert rate.rows == point.row.size_histogram[index]
        misses = (*point.counts.misses, *[0] * len(record.size_bins))[index]
        assert rate.value == (rate.rows - misses) / rate.rows
        assert rate.ci95 is not None
        assert rate.ci95[0] <= rate.value <= rate.ci95[1]
    large = ask(record, {head: 0 * row for head, row in logits().items()}).set
    assert (large.size, large.hit_rate_at_size) == (12, None)


def test_marginals_come_only_when_asked_for_and_add_up_to_k(record: CalibrationRecord) -> None:
    assert {r.top_k_probability for r in ask(record, logits()).results} == {None}
    result = ask(record, logits(2), k=2.6, include=["scores", "marginals"])
    probabilities = [r.top_k_probability for r in result.results]
    assert sum(p for p in probabilities if p is not None) == pytest.approx(3.0)
    assert all(p is not None and 0 <= p <= 1 for p in probabilities)


def test_rollup_is_null_until_asked_for(record: CalibrationRecord) -> None:
    assert ask(record, logits()).rollup is None
    rollup = ask(record, logits(), include=["rollup"]).rollup
    assert rollup is not None
    assert {group.rank for group in rollup} == {"genus", "family"}


def test_without_a_rule_rejection_is_not_judged_in_its_stable_shape(
    record: CalibrationRecord,
) -> None:
    silent = replace(record, rejection=None)
    rejection = ask(silent, logits(), reject=True).rejection.model_dump()
    unknown = dict.fromkeys(("method", "value", "threshold"))
    assert rejection == {"verdict": "not_judged", **unknown}


def test_nothing_is_promised_of_a_request_that_rejects_photos(record: CalibrationRecord) -> None:
    """Their sets are empty, so fewer hold the right class than the calibration promises."""
    assert record.rejection is not None
    fit = replace(record.measured, train_photos=0, chose_checkpoint=False)
    lenient, strict = (
        replace(record, measured=fit, rejection=replace(record.rejection, threshold=threshold))
        for threshold in (-1e9, 1e9)
    )
    query: dict[str, Any] = {"rule": "coverage", "coverage": 0.95}
    assert ask(lenient, logits(), **query).set.guaranteed
    for rule, verdict in ((lenient, "accepted"), (strict, "rejected")):
        result = ask(rule, logits(), reject=True, **query)
        assert result.rejection.verdict == verdict
        assert not result.set.guaranteed
        assert result.set.reasons == ["suspects_rejected"]
        assert result.set.calibrated == (verdict == "accepted")
    plain, rejecting = (ask(lenient, logits(), include=["dial"], reject=r) for r in (False, True))
    accepted = rejecting.set
    assert accepted.hit_rate == plain.set.hit_rate
    for answer, promises in ((plain, True), (rejecting, False)):
        least = [stop.least_coverage for stop in answer.dial or ()]
        assert any(value is not None for value in least) == promises
    assert accepted.least_coverage is None
    assert "suspect photos get an empty set" in (accepted.statement or "")
    silent = replace(record, rejection=None)
    assert ask(replace(silent, measured=fit), logits(), reject=True, **query).set.guaranteed


@pytest.mark.parametrize(
    ("fields", "allowed"),
    [
        ({"k": 2.55}, 2.5),
        ({"k": 0.0}, 1.0),
        ({"k": 12.1}, 12.0),
        ({"rule": "top_k", "k": 2.5}, 2.0),
        ({"rule": "coverage", "coverage": 0.5}, 0.95),
    ],
)
@pytest.mark.parametrize("photos", [1, 2])
def test_what_is_not_calibrated_is_refused_with_what_is(
    record: CalibrationRecord, fields: dict[str, object], allowed: float, photos: int
) -> None:
    with raises_problem(Code.NOT_CALIBRATED) as caught:
        ask(record, logits(photos), **fields)
    assert caught.value.allowed is not None
    assert allowed in caught.value.allowed


@pytest.mark.parametrize(("lang", "names"), [("fr-CA", "fr"), ("xx", "en")])
def test_names_are_in_the_next_language_there_is_and_the_query_names_the_one_asked_for(
    record: CalibrationRecord, lang: str, names: str
) -> None:
    result = ask(record, logits(), lang=lang, include=["scores"])
    assert result.query.lang == lang
    languages = {name.lang for one in result.results for name in one.taxon.common_names}
    assert names in languages
