"""Thresholds for several photos of one plant, in the record."""

from typing import Any

import numpy as np
import pytest

from florilege.calibration.calibrate import fit
from florilege.calibration.fusion import fuse
from florilege.calibration.marginals import top_k_marginals
from florilege.calibration.photo_groups import groups_of
from florilege.calibration.record.operating_point import OperatingPoint
from florilege.calibration.record.record import CalibrationRecord
from florilege.calibration.rules import calibrate
from florilege.calibration.scores import scores
from tests.calibration.estimates import hits_of
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


@pytest.mark.parametrize("images", [2, 3, 4, 5])
def test_a_point_is_the_rule_on_fused_scores(record: CalibrationRecord, images: int) -> None:
    logits, labels = sample_logits()
    rows = groups_of(labels, size=images).rows
    values = fuse(logits[rows], score_kind=record.score_kind)
    truth = labels[rows[:, 0]]
    for name in ("average_k", "balanced_average_k"):
        for k in (1.0, 2.5, 3.0, 5.0):
            rule = calibrate(name, values, average_k=k, class_counts=COUNTS)
            point = record.point(name, k=k, images=images)
            assert point.lambda_val == rule.lambda_val
            hits = rule.sets(values)[np.arange(len(rows)), truth]
            assert hits_of(point).value == pytest.approx(hits.mean(), abs=1e-12)
            assert (point.table.images, point.rows, point.k) == (images, len(rows), k)
            assert hits_of(point).rows == len(rows)
    for name in ("coverage", "balanced_coverage"):
        rule = calibrate(name, values, truth, coverage=0.9, class_counts=COUNTS)
        assert record.point(name, images=images).lambda_val == rule.lambda_val


def test_top_k_is_measured_on_marginals(record: CalibrationRecord) -> None:
    logits, labels = sample_logits()
    rows = groups_of(labels, size=2).rows
    marginals = top_k_marginals(logits[rows.reshape(-1)], 5).reshape(*rows.shape, -1)
    members = calibrate("top_k", marginals.mean(axis=1), k=5).sets(marginals.mean(axis=1))
    point = record.point("top_k", k=5, images=2)
    assert point.table.fusion == "mean_marginal"
    hits = members[np.arange(len(rows)), labels[rows[:, 0]]]
    assert hits_of(point).value == pytest.approx(hits.mean(), abs=1e-12)
    assert record.ks("top_k", images=2) == [1.0, 3.0, 5.0]


def test_the_served_sets_have_the_measured_size_and_hits(record: CalibrationRecord) -> None:
    logits, labels = sample_logits()
    rows = groups_of(labels, size=3).rows
    plain = [(rule, None) for rule in record.rules if rule != "class_coverage"]
    for rule, guarantee in (*plain, *record.promises):
        point = record.point(rule, images=3, guarantee=guarantee)
        sets = np.array([point.sets(point.fused_scores(logits[g])[np.newaxis])[0] for g in rows])
        assert sets.sum(axis=1).mean() == pytest.approx(point.row.size, abs=1e-12)
        hits = sets[np.arange(len(rows)), labels[rows[:, 0]]]
        assert hits.mean() == pytest.approx(hits_of(point).value, abs=1e-12)


def test_one_photo_gives_the_very_scores(record: CalibrationRecord) -> None:
    logits = sample_logits(3)[0]
    for rule in record.rules:
        point = record.point(rule)
        for row in logits[:20]:
            expected = scores(row[np.newaxis], point.table.score_kind)[0]
            assert point.fused_scores(row[np.newaxis]).tobytes() == expected.tobytes()


def test_several_photos_at_a_threshold_of_one_are_averaged(record: CalibrationRecord) -> None:
    logits = sample_logits(3)[0][:4]
    point = record.point("top_k", k=5)
    assert (point.table.fusion, point.table.images) == ("mean_score", 1)
    assert point.table.made_from is None
    mean = scores(logits, point.table.score_kind).mean(axis=0)
    np.testing.assert_allclose(point.fused_scores(logits), mean, rtol=1e-14)


def test_the_record_says_what_groups_were_made_from(record: CalibrationRecord) -> None:
    assert record.point("average_k", images=2).table.made_from == "same_class"
    text = record.point("average_k", images=2).statement
    assert "groups of 2 photos" in text
    assert "not of one plant" in text
    plants = fitted_plants(observations=PLANTS, fresh=True)
    point = plants.point("average_k", images=2)
    assert (point.table.made_from, point.rows) == ("observations", ROWS // 5)
    assert "each of one plant" in point.statement
    again = CalibrationRecord.from_json(plants.to_json())
    assert again.point("average_k", images=2).statement == point.statement


def test_coverage_of_groups_is_guaranteed_only_for_real_plants() -> None:
    def guaranteed(record: CalibrationRecord, images: int) -> bool:
        return record.point("coverage", images=images).guaranteed

    plants, species = fitted_plants(observations=PLANTS, fresh=True), fitted_plants(fresh=True)
    assert guaranteed(plants, 1)
    assert guaranteed(plants, 2)
    assert guaranteed(species, 1)
    assert not guaranteed(species, 2)


@pytest.mark.parametrize("most", [9, 10**6])
def test_top_k_is_measured_on_so_many_groups_and_up_to_so_large_a_k(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(fit, "MARGINAL_GROUPS", most)
    monkeypatch.setattr(fit, "LARGEST_K", 3)
    record = fitted_pairs()
    groups = record.point("average_k", images=2).rows
    assert groups > 100
    assert record.point("top_k", k=3, images=2).rows == min(most, groups)
    assert record.ks("average_k", images=2) == [3.0, 5.0]
    assert record.ks("top_k", images=2) == [3.0]


def test_the_fewest_groups_are_enough_and_one_fewer_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = fitted_pairs().point("average_k", images=2).rows
    monkeypatch.setattr(fit, "FEWEST_GROUPS", groups)
    assert fitted_pairs().images == (1, 2)
    monkeypatch.setattr(fit, "FEWEST_GROUPS", groups + 1)
    assert fitted_pairs().images == (1,)


def fitted_pairs() -> CalibrationRecord:
    logits, labels = sample_logits()
    return fitted({"linear": logits[:230]}, labels[:230], ks=(3.0, 5.0), images=(2,))


@pytest.mark.parametrize("shape", [(0, CLASSES), (CLASSES,), (2, CLASSES - 1)])
def test_another_shape_is_refused(record: CalibrationRecord, shape: tuple[int, ...]) -> None:
    point: OperatingPoint = record.point("balanced_average_k", images=2)
    with pytest.raises(ValueError, match=r"shape|classes"):
        point.sets(point.fused_scores(np.zeros(shape))[np.newaxis])


def test_the_interval_of_the_choice_reaches_down_to_its_hit_rate_on_other_photos(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fit, "choose", lambda _hits, *, plants: (0, 0.1))
    selection = fitted_plants().selection
    assert selection.honest_ci95[0] == selection.honest_hit_rate < selection.hit_rate
    assert selection.honest_hit_rate < 0.2


def test_heads_whose_ties_enlarge_their_sets_are_compared_by_size_not_by_hits() -> None:
    logits, labels = sample_logits()
    coarse = np.where(logits > np.median(logits), 1, 0).astype(np.float32)
    heads = {"flat": np.zeros_like(logits), "coarse": coarse, "linear": logits}
    for names, served in ((("flat", "coarse", "linear"), "linear"), (("flat", "coarse"), "coarse")):
        chosen_from = {name: heads[name] for name in names}
        assert fitted(chosen_from, labels, ks=(3.0,)).head == served
