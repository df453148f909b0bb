"""The sets on the dial of an answer are those that the server gives at their settings."""

from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient

from florilege.calibration.record import CalibrationRecord
from florilege.calibration.view import PLAIN
from florilege.server.answers import dial
from tests.server import garden
from tests.server.answers.answer_by_hand import TABLE, ask, logits

FIGURES = ("lambda_val", "size", "expected_size", "hit_rate", "hit_rate_at_size", "least_coverage")
QUERIES: tuple[dict[str, Any], ...] = (
    {},
    {"k": 1.0},
    {"k": 12.0},
    {"rule": "top_k", "k": 2.0},
    {"rule": "coverage", "coverage": 0.9},
    {"rule": "balanced_average_k", "k": 2.0},
    {"only": list(TABLE.ids[:5])},
    {"only": list(TABLE.ids[:5]), "rule": "balanced_average_k"},
    {"only": list(TABLE.ids[:5]), "rule": "top_k", "k": 2.0},
)


@pytest.mark.parametrize("query", QUERIES, ids=str)
@pytest.mark.parametrize("seed", range(4))
def test_every_stop_is_the_set_of_its_setting_and_has_its_figures(
    record: CalibrationRecord, query: dict[str, Any], seed: int
) -> None:
    result = ask(record, logits(seed=seed), **query, include=["dial"])
    assert result.dial
    sizes = [stop.size for stop in result.dial]
    assert sizes == sorted(set(sizes))
    for stop in result.dial:
        name = "k" if stop.coverage is None else "coverage"
        same = ask(record, logits(seed=seed), **{**query, name: getattr(stop, name)})
        assert [getattr(stop, each) for each in FIGURES] == [
            getattr(same.set, each) for each in FIGURES
        ]
        first = [each.class_id for each in result.results[: stop.size]]
        assert [each.class_id for each in same.results] == first
    own = next(stop for stop in result.dial if stop.size == result.set.size)
    assert (own.k, own.coverage) == (result.set.k, result.set.coverage)


def test_each_set_has_one_stop_with_the_setting_nearest_to_that_of_the_answer(
    record: CalibrationRecord,
) -> None:
    result = ask(record, logits(), include=["dial"], k=3.0)
    by_size = dict[int, list[float]]()
    for k in record.values("average_k"):
        by_size.setdefault(ask(record, logits(), k=k).set.size, []).append(k)
    nearest = {size: min(ks, key=lambda k: abs(k - 3.0)) for size, ks in by_size.items()}
    assert result.dial is not None
    assert {stop.size: stop.k for stop in result.dial} == nearest
    assert any(len(ks) > 1 for ks in by_size.values())


def test_the_results_hold_the_largest_set_and_a_few_more(
    record: CalibrationRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dial, "LARGEST_SET", 4)
    result = ask(record, logits(), include=["dial"], k=2.0)
    assert result.dial is not None
    every = {ask(record, logits(), k=k).set.size for k in record.values("average_k")}
    assert max(every) > 4
    assert {stop.size for stop in result.dial} == {
        size for size in every if size <= 4 or size == result.set.size
    }
    assert 4 in every
    largest = result.dial[-1].size
    assert len(result.results) == min(largest + dial.BELOW, len(TABLE))
    assert [each.in_set for each in result.results].count(True) == result.set.size
    large = ask(record, logits(), include=["dial"], k=12.0)
    assert large.dial is not None
    assert large.dial[-1].size == large.set.size > 4  # the answer's own


def test_a_dial_has_no_figures_where_nothing_was_calibrated(record: CalibrationRecord) -> None:
    result = ask(record, logits(), include=["dial"], only=list(TABLE.ids[:5]))
    assert result.dial is not None
    assert not result.set.calibrated
    assert {stop.hit_rate for stop in result.dial} == {None}


def test_a_score_that_equals_the_threshold_is_in_the_set(record: CalibrationRecord) -> None:
    points = [record.point(PLAIN, record.setting("average_k", k)) for k in (1.0, 2.0, 5.0)]
    scores = np.array([each.lambda_val for each in points for _ in range(2)])
    sizes = dial._sizes(points[0], points, scores)
    assert sizes == [int(each.sets(scores[np.newaxis]).sum()) for each in points] == [2, 4, 6]


def test_a_rejected_photo_has_no_other_sets(client: TestClient) -> None:
    path = "/v1/identify?include=dial"
    assert client.post(path, content=garden.DULL).json()["dial"]
    rejected = client.post(f"{path}&reject=true", content=garden.DULL).json()
    assert (rejected["dial"], rejected["results"]) == ([], [])


def test_only_sets_that_hold_each_other_have_a_dial(record: CalibrationRecord) -> None:
    assert ask(record, logits()).dial is None
    by_class = ask(record, logits(), rule="class_coverage", coverage=0.9, include=["dial"])
    assert by_class.dial == []
