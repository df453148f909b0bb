"""Restricted answers: scored among the listed classes, calibrated where their list is."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from florilege.calibration.marginals import top_k_marginals
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.record_file import read_record
from florilege.calibration.view import PLAIN, View
from florilege.models.bundle import open_bundle
from florilege.models.regions import RegionList
from florilege.server.answers.plan import (
    MAX_SUGGESTED_FOR,
    MAX_UNKNOWN_LISTED,
    ClassLists,
)
from florilege.server.answers.query import IdentifyQuery
from florilege.server.problems import Code
from tests.server import garden
from tests.server.answers.answer_by_hand import TABLE, ask_listed, by_hand, logits, scores_of
from tests.server.raised_problem import raises_problem

HEATH = ("1002", "1004", "1007", "1008", "1012")
PAIR = ("1001", "1011")


def indices(ids: tuple[str, ...]) -> tuple[int, ...]:
    return tuple(TABLE.index_of[id_] for id_ in ids)


@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> CalibrationRecord:
    folder = tmp_path_factory.mktemp("listed")
    (folder / "lists").mkdir()
    (folder / "lists" / "heath.txt").write_text("\n".join(HEATH))
    (folder / "lists" / "pair.txt").write_text("\n".join(PAIR))
    return read_record(open_bundle(garden.grow(folder, list_files=[str(folder / "lists")])))


@pytest.mark.parametrize("seed", range(6))
def test_a_calibrated_list_is_scored_alone_against_its_own_threshold(
    record: CalibrationRecord, seed: int
) -> None:
    values = logits(seed=seed)
    scores = by_hand(record, values, HEATH)
    result, members = ask_listed(record, values, list="heath", k=2.0, include=["scores"])
    point = record.point(View(list="heath"), record.setting("average_k", 2))
    assert (
        result.set.lambda_val
        == point.lambda_val
        != record.point(PLAIN, record.setting("average_k", 2)).lambda_val
    )
    best = max(scores, key=lambda id_: scores[id_])
    assert point.lambda_val is not None
    assert members == {id_ for id_ in HEATH if scores[id_] >= point.lambda_val} | {best}
    assert scores_of(result) == pytest.approx(scores)
    assert result.set.calibrated
    assert result.set.expected_size is not None
    assert result.set.expected_size.rows == point.rows == len(HEATH) * garden.PER_CLASS
    assert result.set.statement == point.statement
    assert (result.query.list, result.query.only) == ("heath", None)
    assert result.warnings == []
    assert result.best_match == TABLE[TABLE.index_of[best]].scientific_name


def test_a_balanced_set_of_a_list_weighs_its_own_classes(record: CalibrationRecord) -> None:
    setting = record.setting("balanced_average_k", 2)
    point = record.point(View(list="heath"), setting)
    scores = np.array([list(by_hand(record, logits(), HEATH).values())])
    _, members = ask_listed(record, logits(), list="heath", rule=setting.rule, k=2.0)
    assert members == {
        id_ for id_, inside in zip(HEATH, point.sets(scores)[0], strict=True) if inside
    }


def test_a_list_of_which_no_photo_is_left_is_not_calibrated(record: CalibrationRecord) -> None:
    """As after a calibration on traffic, which has no labels."""
    lists = tuple(replace(region, rows=0) for region in record.lists)
    offered = ClassLists.of(TABLE, replace(record, lists=lists)).by_name
    assert {listed.calibrated_as for listed in offered.values()} == {None}


def test_classes_without_a_calibration_get_the_threshold_of_all_and_no_figures(
    record: CalibrationRecord,
) -> None:
    ids = ("1001", "1004", "1005", "1007")
    for rule, value in (("average_k", {"k": 2.0}), ("balanced_average_k", {"k": 2.0}),
                        ("coverage", {"coverage": 0.9}), ("class_coverage", {"coverage": 0.9}),
                        ("top_k", {"k": 2.0})):  # fmt: skip
        result: dict[str, Any] = value
        outcome, members = ask_listed(record, logits(), only=list(ids), rule=rule, **result)
        whole = record.point(PLAIN, record.setting(rule, next(iter(value.values()))))
        assert outcome.set.lambda_val == whole.lambda_val
        assert not outcome.set.calibrated
        assert outcome.set.expected_size is outcome.set.hit_rate is None
        assert outcome.set.statement is None
        assert [warned.code for warned in outcome.warnings] == ["list_not_calibrated"]
        assert "the 4 requested classes" in outcome.warnings[0].detail
        scores = np.zeros((1, len(TABLE)))
        scores[0, list(indices(ids))] = list(by_hand(record, logits(), ids).values())
        places = list(indices(ids))
        ranked, compared = whole.rank_by(scores)[0], whole.compare(scores)[0]
        best = places[int(ranked[places].argmax())]
        if rule != "top_k":
            reach = {TABLE[index].id for index in places if compared[index] >= whole.lambda_val}
            assert members == reach | {TABLE[best].id}
        assert len(members) == 2 or rule != "top_k"
        assert (outcome.query.list, outcome.query.only) == (None, list(ids))


def test_exactly_the_classes_of_a_calibrated_list_are_calibrated_under_any_name(
    record: CalibrationRecord,
) -> None:
    reference, _ = ask_listed(record, logits(), list="heath")
    by_ids, _ = ask_listed(record, logits(), only=list(reversed(HEATH)))
    berge = RegionList(name="berge", classes=indices(HEATH))
    lists = ClassLists.of(TABLE, record).adding([berge])
    by_file, _ = ask_listed(record, logits(), lists, list="berge")
    assert reference.set == by_ids.set == by_file.set
    assert reference.set.calibrated
    assert by_file.query.list == "berge"
    assert not ask_listed(record, logits(), only=[*HEATH, "1001"])[0].set.calibrated
    assert not ask_listed(record, logits(), only=list(HEATH[1:]))[0].set.calibrated


def test_a_list_that_differs_from_the_calibrated_one_is_uncalibrated_and_logged(
    record: CalibrationRecord, caplog: pytest.LogCaptureFixture
) -> None:
    lists = ClassLists.of(TABLE, record)
    lists.adding([RegionList(name="heath", classes=indices(HEATH))])
    assert caplog.text == ""
    other = lists.adding([RegionList(name="heath", classes=indices(PAIR))])
    assert "list heath differs from the list" in caplog.text
    caplog.clear()
    lists.adding([RegionList(name="heath", classes=tuple(range(len(HEATH))))])
    assert "list heath differs from the list" in caplog.text
    as_pair, _ = ask_listed(record, logits(), other, list="heath")
    assert as_pair.set.calibrated
    other = lists.adding([RegionList(name="heath", classes=(0, 1))])
    assert not ask_listed(record, logits(), other, list="heath")[0].set.calibrated


def test_a_list_of_k_classes_keeps_the_promise_of_at_most_k(record: CalibrationRecord) -> None:
    for guarantee in ("mean", "probability"):
        result, members = ask_listed(record, logits(), list="pair", k=2.0, guarantee=guarantee)
        assert members == set(PAIR)
        assert (result.set.calibrated, result.set.guarantee) == (True, guarantee)


@pytest.mark.parametrize("k", [3.0, 5.0, 10.0])
def test_a_k_beyond_the_list_gives_all_of_it(record: CalibrationRecord, k: float) -> None:
    for rule in ("average_k", "top_k"):
        result, members = ask_listed(
            record, logits(), list="pair", rule=rule, k=k, include=["marginals"]
        )
        assert members == set(PAIR)
        assert (result.set.k, result.set.size, result.set.calibrated) == (k, 2, True)
        assert result.set.expected_size is not None
        assert result.set.expected_size.value == 2
        assert [r.top_k_probability for r in result.results] == pytest.approx([1, 1])
        uncalibrated, members = ask_listed(record, logits(), only=["1005", "1006"], rule=rule, k=k)
        assert (rule == "average_k") or members == {"1005", "1006"}
        assert not uncalibrated.set.calibrated


def test_a_k_missing_from_the_list_is_uncalibrated_and_an_unknown_k_is_refused(
    record: CalibrationRecord,
) -> None:
    assert not ask_listed(record, logits(), list="heath", k=2.5)[0].set.calibrated
    with raises_problem(Code.NOT_CALIBRATED) as refused:
        ask_listed(record, logits(), list="heath", k=2.55)
    assert refused.value.allowed == record.values("average_k")
    assert ask_listed(record, logits(), list="heath", guarantee="probability")[0].set.calibrated


def test_a_photo_that_rules_out_the_whole_list_gets_an_answer(record: CalibrationRecord) -> None:
    values = logits()
    values[record.head][:, list(indices(PAIR))] = -np.inf
    outcome, members = ask_listed(record, values, list="pair", include=["marginals"])
    assert [result.score for result in outcome.results] == [0.5, 0.5]
    assert members == set(PAIR)


def test_several_photos_with_a_list_have_a_threshold_of_their_own(
    record: CalibrationRecord,
) -> None:
    values = logits(photos=2)
    result, _ = ask_listed(record, values, list="heath", include=["scores"])
    point = record.point(View(photos=2, list="heath"), record.setting("average_k"))
    assert (result.set.calibrated, result.set.lambda_val) == (True, point.lambda_val)
    used = result.set.calibrated_for
    assert (used.images, used.list, used.place) == (2, "heath", None)
    assert [warned.code for warned in result.warnings] == ["fusion_from_same_class"]
    assert scores_of(result) == pytest.approx(by_hand(record, values, HEATH))


def test_a_view_that_is_not_calibrated_has_the_threshold_of_the_nearest(
    record: CalibrationRecord,
) -> None:
    seven = ask_listed(record, logits(photos=7), list="heath")[0]
    one = record.point(View(list="heath"), record.setting("average_k"))
    assert (seven.set.calibrated, seven.set.lambda_val) == (False, one.lambda_val)
    assert (seven.set.calibrated_for.images, seven.set.calibrated_for.list) == (1, "heath")
    assert [warned.code for warned in seven.warnings] == ["fusion_not_calibrated"]
    assert seven.set.reasons[-1] == "another_view"


def test_rejection_is_judged_by_all_classes_before_the_list(record: CalibrationRecord) -> None:
    assert record.rejection is not None
    values = logits()
    strict = replace(record, rejection=replace(record.rejection, threshold=1e9))
    plain, _ = ask_listed(strict, values)
    listed, _ = ask_listed(strict, values, list="heath")
    assert listed.rejection == plain.rejection
    assert listed.rejection.verdict == "suspect"
    refused, members = ask_listed(strict, values, list="heath", reject=True)
    assert (refused.rejection.verdict, members, refused.set.calibrated) == (
        "rejected", set(), False,
    )  # fmt: skip


def test_rollup_marginals_and_cut_lists_are_about_the_listed_classes(
    record: CalibrationRecord,
) -> None:
    include = ["scores", "marginals", "rollup"]
    result, _ = ask_listed(record, logits(), list="heath", k=2.0, include=include)
    scores = by_hand(record, logits(), HEATH)
    assert result.rollup
    for group in result.rollup:
        taxa = ((id_, TABLE[TABLE.index_of[id_]]) for id_ in HEATH)
        members = [id_ for id_, taxon in taxa if group.name in (taxon.genus, taxon.family)]
        total = sum(scores[id_] for id_ in members) / sum(scores.values())
        assert group.score == pytest.approx(total)
    few = logits()[record.head][:, list(indices(HEATH))]
    marginals = dict(zip(HEATH, top_k_marginals(few, 2)[0].tolist(), strict=True))
    assert {r.class_id: r.top_k_probability for r in result.results} == pytest.approx(marginals)
    view, inside = ask_listed(record, logits(), list="pair", k=3.0, max_results=1)
    assert inside == set(PAIR)
    assert (len(view.results), view.set.size, view.set.truncated) == (1, 2, True)


def test_only_takes_ids_genera_and_families_and_narrows_a_list(record: CalibrationRecord) -> None:
    result, _ = ask_listed(record, logits(), only=["rosa", "VIOLACEAE", "1012"])
    assert result.query.only == ["1001", "1002", "1003", "1006", "1007", "1012"]
    both, _ = ask_listed(record, logits(), list="heath", only=["Rosaceae", "1004", "1005"])
    assert (both.query.list, both.query.only) == ("heath", ["1002", "1004"])
    with raises_problem(Code.INVALID_PARAMETER, match="names no class that is in the list 'pair'"):
        ask_listed(record, logits(), list="pair", only=["Viola"])


def test_queries_of_few_known_classes_are_told_apart_before_any_work(
    record: CalibrationRecord,
) -> None:
    lists = ClassLists.of(TABLE, record)
    for words, count in (
        ({}, 0),
        ({"only": ["1001", "1001"]}, 2),
        ({"only": ["rosa"], "always": ["1001", "Rosaceae"]}, 3 + 1 + 3),
        ({"only": ["Roza"]}, None),
        ({"only": ["1001"], "always": ["Roza"]}, None),
    ):
        query = IdentifyQuery.model_validate(words)
        for limit in range(9):
            assert lists.names_at_most(query, limit) is (count is not None and count <= limit)


def test_a_family_counts_once_in_all_its_spellings(record: CalibrationRecord) -> None:
    lists, reads = ClassLists.of(TABLE, record), list[str]()

    class Groups(dict[str, set[int]]):
        def __getitem__(self, name: str) -> set[int]:
            reads.append(name)
            return super().__getitem__(name)

    lists.__dict__["_groups"] = Groups(lists._groups)
    spellings = ["Rosaceae", "ROSACEAE", "rosaceae", "rOsaceae"] * 100
    restriction = lists.restriction(IdentifyQuery(only=spellings))
    assert restriction is not None
    assert restriction.only == ["1001", "1002", "1003"]
    assert reads == ["rosaceae"]


def test_unknown_names_are_listed_with_similar_ones(record: CalibrationRecord) -> None:
    with raises_problem(Code.UNKNOWN_LIST, match="no list is named 'moor'") as refused:
        ask_listed(record, logits(), list="moor")
    assert refused.value.allowed == ["heath", "pair"]
    with raises_problem(Code.UNKNOWN_CLASS, match=r"named 'Roza', 'xyz'$") as unknown:
        ask_listed(record, logits(), only=["1001", "Roza", "xyz"])
    assert unknown.value.allowed == ["Rosa"]
    with raises_problem(Code.UNKNOWN_CLASS) as unknown:
        ask_listed(record, logits(), only=["xyz"])
    assert unknown.value.allowed is None
    assert "and" not in unknown.value.detail
    words = [f"unheard of {number}" for number in range(MAX_UNKNOWN_LISTED + 3)]
    with raises_problem(Code.UNKNOWN_CLASS, match="and 3 more are unknown") as unknown:
        ask_listed(record, logits(), only=words)
    assert unknown.value.detail.count("unheard of") == MAX_UNKNOWN_LISTED
    with raises_problem(Code.UNKNOWN_CLASS) as unknown:
        ask_listed(record, logits(), only=["Roza", "Violla", "Papver", "Belis"])
    assert unknown.value.allowed == ["Rosa", "Viola", "Papaver"]
    assert MAX_SUGGESTED_FOR == 3
    with raises_problem(Code.INVALID_PARAMETER, match="it names no class"):
        ask_listed(record, logits(), only=[])
    none = replace(record, lists=(), tables=tuple(t for t in record.tables if t.view.list is None))
    with raises_problem(Code.UNKNOWN_LIST, match="there are no lists"):
        ask_listed(none, logits(), list="heath")
