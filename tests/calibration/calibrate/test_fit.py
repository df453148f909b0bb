"""Thresholds for several photos of one plant, in the record."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from florilege.calibration.calibrate import fit, score_sources
from florilege.calibration.calibrate.evaluate import Evaluated
from florilege.calibration.photo_groups import groups_of
from florilege.calibration.record import CalibrationRecord
from florilege.calibration.record.operating_point import OperatingPoint
from florilege.calibration.rules import calibrate
from florilege.calibration.rules.score_summary import ScoreSummary
from florilege.calibration.scores import EXPONENTS, fuse, scores
from florilege.calibration.view import PLAIN, View
from florilege.models.regions import RegionList
from tests.calibration.estimates import hits_of, to_expect
from tests.calibration.record.test_record import COUNTS, ROWS, fitted, sample_logits
from tests.calibration.simulation import CLASSES

PLANTS = [str(number) for number in np.repeat(np.arange(ROWS // 5), 5)]


def fitted_plants(
    *, observations: list[str] | None = None, fresh: bool = False
) -> CalibrationRecord:
    logits, labels = sample_logits()
    if observations is not None:
        labels = np.repeat(labels[::5], 5)  # one species a plant
    kind = "softmax" if fresh else None
    settings: dict[str, Any] = {"ks": (1.0, 2.5, 5.0), "coverages": (0.9,), "score_kind": kind}
    return fitted({"linear": logits}, labels, observations=observations, **settings)


@pytest.fixture(scope="module")
def record() -> CalibrationRecord:
    return fitted_plants()


def test_an_evaluation_contradicts_with_independent_rows_on_both_sides() -> None:
    """Photos that say as much as 50, against 140 plants of 700 photos."""
    record = fitted_plants(observations=PLANTS, fresh=True)
    point = record.point(PLAIN, record.setting("coverage", 0.9))
    assert point.guaranteed
    assert (point.rows, point.measured.observations) == (700, 140)
    row = replace(point.row, hit_rows=50.0)
    for hit_rate, contradicted in ((0.74, False), (0.72, True)):
        result = Evaluated(point, replace(row, hit_rate=hit_rate), {})
        assert (result.contradiction() is not None) == contradicted


def test_the_interval_of_the_choice_counts_plants() -> None:
    logits, labels = sample_logits()
    once, five = np.arange(0, ROWS, 5), np.repeat(np.arange(0, ROWS, 5), 5)
    intervals = [
        fitted(
            {"linear": logits[rows]}, labels[rows], observations=names, ks=(1.0,), images=(),
            head="linear", score_kind="softmax",
        ).selection.honest_ci95
        for rows, names in ((once, None), (five, PLANTS))
    ]  # fmt: skip
    once_wide, five_wide = (high - low for low, high in filter(None, intervals))
    assert once_wide == pytest.approx(five_wide, rel=0.1)


def test_plants_of_a_list_contradict_as_plants_not_as_photos() -> None:
    """Of 22 plants with five photos each, taken as 110, four errors would be two."""
    logits, labels = sample_logits()
    alps = RegionList(name="alps", classes=(3, 5, 6, 7))
    record = fitted(
        {"linear": logits}, np.repeat(labels[::5], 5), observations=PLANTS, lists=(alps,),
        ks=(2.5,), coverages=(0.9,), score_kind="softmax",
    )  # fmt: skip
    assert record.point(PLAIN, record.setting("average_k")).least_coverage is None
    point = record.point(View(list="alps"), record.setting("average_k", 2.5, "mean"))
    assert point.guaranteed
    assert point.independent_rows == pytest.approx(point.rows / 5)
    row = replace(point.row, size_rows=20.0)
    error = row.size_deviation * np.sqrt(1 / 20 + 5 / point.rows)
    for errors, contradicted in ((2.9, False), (3.1, True)):
        result = Evaluated(point, replace(row, size=2.5 + errors * error), {})
        assert (result.contradiction() is not None) == contradicted


@pytest.mark.parametrize("images", [2, 3, 4, 5])
def test_a_point_is_the_rule_on_fused_scores(record: CalibrationRecord, images: int) -> None:
    logits, labels = sample_logits()
    rows = groups_of(labels, size=images).rows
    values = fuse(logits[rows], score_kind=record.score_kind)
    truth = labels[rows[:, 0]]
    for name in ("average_k", "balanced_average_k"):
        for k in (1.0, 2.5, 3.0, 5.0):
            rule = calibrate(name, values, average_k=k, class_counts=COUNTS)
            point = record.point(View(photos=images), record.setting(name, k))
            assert point.lambda_val == rule.lambda_val
            hits = rule.sets(values)[np.arange(len(rows)), truth]
            assert hits_of(point).value == pytest.approx(hits.mean(), abs=1e-12)
            assert (point.table.view.photos, point.rows, point.k) == (images, len(rows), k)
            assert hits_of(point).rows == len(rows)
    for name in ("coverage", "balanced_coverage"):
        point = record.point(View(photos=images), record.setting(name))
        assert point.table.candidates == 8  # two kinds of score, and six temperatures of one
        summary = ScoreSummary(rows=len(rows), classes=CLASSES, max_average_k=1, candidates=8,
                               class_weights=point.class_weights)  # fmt: skip
        summary.update(values, truth)
        assert point.lambda_val == summary.coverage(0.9).lambda_val


def test_top_k_of_several_photos_is_nested(record: CalibrationRecord) -> None:
    logits, labels = sample_logits()
    rows = groups_of(labels, size=2).rows
    values = fuse(logits[rows], score_kind=record.score_kind)
    smaller = np.zeros(values.shape, dtype=np.bool_)
    for k in (1, 3, 5):
        point = record.point(View(photos=2), record.setting("top_k", k))
        sets = point.sets(values)
        assert (sets >= smaller).all()
        assert hits_of(point).value == sets[np.arange(len(rows)), labels[rows[:, 0]]].mean()
        smaller = sets
    assert record.values("top_k", None, View(photos=2)) == [1.0, 3.0, 5.0]


def test_photos_that_err_apart_are_fused_by_the_product_that_was_chosen() -> None:
    random, rows = np.random.default_rng(1), 1200
    labels = np.repeat(random.integers(0, CLASSES, rows // 2), 2)
    values = random.normal(size=(rows, CLASSES))
    values[np.arange(rows), labels] += 1.5
    logits = (1.5 * values).astype(np.float32)  # the logarithm of the true odds
    plants = [str(row // 2) for row in range(rows)]
    record = fitted(
        {"a": logits},
        labels,
        observations=plants,
        class_counts=np.ones(CLASSES, dtype=np.int64),
        ks=(3.0,),
        images=(2,),
        score_kind="softmax",
    )
    point = record.point(View(photos=2), record.setting("average_k", 3))
    scoring, groups = point.table.scoring, groups_of(labels, size=2, observations=plants).rows
    assert scoring.fusion in EXPONENTS
    fused = fuse(
        logits[groups] / scoring.temperature,
        score_kind="softmax",
        fusion=scoring.fusion,
        prior=record.prior,
    )
    assert point.lambda_val == calibrate("average_k", fused, average_k=3).lambda_val
    assert record.scoring.fusion is None


def test_the_served_sets_have_the_measured_size_and_hits(record: CalibrationRecord) -> None:
    logits, labels = sample_logits()
    rows = groups_of(labels, size=3).rows
    plain = [(rule, None) for rule in record.rules if rule != "class_coverage"]
    for rule, guarantee in (*plain, *record.promises):
        point = record.point(View(photos=3), record.setting(rule, None, guarantee))
        sets = np.array([point.sets(point.scores(logits[g])[np.newaxis])[0] for g in rows])
        assert sets.sum(axis=1).mean() == pytest.approx(point.row.size, abs=1e-12)
        hits = sets[np.arange(len(rows)), labels[rows[:, 0]]]
        assert hits.mean() == pytest.approx(hits_of(point).value, abs=1e-12)


def test_one_photo_gives_the_very_scores(record: CalibrationRecord) -> None:
    logits = sample_logits(3)[0]
    for rule in record.rules:
        point = record.point(PLAIN, record.setting(rule))
        for row in logits[:20]:
            expected = scores(row[np.newaxis], point.table.scoring.score_kind)[0]
            assert point.scores(row[np.newaxis]).tobytes() == expected.tobytes()


def test_several_photos_at_a_threshold_of_one_are_averaged(record: CalibrationRecord) -> None:
    logits = sample_logits(3)[0][:4]
    point = record.point(PLAIN, record.setting("top_k", 5))
    assert (point.table.scoring.fusion, point.table.view.photos) == (None, 1)
    assert point.table.made_from is None
    mean = scores(logits, point.table.scoring.score_kind).mean(axis=0)
    np.testing.assert_allclose(point.scores(logits), mean, rtol=1e-14)


def test_the_record_says_what_groups_were_made_from(record: CalibrationRecord) -> None:
    assert record.point(View(photos=2), record.setting("average_k")).table.made_from == "same_class"
    text = record.point(View(photos=2), record.setting("average_k")).statement
    assert "groups of 2 photos" in text
    assert "not of one plant" in text
    plants = fitted_plants(observations=PLANTS, fresh=True)
    point = plants.point(View(photos=2), plants.setting("average_k"))
    assert (point.table.made_from, point.rows) == ("observations", ROWS // 5)
    assert "each of one plant" in point.statement
    again = CalibrationRecord.from_json(plants.to_json())
    assert again.point(View(photos=2), again.setting("average_k")).statement == point.statement


def test_coverage_of_groups_is_guaranteed_only_for_real_plants() -> None:
    def guaranteed(record: CalibrationRecord, images: int) -> bool:
        return record.point(View(photos=images), record.setting("coverage")).guaranteed

    plants, species = fitted_plants(observations=PLANTS, fresh=True), fitted_plants(fresh=True)
    assert guaranteed(plants, 1)
    assert guaranteed(plants, 2)
    assert guaranteed(species, 1)
    assert not guaranteed(species, 2)


def test_thresholds_by_class_are_those_of_single_photos_alone() -> None:
    """With groups of photos a class would have too few for one of its own."""
    tables = fitted_plants(observations=PLANTS, fresh=True).tables
    views = {table.view for table in tables}
    by_class = {t.view for t in tables if "class_coverage" in {rule.rule for rule in t.rules}}
    assert by_class == {View()} < views


def test_the_fewest_groups_are_enough_and_one_fewer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    pairs = fitted_pairs()
    groups = pairs.point(View(photos=2), pairs.setting("average_k")).rows
    monkeypatch.setattr(score_sources, "FEWEST_GROUPS", groups)
    assert fitted_pairs().photos == (1, 2)
    monkeypatch.setattr(score_sources, "FEWEST_GROUPS", groups + 1)
    assert fitted_pairs().photos == (1,)


def fitted_pairs() -> CalibrationRecord:
    logits, labels = sample_logits()
    return fitted({"linear": logits[:230]}, labels[:230], ks=(3.0, 5.0), images=(2,))


@pytest.mark.parametrize("shape", [(0, CLASSES), (CLASSES,), (2, CLASSES - 1)])
def test_another_shape_is_refused(record: CalibrationRecord, shape: tuple[int, ...]) -> None:
    point: OperatingPoint = record.point(View(photos=2), record.setting("balanced_average_k"))
    with pytest.raises(ValueError, match=r"shape|classes"):
        point.sets(point.scores(np.zeros(shape))[np.newaxis])


def test_the_interval_of_the_choice_reaches_down_to_its_hit_rate_on_other_photos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit, "choose", lambda _hits, *, observations: (0, 0.1))
    record = fitted_plants()
    honest, (low, _) = to_expect(record)
    assert low == honest < record.selection.hit_rate
    assert honest < 0.2


def test_heads_whose_ties_enlarge_their_sets_are_compared_by_size_not_by_hits() -> None:
    logits, labels = sample_logits()
    coarse = np.where(logits > np.median(logits), 1, 0).astype(np.float32)
    heads = {"flat": np.zeros_like(logits), "coarse": coarse, "linear": logits}
    for names, served in ((("flat", "coarse", "linear"), "linear"), (("flat", "coarse"), "coarse")):
        chosen_from = {name: heads[name] for name in names}
        assert fitted(chosen_from, labels, ks=(3.0,)).head == served
